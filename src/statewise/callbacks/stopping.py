"""Ends a run early at a place from which it can be continued exactly."""

import signal
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from statewise.callbacks.checkpoints import BestAndLast


class StoppedEarly(Exception):
    """Ends `Trainer.fit` after ``last.ckpt`` was written; the message says why."""


class Stopping(Checkpoint):  # Lightning runs checkpoint callbacks last: everything of the batch has happened then
    """Stops after a number of steps or epochs, or when `request` was called (by a signal), without changing the plan.

    `trainer.max_epochs` stays the planned length and the schedule stays planned over it, so that the run, resumed, ends with
    the weights of the uninterrupted one. Lightning's own ways to stop would close the epoch first.

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

    def request(self, by: signal.Signals) -> None:
        """Stop at the end of the batch that is being trained."""
        self.requested = by

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.fitting = True
        if self.after_steps is not None and trainer.global_step >= self.after_steps:
            raise StoppedEarly(f"trainer.stop_after_steps={self.after_steps} was reached before this run began")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.fit_loop.epoch_loop._should_accumulate() or batch_idx + 1 >= trainer.num_training_batches:
            return  # between two optimiser steps, or at the end of the epoch, where on_train_epoch_end looks
        if reason := self._reason(trainer):
            self.checkpoints.save_last(trainer)
            raise StoppedEarly(reason)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        reason = self._reason(trainer)
        if self.after_epochs is not None and trainer.current_epoch + 1 >= self.after_epochs:
            reason = reason or f"after epoch {trainer.current_epoch + 1} (trainer.stop_after_epochs)"
        if reason and trainer.current_epoch + 1 < (trainer.max_epochs or 0):
            raise StoppedEarly(reason)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.fitting = False

    def _reason(self, trainer: L.Trainer) -> str | None:
        if self.requested is None and self.after_steps is not None and trainer.global_step >= self.after_steps:
            return f"after step {trainer.global_step} (trainer.stop_after_steps)"
        return f"interrupted by {self.requested.name}" if self.requested else None
