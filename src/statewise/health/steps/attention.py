"""How closely the batches of a run are followed: watched, quiet, or slept through; Duty says what may be spent on it."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from statewise.health.steps.duty import Duty

# How often a parameter may become another object before that is looked at less often, and how often then.
_RECREATIONS, _SELDOM = 5, 50
# Quiet batches in which that is looked at once.
_BETWEEN = 8
# Optimizer steps slept through after a quiet one: with cold caches a call is dear, however little it does.
_SLEEP = 4
# Looks at the graph of a loss: in the first batches, then at a distance that grows with the run between these two.
_NEAREST_LOOK, _FARTHEST_LOOK = 50, 1000


class Attention:
    """Decides batch by batch. Batches are counted by the caller, from 1. by_count: of processes that must decide alike.

    Attributes:
        duty: which steps are watched.
        quiet: whether nobody but a few observers hears of this batch.
        asleep: whether not even they do.
    """

    def __init__(self, planned: int | None = None, by_count: bool = False) -> None:
        self.duty = Duty()
        self.duty.planned, self.duty.by_count = planned, by_count
        self.quiet = self.asleep = False
        self._nap = self._slept = 0
        self._compared = -_SELDOM
        self._next_look = _NEAREST_LOOK

    def compares(self, batch: int | None, recreated: int) -> bool:
        """Whether it is asked now if anything is another object. Where that happens all the time it is asked now and then."""
        every = _SELDOM if recreated >= _RECREATIONS else 1 if self.duty.throughout else _BETWEEN
        number = every if batch is None else batch
        if number - self._compared < every:
            return False
        self._compared = number
        return True

    def sleeps_on(self) -> bool:
        """A batch begins: whether it is slept through."""
        if not self.asleep:
            return False
        self.asleep = self._slept < self._nap
        self._slept += self.asleep
        return self.asleep

    def stays_quiet(self, question: bool) -> bool:
        """A batch begins that is not slept through: whether it is quiet, because nothing asks for more."""
        self.quiet = not (self.duty.watching or question)
        return self.quiet

    def looks(self, batch: int) -> bool:
        """Whether the graph of this batch's loss is due for a look."""
        due = batch <= 2 or (batch <= 32 and batch % 4 == 0)
        if batch >= self._next_look:
            due = True
            self._next_look = batch + min(max(batch // 2, _NEAREST_LOOK), _FARTHEST_LOOK)
        return due

    def updated(self, suspicion: bool, accumulate: int) -> bool:
        """A batch ended with an update: whether the step that comes is watched."""
        watching = self.duty.next(suspicion, 1 + self._slept // max(accumulate, 1))
        self._slept = 0
        return watching

    def rest(self, accumulate: int) -> None:
        """Nothing is left to hear: sleep for a few steps, unless the one that comes is watched or this one was."""
        # Sleep is as long as one process finds nothing to hear; where they count together none may be away.
        if self.quiet and not self.duty.watching and not self.duty.by_count:
            self.asleep, self._nap = True, _SLEEP * max(accumulate, 1)


class _Attentive(Protocol):
    attention: Attention


S = TypeVar("S", bound=_Attentive)
P = ParamSpec("P")
R = TypeVar("R")


def timed(event: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """What an event of every step costs goes on the account that decides how many steps are watched closely."""

    @wraps(event)
    def counted(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        duty = self.attention.duty
        duty.enter()
        try:
            return event(self, *args, **kwargs)
        finally:
            duty.leave()

    return cast("Callable[Concatenate[S, P], R]", counted)
