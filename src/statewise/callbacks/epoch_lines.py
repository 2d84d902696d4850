"""Writes one line to the log at the end of every epoch."""

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import lightning as L
from torch import Tensor

log = logging.getLogger(__name__)

METRICS = {"train/loss": ("train/loss_epoch", "train/loss"), "val/loss": ("val/loss",), "val/mse": ("val/mse",)}


class EpochLines(L.Callback):
    """Says after each epoch how far the run is, what its errors are, how fast it goes and how long it will still take.

    The line goes to the log whether or not there is a progress bar: a log is read later, and often by someone else.
    The speed is that of training alone; the time left includes validation.

    Attributes:
        samples: trained on since the fit began; those of a parent run do not count.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._samples = 0
        self._epochs = 0
        self._fit_started = self._epoch_started = self._paused = 0.0
        self._validation = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._epochs = self.samples = 0
        self._fit_started = time.perf_counter()
        self.on_train_epoch_start(trainer, pl_module)  # an epoch that is resumed midway does not start by itself

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._samples, self._validation = 0, 0.0
        self._epoch_started = time.perf_counter()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._paused = time.perf_counter()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validation += time.perf_counter() - self._paused

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        size = _batch_size(batch) * trainer.world_size
        self._samples += size
        self.samples += size

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        now = time.perf_counter()
        self._epochs += 1
        if trainer.is_global_zero:
            training = max(now - self._epoch_started - self._validation, 1e-9)
            per_epoch = (now - self._fit_started) / self._epochs
            log.info(self._line(trainer, speed=self._samples / training, per_epoch=per_epoch))
            digits = "  ".join(f"{name} {value!r}" for name, value in _metrics(trainer).items())
            log.debug("epoch %d to the last digit: %s", trainer.current_epoch + 1, digits)  # only train.log takes it

    def _line(self, trainer: L.Trainer, *, speed: float, per_epoch: float) -> str:
        done, planned = trainer.current_epoch + 1, trainer.max_epochs
        known = planned is not None and planned > 0
        parts = [f"epoch {done}/{planned}" if known else f"epoch {done}", f"step {trainer.global_step}"]
        parts += [f"{name} {value:.5g}" for name, value in _metrics(trainer).items()]
        if trainer.optimizers:
            parts.append(f"lr {float(trainer.optimizers[0].param_groups[0]['lr']):.3g}")
        parts.append(f"{speed:,.0f} samples/s")
        if known and planned is not None and done < planned:
            parts.append(f"{timedelta(seconds=round((planned - done) * per_epoch))} left")
        return "  ".join(parts)


def _metrics(trainer: L.Trainer) -> dict[str, float]:
    known = trainer.callback_metrics
    found = {name: next((known[key] for key in keys if key in known), None) for name, keys in METRICS.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def _batch_size(batch: Any) -> int:
    """Rows of the first tensor in a batch of any shape; 0 where it holds none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((size for entry in batch if (size := _batch_size(entry))), 0)
    return 0
