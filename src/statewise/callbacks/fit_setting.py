"""What a Trainer says about the loop around a module, and about what is planned."""

import math

import lightning as L
import torch
from torch.utils._pytree import tree_leaves

from statewise.health.setting import Schedule, Setting

_MODULE_ATTRIBUTES = frozenset(vars(L.LightningModule()))
_AUTOCAST = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def fit_setting(trainer: L.Trainer, module: L.LightningModule) -> Setting:
    """As far as it is known: lengths of epoch and run only once the Trainer has loaded the data (`on_train_start`)."""
    numbers = {id(optimizer): number for number, optimizer in enumerate(trainer.optimizers)}
    schedules = tuple(
        Schedule(config.scheduler, numbers.get(id(config.scheduler.optimizer)), config.interval, config.frequency)
        for config in trainer.lr_scheduler_configs
    )
    manual = not module.automatic_optimization
    return Setting(
        scheduled=frozenset(schedule.optimizer for schedule in schedules if schedule.optimizer is not None),
        manual=manual,
        accumulate=trainer.accumulate_grad_batches,
        scaler=getattr(trainer.precision_plugin, "scaler", None) is not None,
        skip=_MODULE_ATTRIBUTES,
        opaque=(L.Trainer, L.LightningDataModule, L.Callback, torch.utils.data.DataLoader),
        # In manual optimisation the module steps its schedulers by itself.
        schedules=tuple(Schedule(s.scheduler, s.optimizer) for s in schedules) if manual else schedules,
        planned_steps=None if manual else _steps(trainer),
        planned_epochs=_epochs(trainer),
        batches_per_epoch=_batches(trainer),
        workers=_workers(trainer),
        overfit=trainer.overfit_batches > 0,  # type: ignore[attr-defined]
        loaded=trainer.ckpt_path is not None,
        precision=str(trainer.precision),
        autocast=_AUTOCAST.get(str(trainer.precision)),
        world=trainer.world_size,
    )


def _batches(trainer: L.Trainer) -> int | None:
    # Asking before the loader exists would make the Trainer load it, earlier than the module may expect.
    if trainer.train_dataloader is None or math.isinf(trainer.num_training_batches):
        return None
    return int(trainer.num_training_batches)


def _workers(trainer: L.Trainer) -> int:
    loaders = tree_leaves(trainer.train_dataloader)
    return max((int(getattr(loader, "num_workers", 0)) for loader in loaders), default=0)


def _epochs(trainer: L.Trainer) -> int | None:
    return trainer.max_epochs if trainer.max_epochs is not None and trainer.max_epochs >= 0 else None


def _steps(trainer: L.Trainer) -> int | None:
    batches, epochs = _batches(trainer), _epochs(trainer)
    limits = [trainer.max_steps] if trainer.max_steps >= 0 else []
    if batches is not None and epochs is not None:
        limits.append(math.ceil(batches / trainer.accumulate_grad_batches) * epochs)
    return min(limits, default=None)
