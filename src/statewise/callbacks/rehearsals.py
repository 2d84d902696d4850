"""Trials of a Trainer's steps on a copy of the module: when, how often, and with what around them."""

from functools import partial
from typing import Any

import lightning as L

from statewise.callbacks.stand_ins import feed, quieten
from statewise.health import Finding, HealthMonitor
from statewise.health.probes.rehearsal import Feed, Stage


class Rehearsals:
    """Each step once in a fit, and again while its batches could not show what was asked."""

    def __init__(self, monitor: HealthMonitor) -> None:
        self._monitor = monitor
        self._tried: set[str] = set()

    def hold(
        self, trainer: L.Trainer, shared: L.Callback, step_name: str, batch: Any, batch_idx: int, step: int
    ) -> list[Finding]:
        """Try `step_name` if it is due. shared: a callback that the copy must not copy."""
        # The monitor says when it has asked often enough.
        if step_name in self._tried and step_name not in self._monitor.ask_again:
            return []
        self._tried.add(step_name)
        context = trainer.precision_plugin
        stage = Stage(
            prepare=partial(quieten, trainer),
            shared=[
                trainer,
                getattr(trainer, "datamodule", None),
                trainer.strategy,
                *trainer.loggers,
                *trainer.optimizers,
                shared,
            ],
            context=context.train_step_context if step_name == "training_step" else context.val_step_context,
            feed=feed(trainer) if step_name == "training_step" else Feed(),
        )
        return self._monitor.rehearse(step_name, batch, batch_idx, stage, step)
