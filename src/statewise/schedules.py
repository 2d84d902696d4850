"""Learning rate schedules, in optimiser steps; a resumed run follows the one that it plans anew over its own length."""

import logging
import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

log = logging.getLogger(__name__)


def warmup_cosine(
    optimizer: Optimizer, total_steps: int | float, *, warmup_steps: int = 100, final_fraction: float = 0.0
) -> LambdaLR:
    """Linear warm-up, then half a cosine from the full learning rate to `final_fraction` of it at the run's end.

    Counted in optimiser steps. Step k (from 0) of the warm-up uses (k + 1) / warmup_steps, and the end of the cosine
    belongs to the step after the last: no step of the run has a learning rate of 0.

    Args:
        optimizer: whose learning rates are the full ones.
        total_steps: optimiser steps of the whole run.
        warmup_steps: a warm-up that leaves nothing of the run is shortened to a tenth of it, and that is logged.
        final_fraction: from 0 to 1.

    Raises:
        ValueError: an argument is out of range, or the length of the run is not known.
    """
    if not math.isfinite(total_steps):
        raise ValueError("scheduler=warmup_cosine needs a known length: set trainer.max_epochs, or scheduler=constant")
    if not 0.0 <= final_fraction <= 1.0:
        raise ValueError(f"scheduler.final_fraction must be from 0 to 1, got {final_fraction}")
    warmup = _warmup(warmup_steps, total_steps)
    length = max(1.0, total_steps - warmup)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = min(1.0, (step - warmup) / length)
        return final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return _schedule(optimizer, factor)


def cosine(optimizer: Optimizer, total_steps: int | float, *, final_fraction: float = 0.0) -> LambdaLR:
    """Half a cosine over the whole run: `warmup_cosine` without the warm-up."""
    if not math.isfinite(total_steps):
        raise ValueError("scheduler=cosine needs a known length: set trainer.max_epochs, or scheduler=constant")
    return warmup_cosine(optimizer, total_steps, warmup_steps=0, final_fraction=final_fraction)


def onecycle(
    optimizer: Optimizer,
    total_steps: int | float,
    *,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    cycle_momentum: bool = True,
) -> OneCycleLR:
    """One cycle (Smith and Topin 2018), as torch computes it: up to the full learning rate, and down to nearly nothing.

    Args:
        optimizer: whose learning rates are the largest ones.
        total_steps: optimiser steps of the whole run.
        pct_start: the share of them in which the rate rises.
        div_factor: the full rate over that of the first step.
        final_div_factor: that of the first step over that of the last.
        cycle_momentum: move the momentum (or the first beta) from 0.95 to 0.85 and back, against the rate.

    Raises:
        ValueError: an argument is out of range, or the length of the run is not known or too short.
    """
    if not math.isfinite(total_steps):
        raise ValueError("scheduler=onecycle needs a known length: set trainer.max_epochs, or scheduler=constant")
    if not 0.0 < pct_start < 1.0:
        raise ValueError(f"scheduler.pct_start must be between 0 and 1, both excluded, got {pct_start}")
    for key, value in {"div_factor": div_factor, "final_div_factor": final_div_factor}.items():
        if not 1.0 <= value < math.inf:
            raise ValueError(f"scheduler.{key} must be a number of at least 1, got {value}")
    if not pct_start * total_steps > 1.0:
        raise ValueError(
            f"scheduler.pct_start={pct_start} of a run of {int(total_steps)} steps leaves no step in which the rate rises: "
            "take a larger share, a longer run or scheduler=cosine"
        )
    return _OneCycle(
        optimizer,
        max_lr=[group["lr"] for group in optimizer.param_groups],
        total_steps=int(total_steps),
        pct_start=pct_start,
        div_factor=div_factor,
        final_div_factor=final_div_factor,
        cycle_momentum=cycle_momentum,
    )


class _OneCycle(OneCycleLR):
    """Saves where it stands and not its length, which the run that goes on may have changed."""

    POSITION = ("last_epoch", "_step_count", "_last_lr")

    def state_dict(self) -> dict[str, Any]:
        return {key: vars(self)[key] for key in self.POSITION}


def constant(optimizer: Optimizer, total_steps: int | float, *, warmup_steps: int = 0) -> LambdaLR:
    """The full learning rate throughout, after a linear warm-up if there is one: arguments as in `warmup_cosine`."""
    warmup = _warmup(warmup_steps, total_steps)
    return _schedule(optimizer, lambda step: (step + 1) / warmup if step < warmup else 1.0)


def _warmup(warmup_steps: int, total_steps: int | float) -> int:
    if warmup_steps < 0:
        raise ValueError(f"scheduler.warmup_steps must be at least 0, got {warmup_steps}")
    if 0 < total_steps <= warmup_steps:
        shorter = int(total_steps) // 10
        log.warning(
            "scheduler.warmup_steps=%d is as long as the run of %d steps: the warm-up is shortened to %d",
            warmup_steps,
            total_steps,
            shorter,
        )
        return shorter
    return warmup_steps


def _schedule(optimizer: Optimizer, factor: Callable[[int], float]) -> LambdaLR:
    """With a plain function: LambdaLR does not save those, so a resumed run follows the schedule it plans anew."""
    return LambdaLR(optimizer, factor)
