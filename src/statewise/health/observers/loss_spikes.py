"""A loss far above what it has been lately: a fact to know, no verdict."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from statewise.health.observer import Observer, Run
from statewise.health.signals import Signal

# Losses that are remembered, how many are needed, and how many standard deviations are a spike.
_WINDOW, _ENOUGH, _DEVIATIONS = 128, 64, 6.0


@dataclass(frozen=True)
class LossSpike(Signal):
    """One loss beside the mean and the standard deviation of those before it; value is NaN where there was no spike."""

    waiting: ClassVar[str] = "fewer than 64 losses were seen"

    value: float = math.nan
    mean: float = math.nan
    deviation: float = math.nan


class LossSpikes(Observer):
    """Keeps the last losses, each backward pass of a batch by itself: two losses of a step are not one series."""

    def __init__(self) -> None:
        super().__init__()
        self._losses: dict[int, deque[float]] = {}
        self._passes = 0

    def begin_batch(self, run: Run, batch: Any) -> Iterable[Signal]:
        """Backward passes are counted from here."""
        self._passes = 0
        return ()

    def backward(self, run: Run, loss: Tensor) -> Iterable[Signal]:
        """Ask for its value in the steps that are watched anyway."""
        if loss.numel() == 1 and any(update.watching for update in run.updates):
            run.readings.ask(loss, partial(self._judge, self._passes))
        self._passes += 1
        return ()

    def _judge(self, number: int, values: list[float]) -> Iterable[Signal]:
        past, value = self._losses.setdefault(number, deque(maxlen=_WINDOW)), values[0]
        known = len(past) >= _ENOUGH
        mean, deviation = (float(np.mean(past)), float(np.std(past))) if known else (math.nan, math.nan)
        if math.isfinite(value):
            past.append(value)
        if not known:
            return ()
        return (LossSpike(value, mean, deviation),) if value > mean + _DEVIATIONS * deviation > mean else (LossSpike(),)
