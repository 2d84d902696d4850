"""Logs gradient norms before and after clipping."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from statewise.callbacks.gradient_ledger import (
    GradientLedger,
    GradientReading,
    shared_ledger,
    short_names,
    to_host,
)
from statewise.callbacks.real_steps import RealSteps, log_due, log_pace, log_scalars, unscales_inside
from statewise.callbacks.thinned import Thinned

log = logging.getLogger(__name__)

History = tuple[list[int], list[str], np.ndarray]
Row = tuple[int, dict[str, float]]  # a step, and the norm of each parameter that had a gradient


class GradientNorms(L.Callback):
    """Logs the norm of every gradient at real optimiser steps, before and after clipping.

    Tags: `grad_norm/total` and `grad_norm/<parameter>` are what backward produced, `grad_norm/total_clipped` and
    `grad_norm_clipped/<parameter>` what the optimizer used; totals are over the parameters of the optimizers that
    stepped. `grad_norm/none_count` counts parameters whose gradient is None; each is named once in the log, and `none`
    holds those of the last logged step. A parameter that no optimizer holds is shown, but is in no total. Under loss
    scaling the norms are those of the unscaled loss; an optimizer that unscales inside its own step shows its gradients
    to nobody, and the log says so instead of giving scaled numbers.

    Each logged step takes one transfer from the device. The first real step is always logged.

    Args:
        per_parameter: log every parameter, not only the totals.
        every_n_steps: batches between logged ones; None takes `trainer.log_every_n_steps`.

    Raises:
        ValueError: every_n_steps below 1.
    """

    def __init__(self, per_parameter: bool = True, every_n_steps: int | None = None) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"callbacks.gradient_norms.every_n_steps must be at least 1 or null, got {every_n_steps}")
        self.per_parameter = per_parameter
        self.every_n_steps = every_n_steps
        self.ledger: GradientLedger | None = None
        self.none: list[str] = []
        self._steps = RealSteps()
        self._rows: Thinned[Row] = Thinned(512)
        self._order: list[str] = []
        self._said: set[str] = set()
        self._first = True
        self._backward = False
        self._before: dict[int, tuple[GradientReading, Tensor]] = {}
        self._taken: dict[int, tuple[GradientReading, Tensor, GradientReading]] = {}

    @property
    def history(self) -> History:
        """(steps, names, norms before clipping [steps, names]) of the logged steps, thinned where there are many.

        NaN where a parameter had no gradient.
        """
        rows = self._rows.items
        matrix = np.array([[row.get(name, math.nan) for name in self._order] for _, row in rows], dtype=np.float64)
        return [step for step, _ in rows], list(self._order), matrix.reshape(len(rows), len(self._order))

    def state_dict(self) -> dict[str, Any]:
        """The history, and what was said or logged already: plain values and one matrix."""
        rows = self._rows.state_dict(self._packed)
        return {"names": list(self._order), "rows": rows, "said": sorted(self._said), "first": self._first}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "rows" in state_dict:
            self._order, self._said = list(state_dict["names"]), set(state_dict["said"])
            self._first = bool(state_dict["first"])
            self._rows.load_state_dict(state_dict["rows"], self._unpacked)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.ledger = shared_ledger(trainer, pl_module)
        names = short_names(pl_module.named_parameters())
        wanted = [name for name, p in zip(names, pl_module.parameters(), strict=True) if p.requires_grad]
        self._order += [name for name in wanted if name not in self._order]
        self._before.clear()
        self._taken.clear()
        self._steps.attach(trainer, self._after_step)

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._backward = True

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        if self.ledger is None:
            return
        reading = self.ledger.read(self, optimizer)
        # Without a loss (training_step returned None) Lightning steps all the same, with no gradient at all.
        if pl_module.automatic_optimization and not self._backward:
            return
        if not (log_due(trainer, self.every_n_steps) or (self._first and log_pace(trainer) > 0)):
            return
        if unscales_inside(trainer, optimizer):
            self._say_once(
                "scaled",
                f"gradient norms are scaled, not shown: {type(optimizer).__name__} unscales inside its own step; "
                "take its foreach form (fused=False) to see them",
            )
            return
        index = next(i for i, held in enumerate(trainer.optimizers) if held is getattr(optimizer, "optimizer", optimizer))
        self._before[index] = (reading, reading.norms)
        for name in reading.none:
            self._say_once(name, f"{name} has no gradient (None) at step {trainer.global_step + 1}")

    def _after_step(self, index: int, optimizer: Optimizer) -> None:
        self._backward = False
        if index in self._before:
            reading, before = self._before.pop(index)
            after = GradientReading(reading.parameters)
            after.norms  # noqa: B018  computed now: the next backward overwrites the gradients
            self._taken[index] = (reading, before, after)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._taken or self.ledger is None:
            return
        taken = [self._taken[index] for index in sorted(self._taken)]
        outside = self.ledger.outside(trainer.optimizers)
        self._taken.clear()
        self._first = False
        vectors = [vector for _, early, late in taken for vector in (early, late.norms)]
        *norms, norms_outside = to_host([*vectors, outside.norms])
        before: dict[str, float] = {}
        after: dict[str, float] = {}
        for (reading, _, late), early_norms, late_norms in zip(taken, norms[0::2], norms[1::2], strict=True):
            before |= zip(reading.names, early_norms, strict=True)
            after |= zip(late.names, late_norms, strict=True)
        unheld = dict(zip(outside.names, norms_outside, strict=True))
        self.none = [name for reading, _, _ in taken for name in reading.none] + outside.none
        for name in outside.none:
            self._say_once(name, f"{name} has no gradient (None) at step {trainer.global_step}, and no optimizer holds it")
        self._rows.append((trainer.global_step, before | unheld))
        self._order += [name for name in before if name not in self._order]
        scalars = {
            "grad_norm/total": math.hypot(*before.values()),
            "grad_norm/total_clipped": math.hypot(*after.values()),
            "grad_norm/none_count": float(len(self.none)),
        }
        if self.per_parameter:
            scalars |= {f"grad_norm/{name}": value for name, value in (before | unheld).items()}
            scalars |= {f"grad_norm_clipped/{name}": value for name, value in after.items()}
        log_scalars(trainer, scalars)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._steps.detach()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._steps.detach()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._steps.detach()
        self.ledger = None

    def _packed(self, rows: Sequence[Row]) -> dict[str, Any]:
        matrix = [[row.get(name, math.nan) for name in self._order] for _, row in rows]
        norms = torch.tensor(matrix, dtype=torch.float64).reshape(len(rows), len(self._order))
        return {"steps": [step for step, _ in rows], "norms": norms}

    def _unpacked(self, packed: dict[str, Any]) -> list[Row]:
        found = []
        for step, norms in zip(packed["steps"], packed["norms"].tolist(), strict=True):
            found.append((step, {name: n for name, n in zip(self._order, norms, strict=True) if not math.isnan(n)}))
        return found

    def _say_once(self, key: str, sentence: str) -> None:
        if key not in self._said:
            self._said.add(key)
            log.warning(sentence)
