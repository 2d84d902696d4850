"""Signals: the first one ends a run at a place from which it can be continued, the second one ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """A run was ended by a signal.

    A BaseException, so that it ends a whole sweep and not just one of its jobs.

    Args:
        number: the signal's number.
        message: what has been kept and how to go on.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells report it: 130 for Ctrl+C, 143 for SIGTERM."""
        return 128 + self.number


@contextmanager
def ask_before_stopping(request: Callable[[signal.Signals], bool]) -> Iterator[None]:
    """Hand the first SIGINT or SIGTERM to `request`; end with `Interrupted` if it declines, and at every later signal.

    Outside the main thread, where Python allows no handlers, signals keep their meaning.

    Args:
        request: returns whether it will stop the run by itself soon.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        name = signal.Signals(number)
        if asked or not request(name):
            raise Interrupted(number, f"interrupted by {name.name}")
        asked = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
