"""Watches the training loss where one epoch ends and the next begins, and names what makes it jump there."""

import logging
import math
from collections import defaultdict
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor

from statewise.borders.causes import Evidence
from statewise.borders.verdict import Borders
from statewise.callbacks.border_traces import Weights, carried, forgetful, forgotten, memories, rates, states
from statewise.callbacks.epoch_lines import _batch_size

log = logging.getLogger(__name__)

# Losses that wait as tensors of their own; then they become one, still on their device.
_WAITING = 512


class EpochBorders(L.Callback):
    """Detects a jump of the training loss at the border between two epochs and names the cause that it can show.

    Causes: the weights were rewritten in between; the learning rate goes up there; a carried state, or the memory of an
    optimizer, begins anew; the batches come in the same order in every epoch. A rise is judged against what the loss does
    inside epochs (`statewise.borders.jumps`): either one border stands out far beyond noise, or they do together. Each cause is
    said once, when it is first seen; all are in `report()`. An epoch of fewer than 4 batches is not judged.

    It works on any LightningModule whose training step gives a loss, asks it for nothing, and never waits for the device while
    an epoch runs: the losses are fetched together at its end. Of several processes the first one watches its own loss.
    """

    def __init__(self) -> None:
        self._borders = Borders()
        self._losses: list[Any] = []  # of this epoch, as the loop gave them, behind the `_joined` ones
        self._joined: list[Tensor] = []
        self._first_size = 0
        self._odd = False  # whether the last batch is smaller than the first
        self._before_last: dict[str, list[float]] = {}
        self._left: dict[str, Any] = {}  # how the epoch before this one ended
        self._seen: dict[str, Any] = {}  # what differed where this epoch began
        self._probe: Weights | None = None
        self._watching = False
        self._stage: str | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._stage = stage

    # -- the epoch -----------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._watching = trainer.is_global_zero

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._watching:
            return
        if batch_idx == 0:
            self._arrive(trainer, pl_module, batch)
        elif not self._losses and not self._joined:  # resumed inside an epoch whose beginning nobody has noted
            self._joined = [torch.full((batch_idx,), math.nan, dtype=torch.float64)]
        elif self._probe is not None:
            changes = self._probe.changes(Weights.of(pl_module))
            self._seen["between_batches"], self._probe = (changes[0][1] if changes else 0.0), None
        if trainer.is_last_batch:
            self._left = {"rates": rates(trainer.optimizers)}
            self._before_last = states(pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        if not self._watching:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._losses.append(loss)
        if len(self._losses) >= _WAITING:
            self._join()
        if batch_idx == 0 and self._seen.get("changed"):
            self._probe = Weights.of(pl_module)
        if trainer.is_last_batch:
            self._leave(trainer, pl_module, batch)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._watching:
            return
        losses = self._taken()
        if self._odd:
            losses = losses[:-1]
        for sentence in self._borders.add(trainer.current_epoch + 1, losses, self._evidence()):
            log.info("epoch_borders: %s", sentence)
        self._losses, self._joined, self._seen, self._odd = [], [], {}, False

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._watching:
            return
        for sentence in self._borders.end():
            log.info("epoch_borders: %s", sentence)
        if self._borders.jumps > 1:
            log.info("epoch_borders: %s", self._borders.report()["sentence"])

    # -- what is known -------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any] | None:
        """What summary.json says of the borders; None where the run had none."""
        return self._borders.report() if self._borders.borders else None

    @property
    def around(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """(epoch that begins, last losses before the border, first ones after it) of the latest borders."""
        return self._borders.around

    def state_dict(self) -> dict[str, Any]:
        weights: Weights | None = self._left.get("weights")
        left = {key: value for key, value in self._left.items() if key != "weights"}
        if weights is not None:
            left |= {"names": weights.names, "lengths": weights.lengths, "values": weights.values}
        return {
            "borders": self._borders.state_dict(),
            "losses": torch.from_numpy(self._taken()),
            "left": left,
            "seen": dict(self._seen),
            "first_size": self._first_size,
            "odd": self._odd,
            "before_last": dict(self._before_last),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Testing the best checkpoint brings back what callbacks knew when it was written, too: this run knows more by now.
        if self._stage not in (None, "fit"):
            return
        self._borders.load_state_dict(state_dict["borders"])
        self._losses, self._joined = [], [state_dict["losses"]]
        left = dict(state_dict["left"])
        if "values" in left:
            left["weights"] = Weights(left.pop("names"), left.pop("lengths"), left.pop("values"))
        self._left, self._seen = left, dict(state_dict["seen"])
        self._first_size, self._odd = state_dict["first_size"], state_dict["odd"]
        self._before_last = dict(state_dict["before_last"])

    # -- inside --------------------------------------------------------------------------------------------------

    def _arrive(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any) -> None:
        """The first batch of an epoch is about to be trained on."""
        self._losses, self._joined, self._seen, self._odd = [], [], {}, False
        self._first_size = _batch_size(batch)
        if "weights" not in self._left:
            return
        left = self._left
        changed = left["weights"].changes(Weights.of(pl_module))
        pairs = list(zip(left["rates"], rates(trainer.optimizers), strict=False))
        name, how = forgotten(left["states"], states(pl_module))
        self._seen = {
            "rates": max(pairs, key=lambda pair: pair[1] / pair[0] if pair[0] > 0 else math.inf, default=(0.0, 0.0)),
            "changed": changed[:64],
            "state": name or next(iter(left["states"]), ""),
            "forgotten": how,
            "memory": forgetful(left["memories"], memories(trainer.optimizers)),
        }

    def _leave(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any) -> None:
        """The last batch of an epoch has been trained on."""
        self._odd = 0 < _batch_size(batch) < self._first_size
        self._left |= {
            "weights": Weights.of(pl_module),
            "states": carried(self._before_last, states(pl_module)),
            "memories": memories(trainer.optimizers),
        }

    def _evidence(self) -> Evidence:
        seen = defaultdict(lambda: None, self._seen)
        before, after = seen["rates"] or (0.0, 0.0)
        return Evidence(
            rate_before=before,
            rate_after=after,
            changed=tuple((str(name), float(size)) for name, size in seen["changed"] or ()),
            between_batches=float(seen["between_batches"] or 0.0),
            state=str(seen["state"] or ""),
            forgotten=str(seen["forgotten"] or ""),
            memory=str(seen["memory"] or ""),
        )

    def _join(self) -> None:
        if self._losses:
            self._joined.append(_together(self._losses))
            self._losses = []

    def _taken(self) -> np.ndarray:
        """The losses of this epoch so far, fetched together."""
        self._join()
        if not self._joined:
            return np.empty(0)
        self._joined = [torch.cat([part.to(self._joined[-1].device) for part in self._joined]).cpu()]
        return np.asarray(self._joined[0].numpy())


def _together(losses: list[Any]) -> Tensor:
    """Losses as one float64 tensor on their device; NaN for what is none."""
    try:
        joined = torch.stack(losses)
    except (TypeError, RuntimeError):  # a batch was skipped, or they differ in shape or device
        numbers = [loss.detach().cpu().double() if _is_number(loss) else _MISSING for loss in losses]
        joined = torch.stack([number.reshape(()) for number in numbers])
    if joined.ndim > 1 and joined[0].numel() != 1:
        return torch.full((len(losses),), math.nan, dtype=torch.float64)
    return joined.detach().reshape(len(losses)).to(torch.float64)


def _is_number(loss: Any) -> bool:
    return isinstance(loss, Tensor) and loss.numel() == 1


_MISSING = torch.tensor(math.nan, dtype=torch.float64)
