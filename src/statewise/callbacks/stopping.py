"""Ends a run early at a place from which it can be continued exactly."""

import signal
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from statewise.callbacks.checkpoints import BestAndLast, accumulates, last_of_epoch, validates_next
from statewise.interrupts import ASKING
from statewise.parallel.ranks import summed, together


class StoppedEarly(Exception):
    """Ends `Trainer.fit` after ``last.ckpt`` was written; the message says why."""


class Stopping(Checkpoint):  # Lightning runs checkpoint callbacks last: everything of the batch has happened then
    """Stops after a number of steps or epochs, or when `request` was called (by a signal), without changing the plan.

    `trainer.max_epochs` stays the planned length and the schedule stays planned over it, so that the run, resumed, ends with
    the weights of the uninterrupted one. Lightning's own ways to stop would close the epoch first. The checkpoint is written
    at the end of the batch, and the run ends before the next one begins: in between Lightning logs what it knows of the step.

    A request is met at the end of any batch, also of one that only accumulates (exact_order.py keeps its gradients), and
    after the validation where one is going on. Several processes stop together as soon as one of them was asked to.

    Args:
        checkpoints: writes the last checkpoint before the run stops.
        after_steps: stop after so many optimiser steps, counted from the very start of the run.
        after_epochs: stop after so many epochs, counted likewise.
    """

    def __init__(self, checkpoints: BestAndLast, *, after_steps: int | None = None, after_epochs: int | None = None) -> None:
        for key, value in {"stop_after_steps": after_steps, "stop_after_epochs": after_epochs}.items():
            if value is not None and value < 1:
                raise ValueError(f"trainer.{key} must be at least 1 or null, got {value}")
        self.checkpoints = checkpoints
        self.after_steps = after_steps
        self.after_epochs = after_epochs
        self.requested: signal.Signals | None = None
        self.fitting = False
        self._stop: str | None = None

    def request(self, by: signal.Signals) -> None:
        """Stop at the end of the batch that is being trained."""
        self.requested = by

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.fitting, self._stop = True, None
        if self.after_steps is not None and trainer.global_step >= self.after_steps:
            raise StoppedEarly(f"trainer.stop_after_steps={self.after_steps} was reached before this run began")

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop_if_due()

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self._stop_if_due()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not (last_of_epoch(trainer) or validates_next(trainer)):
            self._save_and_stop(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.fitting and not trainer.sanity_checking and not last_of_epoch(trainer):
            self._save_and_stop(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        reason = self._reason(trainer)
        if self.after_epochs is not None and trainer.current_epoch + 1 >= self.after_epochs:
            reason = reason or f"after epoch {trainer.current_epoch + 1} (trainer.stop_after_epochs)"
        self._stop = reason  # a run that has no further epoch never comes to it, and is complete

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.fitting = False

    def _save_and_stop(self, trainer: L.Trainer) -> None:
        if reason := self._reason(trainer):
            self.checkpoints.save_last(trainer)
            self._stop = reason

    def _stop_if_due(self) -> None:
        if self._stop is not None:
            raise StoppedEarly(self._stop)

    def _reason(self, trainer: L.Trainer) -> str | None:
        if together():
            asked = summed(torch.tensor([self.requested == known for known in ASKING], dtype=torch.int64))
            self.requested = next((known for known, count in zip(ASKING, asked.tolist(), strict=True) if count), None)
        if self.requested is not None:
            return f"interrupted by {self.requested.name}"
        if self.after_steps is not None and trainer.global_step >= self.after_steps and not accumulates(trainer):
            return f"after step {trainer.global_step} (trainer.stop_after_steps)"
        return None
