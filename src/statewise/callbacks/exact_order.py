"""Makes a resumed run repeat what the uninterrupted run would have done."""

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from statewise.callbacks.checkpoints import accumulates
from statewise.parallel.ranks import summed, world_size
from statewise.parallel.shards import part_like, sharded, whole

GRADIENTS = "accumulated_gradients"  # the entry of a checkpoint that was written between two optimiser steps
STRIDE = 1_000_003  # of the seeds of two runs, a prime
FAR = 2_654_435_761  # of two processes: it shows in the lower 32 bits, and torch's generator on a CPU looks at no others


class ExactOrder(L.Callback):
    """Seeds from the position in the run before every batch, and tells the data module which batches are done.

    Dropout then depends on (seed, epoch, batch, rank) only, never on how often the run was interrupted before; so does
    whatever else draws from the global generators of torch, numpy or Python within a batch. A checkpoint that is written
    while gradients are accumulated holds them, as the mean over the processes.

    Args:
        seed: the run's seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._gradients: dict[str, Tensor] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        gradients, self._gradients = self._gradients, {}
        for name, parameter in pl_module.named_parameters():
            if name in gradients:
                parameter.grad = part_like(parameter, gradients[name].to(parameter.device))

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._sow(trainer, 0)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self._sow(trainer, batch_idx)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.datamodule.batches_done(trainer.current_epoch, batch_idx + 1)  # type: ignore[attr-defined]

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == TrainerFn.FITTING and accumulates(trainer):
            held = {name: p.grad for name, p in pl_module.named_parameters() if p.grad is not None}
            checkpoint[GRADIENTS] = {name: _mean(gradient) for name, gradient in held.items()}

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._gradients = dict(checkpoint.get(GRADIENTS, {}))

    def _sow(self, trainer: L.Trainer, batch_idx: int) -> None:
        batches = max(int(trainer.num_training_batches), 1)
        sow(self.seed, trainer.current_epoch * batches + batch_idx, trainer.global_rank)


def sow(seed: int, position: int, rank: int = 0) -> None:
    """Seed the global generators of torch, numpy and Python for the batch at this position of a run."""
    word = (seed * STRIDE + position + rank * FAR) % 2**63
    torch.manual_seed(word)
    random.seed(word)
    np.random.seed((word ^ word >> 32) % 2**32)  # noqa: NPY002  the global one is what foreign code draws from


def _mean(gradient: Tensor) -> Tensor:
    if sharded(gradient):
        return whole(gradient.detach()).cpu()  # every backward pass has taken the mean already
    return gradient.detach().clone() if world_size() == 1 else summed(gradient.detach().cpu()) / world_size()
