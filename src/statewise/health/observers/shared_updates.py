"""Parameters that two optimizers hold: does each of them compute its own gradient?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from statewise.health.observer import Observer, Run
from statewise.health.signals import Signal

# Times in a row: a loop may do so once while it begins.
_TIMES = 3


@dataclass(frozen=True)
class SharedUpdates(Signal):
    """Two optimizers stepped one after another without a backward pass in between, so many times; they share parameters."""

    waiting: ClassVar[str] = "no two optimizers hold the same parameter"

    parameters: tuple[str, ...]
    optimizers: tuple[int, int]
    times: int


class SharedUpdateWatch(Observer):
    """Counts steps that use the gradients of a step before."""

    def __init__(self) -> None:
        super().__init__()
        self._stepped: list[int] = []
        self._times: dict[tuple[int, int], int] = {}

    def start(self, run: Run) -> Iterator[Signal]:
        """Nothing was counted yet."""
        self._stepped, self._times = [], {}
        return iter(())

    def after_backward(self, run: Run) -> Iterator[Signal]:
        """New gradients."""
        self._stepped = []
        return iter(())

    def backward(self, run: Run, loss: Tensor) -> Iterator[Signal]:
        """New gradients, where nobody announces the end of the pass."""
        self._stepped = []
        return iter(())

    def after_update(self, run: Run, number: int) -> Iterator[Signal]:
        """Who has stepped since the last backward pass?"""
        if not run.inventory.repeated:
            return
        for earlier in self._stepped:
            if earlier == number:
                continue
            shared = _shared(run, earlier, number)
            if shared:
                pair = min(earlier, number), max(earlier, number)
                self._times[pair] = self._times.get(pair, 0) + 1
                if self._times[pair] == _TIMES:
                    yield SharedUpdates(shared, pair, _TIMES)
        self._stepped.append(number)


def _shared(run: Run, one: int, other: int) -> tuple[str, ...]:
    owner = [group.optimizer for group in run.inventory.groups]
    return tuple(
        name
        for name, places in run.inventory.repeated.items()
        if {one, other} <= {owner[place] for place in places} and _has_gradient(run, name)
    )


def _has_gradient(run: Run, name: str) -> bool:
    try:
        return run.module.get_parameter(name).grad is not None
    except AttributeError:
        return False
