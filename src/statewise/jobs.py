"""A job in this process: whatever goes wrong in it becomes one line and an exit code."""

import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from statewise import schemas
from statewise.choices import did_you_mean
from statewise.config import CONFIG_ERRORS, FULL_ERROR, explain, unknown_keys
from statewise.interrupts import Interrupted
from statewise.sweeps.sweeping import Sweeping

log = logging.getLogger(__name__)


class Refused(Exception):
    """The configuration or the data is refused before any work; the message is the one line that is printed."""

    exit_code = 2


class RunFailed(Exception):
    """A run ended with a status other than ok; the message is the one line that is printed."""

    exit_code = 1


@dataclass
class Job:
    """What became of one job of a command."""

    overrides: list[str]  # all of them, those of a resumed parent included
    typed: list[str]  # those of this command
    folder: Path
    status: str = "failed"
    objective: float | None = None
    message: str = ""
    exit_code: int = 1


class Jobs:
    """The jobs that a command does in this process, one after another.

    Args:
        run: does one job in its run folder and returns the objective; it sets the job's status.
        sweeping: the sweep that they may belong to.
        show_traceback: whether more than a line is wanted of what goes wrong.
    """

    def __init__(self, run: Callable[[DictConfig, Job], float], sweeping: Sweeping, *, show_traceback: bool) -> None:
        self.done: list[Job] = []
        self._run = run
        self._sweeping = sweeping
        self._show_traceback = show_traceback

    def do(self, config: DictConfig, typed: Sequence[str]) -> float:
        """Do the job that Hydra has composed, in the folder that it has made, and return the objective.

        Raises:
            Refused, RunFailed: in a sweep, where the sweeper must know of it.
            Interrupted: a signal ended the job.
        """
        settings = HydraConfig.get()
        job = Job(list(settings.overrides.task), list(typed), Path(settings.runtime.output_dir))
        self.done.append(job)
        if settings.mode == RunMode.MULTIRUN:
            return self._do_in_sweep(config, job)
        try:
            return self._do(config, job)
        except (Refused, RunFailed):
            sys.stderr.write(f"{job.message}\n")
            return math.nan

    def _do_in_sweep(self, config: DictConfig, job: Job) -> float:
        """Watched over as a job in a process of its own."""
        from statewise.parallel.strategies import several
        from statewise.sweeps.job_record import JobRecord
        from statewise.sweeps.outcome import no_objective

        def checked(config: DictConfig, job: Job) -> float:
            if several(config.hardware):
                raise Refused(
                    "hardware asks for several processes, and launcher=basic runs every job in this one: use "
                    "launcher=subprocess, where each job starts its own"
                )
            value = self._run(config, job)
            if not math.isfinite(value):
                raise RunFailed(no_objective(config.objective))
            return value

        settings = HydraConfig.get()
        number, sweep = settings.job.num, self._sweeping.begin(Path(settings.sweep.dir), config.objective)
        sweep.started(JobRecord(number, job.overrides, "running", job.folder))
        start = time.monotonic()
        try:
            return self._do(config, job, checked)
        finally:
            seconds = time.monotonic() - start
            end = (job.exit_code, job.message, job.objective, seconds)
            sweep.ended(JobRecord(number, job.overrides, job.status, job.folder, *end))

    def _do(self, config: DictConfig, job: Job, run: Callable[[DictConfig, Job], float] | None = None) -> float:
        """Whatever goes wrong becomes a line, and one with its traceback in the job's own log."""
        try:
            if strange := unknown_keys(config, schemas.Train.__dataclass_fields__):
                suggestion = did_you_mean(strange[0], schemas.Train.__dataclass_fields__)
                raise Refused(f"there is no configuration key '{strange[0]}'{suggestion}")
            job.objective = (run or self._run)(config, job)
            job.status, job.exit_code = "ok", 0
            return job.objective
        except Interrupted as interrupted:
            job.message, job.exit_code = str(interrupted), interrupted.exit_code
            raise
        except Exception as error:
            job.message, job.exit_code = _one_line(error, job.overrides)
            _write_to_log_file(job.message, error)
            if self._show_traceback:
                traceback.print_exception(error)
            raise (Refused if job.exit_code == 2 else RunFailed)(job.message) from error


def _one_line(error: Exception, overrides: list[str]) -> tuple[str, int]:
    if isinstance(error, Refused | RunFailed):
        return " ".join(str(error).split("\n")), error.exit_code
    if isinstance(error, CONFIG_ERRORS):
        return explain(error, overrides), 2
    if isinstance(error, OSError):
        return f"a file could not be read or written: {error}; the run folder keeps what was written before", 1
    text = str(error).strip().splitlines()
    return (
        f"internal error, {type(error).__name__}: {text[0] if text else 'no message'} (set {FULL_ERROR}=1 for the traceback)",
        1,
    )


def _write_to_log_file(message: str, error: Exception) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            details = (type(error), error, error.__traceback__)
            handler.handle(logging.LogRecord(log.name, logging.ERROR, __file__, 0, message, None, details))
