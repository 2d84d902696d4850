"""Looks ahead, at the first batch, at what the schedulers will do to the learning rates."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from statewise.health.observer import Observer, Run
from statewise.health.signals import Signal
from statewise.health.steps.schedule import CannotForesee, Forecast, forecast

# Below this part of its peak a learning rate counts as 0.
_NOTHING = 1e-9


@dataclass(frozen=True)
class GroupAhead:
    """One group's learning rate over the planned steps."""

    group: int
    # Steps at 0 from the start on, at the end, and altogether.
    leading: int
    trailing: int
    zero: int
    # Another group of the run has an lr above 0 while this one is at 0 in the beginning.
    others_first: bool
    # T_max of a cosine that counts epochs and is stepped once a step, else None.
    epochs_as_steps: int | None


@dataclass(frozen=True)
class RatesAhead(Signal):
    """The learning rates of one optimizer over all steps that are planned."""

    waiting: ClassVar[str] = "no scheduler sets a learning rate"

    optimizer: int
    planned: int
    interval: str
    kind: str
    groups: tuple[GroupAhead, ...]


class Lookahead(Observer):
    """Attributes: foreseen: optimizers whose learning rates are known up to the end of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.foreseen: set[int] = set()

    def begin_batch(self, run: Run, batch: Any) -> Iterable[Signal]:
        """Once: by the first batch what is planned is known."""
        return self._look(run) if run.batch == 1 else ()

    def _look(self, run: Run) -> Iterator[Signal]:
        for schedule in run.setting.schedules:
            number = schedule.optimizer
            # Two schedulers of one optimizer act on each other.
            if number is None or sum(other.optimizer == number for other in run.setting.schedules) > 1:
                continue
            try:
                ahead = forecast(schedule, run.setting, run.module, run.step)
            except CannotForesee as error:
                self.unable[RatesAhead] = str(error)
                continue
            self.foreseen.add(number)
            groups = [index for index, group in enumerate(run.inventory.groups) if group.optimizer == number]
            kind = type(schedule.scheduler).__name__
            yield RatesAhead(number, ahead.end - run.step, schedule.interval, kind, _groups(run, groups, ahead))


def _groups(run: Run, groups: list[int], ahead: Forecast) -> tuple[GroupAhead, ...]:
    peak = np.abs(ahead.rates).max(axis=0)
    zero = np.abs(ahead.rates) <= _NOTHING * peak
    lengths = np.diff([*ahead.starts, ahead.end])
    elsewhere = any(group.lr > 0 for index, group in enumerate(run.inventory.groups) if index not in groups)
    found = []
    for column, group in enumerate(groups):
        row = zero[:, column]
        first, last = (int(np.argmin(row)), int(np.argmin(row[::-1]))) if not row.all() else (len(row), len(row))
        others = elsewhere or bool((~zero[0]).any())
        found.append(
            GroupAhead(
                group=group,
                leading=int(lengths[:first].sum()),
                trailing=int(lengths[len(row) - last :].sum()) if not row.all() else 0,
                zero=int(lengths[row].sum()),
                others_first=others and bool(row[0]),
                epochs_as_steps=ahead.epochs_as_steps,
            )
        )
    return tuple(found)
