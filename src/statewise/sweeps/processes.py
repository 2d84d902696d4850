"""A job in a process of its own: started in a session of its own, so that it can be ended together with all that it started."""

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from statewise.sweeps.job import SWEEP_PROCESS, Job

PR_SET_PDEATHSIG = 1


class Process:
    """A running job; `has_ended` asks how it is.

    A first request to end goes to the job's main process alone, which passes it on as it sees fit: a signal to the workers
    that read its data would be a failure to it. The end by force is for every process that it started.
    """

    def __init__(self, job: Job, log: Path | None = None) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", SWEEP_PROCESS: str(os.getpid()), **job.environment}
        with (log or job.log).open("ab") as file:
            self._process = subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._patience_ends = math.inf

    @property
    def number(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, negative for the number of a signal; None while it runs."""
        return self._process.returncode

    def has_ended(self) -> bool:
        """Whether it has ended; if so, what it left behind is ended, too."""
        if self.code is None and _is_over(self.number):
            # Not reaped yet, so the number of its group cannot have been given to anyone else.
            self._signal_group(signal.SIGKILL)
            self._process.wait()
        if time.monotonic() > self._patience_ends:
            self.kill()
        return self.code is not None

    def ask_to_end(self, number: int = signal.SIGTERM, *, patience: float = math.inf) -> None:
        """Ask the job to write a checkpoint and end; when `patience` seconds are over, `has_ended` ends it by force."""
        if self.code is None:
            self._process.send_signal(number)
            self._patience_ends = time.monotonic() + patience

    def kill(self) -> None:
        """End it and all that it started, at once."""
        if self.code is None:
            self._signal_group(signal.SIGKILL)
            self._process.wait()

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS answers the latter for a group of zombies
            os.killpg(self._process.pid, number)


def _is_over(number: int) -> bool:
    return os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_with_the_sweep() -> None:
    """In a job: be asked to end when the process that watches over the sweep is gone, even where that was killed.

    Linux only; elsewhere such a job goes on to its end.
    """
    sweep = os.environ.pop(SWEEP_PROCESS, None)  # the job's own children are not children of the sweep
    if sweep is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if str(os.getppid()) != sweep:  # it was gone before
        os.kill(os.getpid(), signal.SIGTERM)
