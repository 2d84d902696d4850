"""What a learning rate scheduler will do over the steps that are planned, found out on a copy of it."""

import copy
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, ReduceLROnPlateau

from statewise.health.setting import Schedule, Setting

# Steps of the copy; more are looked at only where any of them can be computed directly.
_STEPS = 2000
_SAMPLES = 300


class CannotForesee(Exception):
    """Why a schedule cannot be evaluated ahead, for a sentence."""


@dataclass(frozen=True)
class Forecast:
    """Learning rates [points, groups] of the optimizer steps from `starts` on (each up to the next start or `end`)."""

    starts: np.ndarray
    rates: np.ndarray
    end: int
    # A cosine that was given as many steps as there are epochs, and is stepped once a step: its T_max, else None.
    epochs_as_steps: int | None


def forecast(schedule: Schedule, setting: Setting, module: nn.Module, step: int) -> Forecast:
    """Evaluate over the planned optimizer steps, from `step` on, without touching the scheduler or its optimizer."""
    scheduler, planned = schedule.scheduler, setting.planned_steps
    if planned is None:
        raise CannotForesee("the number of steps is not known")
    if not schedule.interval:
        raise CannotForesee("the loop steps the scheduler by itself")
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        raise CannotForesee(f"{type(scheduler).__name__} follows a metric or is no scheduler of torch")
    every = schedule.frequency
    if schedule.interval == "epoch":
        if setting.batches_per_epoch is None:
            raise CannotForesee("the length of an epoch is not known")
        every *= max(-(-setting.batches_per_epoch // setting.accumulate), 1)
    count = max(-(-(planned - step) // every), 1)
    try:
        points, rates = _evaluate(_copied(scheduler, module), count)
    except Exception as error:
        # Schedulers call what users gave them.
        raise CannotForesee(f"a copy of {type(scheduler).__name__} could not be stepped: {error}") from error
    length = getattr(scheduler, "T_max", None) if isinstance(scheduler, CosineAnnealingLR) else None
    mistaken = schedule.interval == "step" and length == setting.planned_epochs and count > 2 * (length or count)
    return Forecast(step + every * points, rates, planned, length if mistaken else None)


def _copied(scheduler: LRScheduler, module: nn.Module) -> LRScheduler:
    """A copy that sets the learning rates of a stand-in: the optimizer's state may be large, and is the run's own."""
    groups = scheduler.optimizer.param_groups
    stand_in = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)]} for _ in groups], lr=0.0)
    for own, group in zip(stand_in.param_groups, groups, strict=True):
        own |= {key: copy.copy(value) for key, value in group.items() if key != "params"}
    # A factor may be a method of the module: that is read, not copied.
    return copy.deepcopy(scheduler, {id(scheduler.optimizer): stand_in, id(module): module})


def _evaluate(scheduler: LRScheduler, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of scheduler steps from now, and the learning rates after as many."""

    def now() -> list[float]:
        return [float(group["lr"]) for group in scheduler.optimizer.param_groups]

    if count > _STEPS:
        points = np.unique(np.linspace(0, count - 1, _SAMPLES).astype(np.int64))
        first = scheduler.last_epoch
        if isinstance(scheduler, LambdaLR):
            pairs = list(zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True))
            return points, np.array([[float(base * factor(first + int(s))) for base, factor in pairs] for s in points])
        closed = getattr(scheduler, "_get_closed_form_lr", None)
        if closed is None:
            raise CannotForesee(f"{count} steps are too many for a schedule that is computed step by step")
        rates = []
        for point in points:
            scheduler.last_epoch = first + int(point)
            rates.append([float(rate) for rate in closed()])
        return points, np.array(rates)
    rates = [now()]
    with warnings.catch_warnings():
        # The stand-in is never stepped itself, which schedulers warn about.
        warnings.simplefilter("ignore")
        for _ in range(count - 1):
            scheduler.step()
            rates.append(now())
    return np.arange(count), np.array(rates)
