"""Keeps the best and the last checkpoint of a run."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from statewise.checkpoints import ENTRY, AtomicCheckpointIO, read_checkpoint
from statewise.checkpoints.atomic import same_file_as

log = logging.getLogger(__name__)


class BestAndLast(Checkpoint):
    """Writes ``best.ckpt`` where the monitored metric is lowest and ``last.ckpt`` at the end of every epoch.

    At the last batch of an epoch nothing is written before the epoch has ended: Lightning resumes a checkpoint from inside
    that batch without training the rest of the run. Likewise where a validation follows a batch: it would be left out.

    The two belong together whenever a run is broken off. Where the metric has improved ``last.ckpt`` is written first and
    then becomes ``best.ckpt`` as well: a ``last.ckpt`` whose best step is its own is itself the best, and to any other
    belongs the ``best.ckpt`` beside it.

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
        self._due = False  # a checkpoint, but not before the validation that comes first
        self._unlogged = False  # what Lightning logs of a step after the checkpoint of that step
        self._best_is_lost = False

    @property
    def best(self) -> Path:
        return self.folder / "best.ckpt"

    @property
    def last(self) -> Path:
        return self.folder / "last.ckpt"

    def take_over(self, path: Path, checkpoint: Mapping[str, Any], *, writes: bool = True) -> None:
        """Begin with the two files of the run that is continued: whatever ends this one early, nothing of it is lost.

        Args:
            path: where `checkpoint`, what it holds, was read.
            writes: whether it is this process that writes the folder.
        """
        known = checkpoint["callbacks"].get(self.state_key, {})
        step, beside = known.get("best_step"), path.with_name("best.ckpt")
        best: Path | None = path if step == checkpoint["global_step"] else beside
        if best == beside and step is not None and not (beside.is_file() and read_checkpoint(beside)["global_step"] == step):
            self._best_is_lost, best = True, None
            log.warning(
                "resume: the best checkpoint so far, of step %s, is not beside %s: the best one from here on is kept",
                step,
                path,
            )
        if writes and best is not None and step is not None:
            same_file_as(best, self.best)
        if writes:
            AtomicCheckpointIO().save_checkpoint({**checkpoint, ENTRY: self.entry}, self.last)

    def save_last(self, trainer: L.Trainer) -> None:
        """Write ``last.ckpt`` now, and what was logged until now."""
        trainer.save_checkpoint(self.last)
        if self._improved and trainer.is_global_zero:
            same_file_as(self.last, self.best)
        self._improved = self._due = False
        self._unlogged = True
        _flush_loggers(trainer)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if self._unlogged:
            self._unlogged = False
            _flush_loggers(trainer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        every = self.every_n_steps
        if every is None or trainer.global_step % every or not trainer.global_step or accumulates(trainer):
            return
        self._due = True
        if not (last_of_epoch(trainer) or validates_next(trainer)):
            self.save_last(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or not trainer.fit_loop.epoch_loop.batch_progress.current.ready:
            return
        value = trainer.callback_metrics.get(self.monitor)
        number = float(value) if isinstance(value, Tensor | float) else math.nan
        if number < self.best_value:
            self.best_value, self.best_step = number, trainer.global_step
            self._improved = True
        if (self._improved or self._due) and not last_of_epoch(trainer):  # else it is done a few lines of work away
            self.save_last(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.save_last(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[ENTRY] = self.entry

    def state_dict(self) -> dict[str, Any]:
        return {"best_value": self.best_value, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._best_is_lost:
            self.best_value, self.best_step = state_dict["best_value"], state_dict["best_step"]


def accumulates(trainer: L.Trainer) -> bool:
    """Whether the batch that has just been trained on only added to the gradients."""
    return bool(trainer.fit_loop.epoch_loop._should_accumulate())


def last_of_epoch(trainer: L.Trainer) -> bool:
    """Whether it was the last one of its epoch."""
    return bool(trainer.fit_loop.epoch_loop._num_ready_batches_reached())


def validates_next(trainer: L.Trainer) -> bool:
    """Whether a validation follows it."""
    fit = trainer.fit_loop
    return fit._data_fetcher is not None and bool(fit.epoch_loop._should_check_val_fx(fit._data_fetcher))


def _flush_loggers(trainer: L.Trainer) -> None:
    for logger in trainer.loggers:
        logger.save()
