"""Keeps the best and the last checkpoint of a run."""

import math
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from statewise.checkpoints import ENTRY


class BestAndLast(Checkpoint):
    """Writes ``best.ckpt`` where the monitored metric is lowest and ``last.ckpt`` at the end of every epoch.

    At the last batch of an epoch nothing is written before the epoch has ended: Lightning resumes a checkpoint from inside
    that batch without training the rest of the run. Between epochs ``last.ckpt`` may be written every so many steps.

    Args:
        folder: where the two files go.
        entry: what `statewise.checkpoints.describe` returns; stored in each file.
        monitor: a metric to minimise; a value that is not finite is never the best.
        every_n_steps: also write ``last.ckpt`` after every so many optimiser steps.
    """

    def __init__(self, folder: Path, entry: dict[str, Any], *, monitor: str, every_n_steps: int | None = None) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"trainer.checkpoint_every_n_steps must be at least 1 or null, got {every_n_steps}")
        self.folder = folder
        self.entry = entry
        self.monitor = monitor
        self.every_n_steps = every_n_steps
        self.best_value = math.inf
        self.best_step: int | None = None
        self._improved = False

    @property
    def best(self) -> Path:
        return self.folder / "best.ckpt"

    @property
    def last(self) -> Path:
        return self.folder / "last.ckpt"

    def save_last(self, trainer: L.Trainer) -> None:
        """Write ``last.ckpt`` now."""
        trainer.save_checkpoint(self.last)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        due = self.every_n_steps is not None and trainer.global_step % self.every_n_steps == 0 and trainer.global_step > 0
        if due and not trainer.fit_loop.epoch_loop._should_accumulate() and batch_idx + 1 < trainer.num_training_batches:
            self.save_last(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or not trainer.fit_loop.epoch_loop.batch_progress.current.ready:
            return
        value = trainer.callback_metrics.get(self.monitor)
        number = float(value) if isinstance(value, Tensor | float) else math.nan
        if number < self.best_value:
            self.best_value, self.best_step = number, trainer.global_step
            if trainer.fit_loop.epoch_loop._num_ready_batches_reached():
                self._improved = True  # the same weights are written at the end of the epoch, a few lines of work away
            else:
                trainer.save_checkpoint(self.best)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._improved:
            self._improved = False
            trainer.save_checkpoint(self.best)
        self.save_last(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[ENTRY] = self.entry

    def state_dict(self) -> dict[str, Any]:
        return {"best_value": self.best_value, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_value, self.best_step = state_dict["best_value"], state_dict["best_step"]
