"""What a copy of a LightningModule is given in place of trainer, optimizers and loggers, so that a trial changes nothing."""

from typing import Any

import lightning as L
from torch import Tensor, nn

from statewise.health.rehearsal import StopStep


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


def _one_or_all(things: list[StandIn]) -> Any:
    return things[0] if len(things) == 1 else things or None
