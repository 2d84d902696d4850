"""The test of a model, batch by batch: every prediction, and their errors in scaled and in original units."""

import numpy as np
import torch
from torch import Tensor, nn

from statewise.metrics import MaskedErrors
from statewise.parallel import ranks


class WindowsOfTest(nn.Module):
    """What a process has seen of the test windows; `conclude` puts the parts of all processes together.

    Args:
        targets: the number of targets m.

    A module, so that its sums move to the device of the task that it is a part of.
    """

    def __init__(self, targets: int) -> None:
        super().__init__()
        self.errors = MaskedErrors(targets)
        self.original_errors = MaskedErrors(targets)
        self._scale: Tensor | None = None
        self._parts: list[tuple[range, Tensor]] = []

    def begin(self, scale: np.ndarray | None) -> None:
        """Forget an earlier test; `scale`, where it is known, is the factor from scaled to original errors, [n, m]."""
        self.errors.reset()
        self.original_errors.reset()
        self._parts = []
        self._scale = None if scale is None else torch.tensor(scale, dtype=torch.float64)

    @property
    def seen(self) -> int:
        """Windows up to the latest one."""
        return self._parts[-1][0].stop if self._parts else 0

    def add(self, places: range, prediction: Tensor, target: Tensor, observed: Tensor) -> None:
        """The windows at these places of the test part; what a batch holds beyond them is padding.

        Args:
            prediction, target, observed: of the last time step, [b, horizon, m], scaled.
        """
        own = slice(len(places))
        prediction, target, observed = prediction[own].double(), target[own].double(), observed[own]
        self.errors.update(prediction, target, observed)
        if self._scale is not None:
            scale = self._scale[places.start : places.stop, None].to(prediction)  # (b 1 m)
            self.original_errors.update(prediction * scale, target * scale, observed)
        self._parts.append((places, prediction.cpu()))

    def conclude(self) -> tuple[Tensor | None, dict[str, Tensor]]:
        """(predictions [n, horizon, m] in the order of the windows, None on all processes but the first; errors by name)."""
        parts = [part for of_one in ranks.gathered_by_the_first(self._parts) for part in of_one]
        self._parts = []
        in_order = [prediction for _, prediction in sorted(parts, key=lambda part: part[0].start)]
        found = dict(self.errors.compute())
        if self._scale is not None:
            original = self.original_errors.compute()
            found |= {key.replace("_", "_original_units_", 1): value for key, value in original.items() if "_" in key}
            found |= {f"{key}_original_units": original[key] for key in ("mse", "mae")}
        return torch.cat(in_order) if in_order else None, found
