"""When a real optimiser step happens, and on which step of the log it is shown."""

from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
from torch.optim import Optimizer


class RealSteps:
    """Calls back after every real update of any optimizer of a fit, with the optimizer's index.

    Lightning's hooks do not tell: `on_train_batch_end` fires on batches that only accumulate,
    `on_before_optimizer_step` once per closure call of LBFGS and also before a step that a GradScaler skips. torch's
    own hook after `step` fires exactly once per update, when the weights are new and the clipped gradients still there.
    """

    def __init__(self) -> None:
        self._handles: list = []

    def attach(self, trainer: L.Trainer, after_step: Callable[[int, Optimizer], None]) -> None:
        """Register on every optimizer of the fit (in `on_fit_start`, where they exist)."""
        self.detach()
        for index, optimizer in enumerate(trainer.optimizers):

            def hook(stepped: Optimizer, args: object, kwargs: object, index: int = index) -> None:
                after_step(index, stepped)

            self._handles.append(optimizer.register_step_post_hook(hook))

    def detach(self) -> None:
        """Remove the hooks; harmless where there are none. To be called at the end of the fit and on an exception."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def log_index(trainer: L.Trainer) -> int:
    """The step under which Lightning writes this batch's metrics: batches that stepped before this one."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def log_pace(trainer: L.Trainer) -> int:
    """`trainer.log_every_n_steps`; 0 means that nothing is logged while training."""
    return int(trainer.log_every_n_steps)  # type: ignore[attr-defined]


def log_due(trainer: L.Trainer, every: int | None = None) -> bool:
    """Whether this batch is one that Lightning logs; `every` replaces `trainer.log_every_n_steps`, 0 means never."""
    pace = log_pace(trainer) if every is None else every
    return pace > 0 and (log_index(trainer) + 1) % pace == 0


def log_scalars(trainer: L.Trainer, scalars: Mapping[str, float]) -> None:
    """Write Python floats to every logger, past `self.log`, whose bookkeeping costs as much as a step's loop."""
    for logger in trainer.loggers:
        logger.log_metrics(dict(scalars), step=log_index(trainer))


def checkpoint_due(trainer: L.Trainer) -> bool:
    """Whether a checkpoint callback will write at the end of this batch because of its number of steps."""
    for callback in trainer.checkpoint_callbacks:
        every = getattr(callback, "every_n_steps", None) or getattr(callback, "_every_n_train_steps", None)
        if every and trainer.global_step > 0 and trainer.global_step % every == 0:
            return True
    return False


def loss_scaler(trainer: L.Trainer) -> Any | None:
    """The GradScaler of mixed precision, None where losses are not scaled."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler if scaler is not None and scaler.is_enabled() else None


def unscales_inside(trainer: L.Trainer, optimizer: Optimizer) -> bool:
    """Whether the unscaling is left to the optimizer's own step (fused forms): until then its gradients are scaled."""
    return loss_scaler(trainer) is not None and bool(getattr(optimizer, "_step_supports_amp_scaling", False))
