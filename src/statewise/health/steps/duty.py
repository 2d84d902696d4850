"""Which steps are compared closely, so that watching stays a small share of the time that training takes."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median

# A run of this many planned steps is watched throughout: there correctness matters more than the time it takes.
SHORT_RUN = 300
# Steps at the start that are always watched, and how many where the length of the run is not known.
FULL_STEPS, FULL_UNPLANNED = 50, 150
# A verdict on values needs this many steps one after another.
BURST = 6
# However dear, a burst comes at least this often.
LONGEST_PAUSE = 300
# A suspicion is followed up on credit, up to the cost of this many steps.
_CREDIT_STEPS = 120
# Part of the allowance that is spent on purpose; the rest is for what the clock here does not see.
_MARGIN = 0.7


def allowance(step: float) -> float:
    """Seconds that watching may take of a step of so many seconds: 1 %, of short ones 5 %, but 0.25 ms at most."""
    return max(min(0.05 * step, 2.5e-4), 0.01 * step)


class Duty:
    """Bursts of watched steps, as often as the time of a step pays for. Where every step can be paid, all are watched.

    The first 50 steps are watched (150 where the length of the run is not known), and every step of a run of at most 300
    planned ones. After that each step adds its allowance and takes off what watching it cost; with a balance above zero the
    next burst of six begins. A suspicion begins one at once. Measured at 136 parameters on one core: a watched step costs
    about 4 ms, one between bursts 0.1 ms on average. So a burst comes about every 150 steps of 50 ms, and every 300 of 5 ms,
    which is the longest pause there is; a fault of the values that begins late, and that nothing in between shows, is met
    that late. Small models are watched at every step, because they pay for it.

    Processes that can answer together only have no clock in common: `by_count` leaves the burst after the longest pause, and
    the one that a suspicion begins.

    Args:
        clock: seconds that go on; injected by tests.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.planned: int | None = None
        self.by_count = False
        self.watching = True
        self._steps = 0
        self._left = FULL_STEPS
        self._since = 0
        self._balance = 0.0
        self._depth = 0
        self._entered = self._spent = 0.0
        self._last: float | None = None
        self._times: deque[float] = deque(maxlen=16)
        self._dear = 0.0

    def enter(self) -> None:
        """Watching begins to use time."""
        if self._depth == 0:
            self._entered = self._clock()
        self._depth += 1

    def leave(self) -> None:
        """It ends."""
        self._depth -= 1
        if self._depth == 0:
            self._spent += self._clock() - self._entered

    @property
    def throughout(self) -> bool:
        """Whether every step is watched at the moment, be it the beginning or a short run."""
        return self._steps < self._beginning or (self.planned is not None and self.planned <= SHORT_RUN)

    @property
    def _beginning(self) -> int:
        return FULL_STEPS if self.planned is not None else FULL_UNPLANNED

    def again(self) -> None:
        """Parameters or groups are other objects: nothing is known of them yet."""
        self._left = max(self._left, BURST)

    def next(self, suspicion: bool, steps: int = 1) -> bool:
        """So many steps were made: whether the one that comes is watched."""
        now = self._clock()
        spent, self._spent = self._spent, 0.0
        if self._last is not None:
            self._times.append(max(now - self._last - spent, 0.0) / steps)
        self._last = now
        self._steps += steps
        self._left -= 1
        self._since = 0 if self.watching else self._since + steps
        if self._steps > self._beginning and self._times:
            self._balance = min(self._balance + steps * _MARGIN * allowance(median(self._times)) - spent, 0.0)
        if self.watching:
            self._dear = max(0.9 * self._dear, spent)
        if self.throughout and self._steps >= self._beginning:
            self.watching = True
            return True
        if self.by_count:
            due = suspicion or self._since >= LONGEST_PAUSE
        else:
            paid = self._balance >= 0.0 or self._since >= LONGEST_PAUSE
            due = paid or (suspicion and self._balance > -_CREDIT_STEPS * self._dear)
        if self._left <= 0 and due:
            self._left = BURST
        self.watching = self._left > 0 or self.throughout
        return self.watching
