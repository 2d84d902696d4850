"""Two places where Lightning's training loop does otherwise in several processes than in one, put right.

A batch without any observed target is passed over by all processes alike: in one process `training_step` returns None for
it, in several Lightning refuses that, because it cannot know that all do. And before every batch it asks the device whether
rank 0 has received SIGTERM, for which a GPU must halt; callbacks/stopping.py asks on the CPU, and for all.
"""

from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.loops.optimization.automatic import ClosureResult, _AutomaticOptimization
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer import call

from statewise.parallel.shards import sharded


class PassesOver(_AutomaticOptimization):
    """Takes None from `training_step` as one process does: no backward pass, an optimiser step over what was accumulated."""

    def _training_step(self, kwargs: Any) -> ClosureResult:
        trainer = self.trainer
        output = call._call_strategy_hook(trainer, "training_step", *kwargs.values())
        accumulated = trainer.accumulate_grad_batches > 1 and not trainer.fit_loop._should_accumulate()
        if output is None and accumulated and isinstance(trainer.strategy, DDPStrategy):  # others sum at every batch
            average_gradients(trainer)
        return self.output_result_cls.from_training_step_output(output, trainer.accumulate_grad_batches)


@torch.no_grad()
def average_gradients(trainer: L.Trainer) -> None:
    """What the backward pass that is left out would have done with the gradients that were accumulated before it."""
    for parameter in trainer.lightning_module.parameters():
        # fully_shard sums into the parts at every backward pass, also where gradients are accumulated.
        if parameter.grad is not None and not sharded(parameter):
            dist.all_reduce(parameter.grad)
            parameter.grad /= trainer.world_size


def adapt(trainer: L.Trainer) -> None:
    """Put the loops of a trainer of several processes right; to be called before it is used."""
    loop: Any = trainer.fit_loop.epoch_loop
    loop.automatic_optimization = PassesOver(trainer)
    loop._broadcast_sigterm_tensor = lambda: None
