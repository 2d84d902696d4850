"""Learning rates of 0: for how long each group of an optimizer has had one, and what may come after it."""

from collections.abc import Sequence

from torch.optim import Optimizer

from statewise.health.parameters import Inventory
from statewise.health.setting import Setting
from statewise.health.signals import LearningRate, LearningRates
from statewise.health.steps.updates import UpdateMonitor


def learning_rates(
    number: int,
    update: UpdateMonitor,
    optimizers: Sequence[Optimizer],
    inventory: Inventory,
    setting: Setting,
    step: int,
    foreseen: bool,
) -> LearningRates:
    """The groups of optimizer `number` after a step; none where every lr is above 0.

    foreseen: its schedule was evaluated over all planned steps.
    """
    if not any(update.lr_zero_run):
        return LearningRates(())
    now = [float(group.get("lr", 0.0)) for optimizer in optimizers for group in optimizer.param_groups]
    groups = [index for index, group in enumerate(inventory.groups) if group.optimizer == number]
    planned = setting.planned_steps
    return LearningRates(
        tuple(
            LearningRate(
                group=group,
                zero_run=int(run),
                scheduled=number in setting.scheduled,
                ever_positive=bool(positive),
                others_positive=any(lr > 0 for index, lr in enumerate(now) if index != group),
                remaining=None if planned is None else planned - step,
                foreseen=foreseen,
            )
            for group, run, positive in zip(groups, update.lr_zero_run, update.lr_positive, strict=False)
        )
    )
