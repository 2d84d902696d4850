"""What a copy of a LightningModule is given in place of trainer, optimizers and loggers, so that a trial changes nothing."""

import functools
from collections.abc import Callable, Sized
from typing import Any

import lightning as L
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from statewise.health.probes.stage import Feed, StopStep


class StandIn:
    """Answers questions like the real thing, and does nothing.

    For a trainer, an optimizer or a scheduler of the copy. `answers` replaces attributes, and calls to `silent` ones are
    swallowed.
    """

    def __init__(self, real: Any, silent: frozenset[str], **answers: Any) -> None:
        vars(self).update(answers, _real=real, _silent=silent)

    def __getattr__(self, name: str) -> Any:
        if name in self._silent:
            return lambda *args, **kwargs: None
        return getattr(self._real, name)


_ACTIONS = frozenset({"step", "zero_grad", "load_state_dict", "add_param_group", "toggle_model", "save_checkpoint"})


def quieten(trainer: L.Trainer, copy: nn.Module, logged: dict[str, Any]) -> None:
    """Prepare a copy of a LightningModule for one trial step; what the step logs goes into `logged`."""

    def keep(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        logged[name] = value

    def stop(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        raise StopStep(loss)

    def nothing(*args: Any, **kwargs: Any) -> None:
        return

    optimizers = [
        StandIn(optimizer, _ACTIONS, param_groups=[dict(group) for group in optimizer.param_groups])
        for optimizer in trainer.optimizers
    ]
    schedulers = [StandIn(config.scheduler, _ACTIONS) for config in trainer.lr_scheduler_configs]
    stand_ins: dict[str, Any] = {
        "_trainer": StandIn(trainer, _ACTIONS, logger=None, loggers=[], optimizers=optimizers),
        "log": keep,
        "manual_backward": stop,
        "optimizers": lambda *args, **kwargs: _one_or_all(optimizers),
        "lr_schedulers": lambda *args, **kwargs: _one_or_all(schedulers),
    }
    silent = ("print", "toggle_optimizer", "untoggle_optimizer", "clip_gradients")
    # Into the instance: the copy's own attributes win over the methods of its class.
    vars(copy).update(stand_ins | dict.fromkeys(silent, nothing))
    if getattr(type(copy), "on_train_batch_start", None) is not L.LightningModule.on_train_batch_start:
        vars(copy)["training_step"] = _begun(copy)


def _begun(copy: Any) -> Callable[..., Any]:
    """The training step behind the module's own `on_train_batch_start`, where some begin a new state."""
    step = copy.training_step

    @functools.wraps(step)
    def training_step(batch: Any, *rest: Any) -> Any:
        copy.on_train_batch_start(batch, *(rest[:1] or (0,)))
        return step(batch, *rest)

    return training_step


def feed(trainer: L.Trainer) -> Feed:
    """What the loader of the training batches says about them."""
    loader = trainer.train_dataloader
    accumulate = 1 if not trainer.lightning_module.automatic_optimization else trainer.accumulate_grad_batches
    if not isinstance(loader, DataLoader) or loader.batch_size is None:
        return Feed(accumulate=accumulate)
    if isinstance(loader.dataset, IterableDataset):
        return Feed(loader.batch_size, accumulate=accumulate)
    rows = len(loader.sampler) if isinstance(loader.sampler, Sized) else 0
    left = 0 if loader.drop_last or rows < loader.batch_size else rows % loader.batch_size
    ordered = isinstance(loader.sampler, SequentialSampler)
    return Feed(loader.batch_size, left or None, not ordered, 0 < rows <= loader.batch_size, accumulate)


def _one_or_all(things: list[StandIn]) -> Any:
    return things[0] if len(things) == 1 else things or None
