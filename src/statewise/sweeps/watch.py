"""Runs jobs, so many at once, and sees each to its end: timeouts, and signals that are passed on."""

import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from statewise.interrupts import Interrupted, ask_before_stopping

POLL = 0.1  # seconds between two looks
GRACE = 30.0  # seconds that a job has to end in when its time is over


@runtime_checkable
class Running(Protocol):
    """A job that has been started, wherever it runs."""

    @property
    def code(self) -> int | None:
        """The exit code, negative for the number of a signal; None while it runs, and where nobody knows."""

    def has_ended(self) -> bool:
        """Whether it has ended."""

    def ask_to_end(self, number: int, *, patience: float = ...) -> None:
        """Ask it to write a checkpoint and end."""

    def kill(self) -> None:
        """End it at once."""


def watch(
    count: int,
    *,
    at_once: int,
    start: Callable[[int, int], Running],
    ended: Callable[[int, Running, float, str | None], None],
    timeout: float | None = None,
) -> None:
    """Run `count` jobs to their ends.

    Args:
        count: of jobs.
        at_once: how many run at the same time.
        start: starts a job, given its index and its place among those that run at once.
        ended: is told of every job that was started: its index, itself, its seconds, and why it was ended, where it was.
        timeout: seconds that a job may take; None for any time.

    Raises:
        Interrupted: a signal came. It was passed on to the running jobs and they have ended, at the second one by force; the
            others were not started.
    """
    waiting, running = deque(range(count)), dict[int, "_Seen"]()
    stopped_by: list[signal.Signals] = []

    def request_stop(name: signal.Signals) -> bool:
        stopped_by.append(name)
        return True

    def see() -> None:
        while waiting and not stopped_by and len(running) < at_once:
            slot = next(place for place in range(at_once) if place not in running)
            index = waiting.popleft()
            running[slot] = _Seen(index, start(index, slot))
        for slot, seen in list(running.items()):
            if seen.process.has_ended():
                ended(seen.index, running.pop(slot).process, seen.seconds, seen.reason)
            elif timeout is not None and seen.seconds > timeout and seen.reason is None:
                seen.end(f"stopped after launcher.timeout={timeout:g} seconds", signal.SIGTERM, patience=GRACE)
            elif stopped_by and seen.reason is None:
                seen.end(f"interrupted by {stopped_by[0].name}", stopped_by[0])

    with ask_before_stopping(request_stop):
        try:
            while running or (waiting and not stopped_by):
                see()
                if running:
                    time.sleep(POLL)
        finally:
            for seen in running.values():
                seen.process.kill()
                ended(seen.index, seen.process, seen.seconds, seen.reason or "ended with the sweep")
    if stopped_by:
        raise Interrupted(stopped_by[0], f"interrupted by {stopped_by[0].name}")


class _Seen:
    """A running job, since when, and why it was asked to end."""

    def __init__(self, index: int, process: Running) -> None:
        self.index = index
        self.process = process
        self.reason: str | None = None
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    def end(self, reason: str, number: signal.Signals, **patience: float) -> None:
        self.reason = reason
        self.process.ask_to_end(number, **patience)
