"""The returned loss beside the values that a step logs under any name."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.health.signals import LoggedLoss, LoggedLosses

_COMPARISONS = 3


class LossLog:
    """Listens until a logged value and a returned loss stood side by side in a few batches.

    Values are kept as they were given and read only where there is something to compare: a step that logs nothing costs
    no transfer. accumulate: the framework divides the loss by it before backward.
    """

    def __init__(self, accumulate: int) -> None:
        self._accumulate = accumulate
        self._compared = 0
        self._values: dict[str, Any] = {}
        self._returned: list[Tensor] = []

    @property
    def open(self) -> bool:
        """Whether values are still wanted."""
        return self._compared < _COMPARISONS

    def note(self, name: str, value: Any) -> None:
        """A value was logged."""
        if isinstance(value, Tensor) and value.numel() == 1:
            self._values[name] = value.detach()
        elif isinstance(value, (int, float, np.floating)):
            self._values[name] = value

    def returned(self, loss: Tensor) -> None:
        """The loss that is differentiated."""
        if self.open and loss.dtype is torch.float64:
            self._returned.append(loss.detach())

    def compare(self) -> LoggedLosses | None:
        """Logged values that are the float32 rounding of a returned loss; None where there is nothing to compare."""
        if not self._values or not self._returned:
            return None
        losses = [float(loss) * self._accumulate for loss in self._returned]
        with np.errstate(over="ignore"):  # a loss beyond float32 rounds to infinity
            rounded = tuple(
                LoggedLoss(name=name, value=value, returned=loss, rounded="float32")
                for name, value in ((name, float(value)) for name, value in self._values.items())
                for loss in losses
                if abs(value - loss) > 1e-15 * abs(loss) and value == float(np.float32(loss))
            )
        return LoggedLosses(rounded)

    def end_batch(self) -> LoggedLosses | None:
        """The last comparison of this batch; what it was made from is forgotten."""
        found = self.compare()
        self._compared += found is not None
        self._values, self._returned = {}, []
        return found
