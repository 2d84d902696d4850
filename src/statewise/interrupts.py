"""Signals: the first one ends a run at a place from which it can be continued, the second one ends it at once.

Lightning has handlers of its own, which a run does without (`only_ours`): its SIGTERM ends the run after the epoch, with
exit code 0, and talks to other processes from within the handler; under SLURM its SIGUSR1 writes a checkpoint of another
name and requeues the job by itself. Here SIGUSR1 means what SIGTERM means, where SLURM is: `--signal=USR1@120` leaves two
minutes for the checkpoint, the exit code is 138, and the job's script decides what becomes of it.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# What asks a run to stop. SIGUSR1 ends a process that does not know it: it is taken only where somebody may send it.
ASKING = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGUSR1") if name in signal.Signals.__members__)


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
    """Hand the first of the signals to `request`; end with `Interrupted` if it declines, and at every later signal.

    Outside the main thread, where Python allows no handlers, signals keep their meaning. Contexts may be nested: the inner
    one is asked.

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

    before = {number: signal.signal(number, handle) for number in ASKING if number.name != "SIGUSR1" or _warned_by_slurm()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def finish_first() -> Iterator[None]:
    """Hold the first signal back until the end of the block, and end with `Interrupted` then; a second one ends it at once."""
    held: list[signal.Signals] = []

    def hold(name: signal.Signals) -> bool:
        held.append(name)
        return True

    with ask_before_stopping(hold):
        yield
    if held:
        raise Interrupted(held[0], f"interrupted by {held[0].name} after the run had ended; its folder is complete")


def _warned_by_slurm() -> bool:
    """Submitit has a handler of its own."""
    return "SLURM_JOB_ID" in os.environ and "SUBMITIT_EXECUTOR" not in os.environ


def only_ours(trainer: Any) -> None:
    """Keep a Lightning trainer from installing handlers of its own (see above)."""
    trainer._signal_connector.register_signal_handlers = lambda: None
