"""Makes a resumed run repeat what the uninterrupted run would have done."""

from typing import Any

import lightning as L
import torch


class ExactOrder(L.Callback):
    """Seeds torch from the position in the run before every batch and tells the data module which batches are done.

    Dropout then depends on (seed, epoch, batch) only, never on how often the run was interrupted before.

    Args:
        seed: the run's seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        batches = max(int(trainer.num_training_batches), 1)
        position = trainer.current_epoch * batches + batch_idx
        torch.manual_seed((self.seed * 1_000_003 + position) % 2**63)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.datamodule.batches_done(trainer.current_epoch, batch_idx + 1)  # type: ignore[attr-defined]
