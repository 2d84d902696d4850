"""A job in a queue: submitit submits the command of an ordinary run, and submits it again where its time was over."""

import math
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from statewise.sweeps.job import LOG, Job, last_line
from statewise.sweeps.processes import Process

POLL = 1.0  # seconds between two looks
WARNING = 30  # seconds before the end of its time that a job is told of it
FOLDER = ".submitit"  # what submitit keeps for itself, in the folder of the sweep
NO_LIMIT = 60 * 24 * 365  # minutes; submitit's local executor has no word for it
RESUME = "resume=auto"
OURS = ("cluster", "n_jobs", "timeout", "restarts")


@dataclass
class Submission:
    """What the queue runs: the job's command. Submitit stores it, and asks for a checkpoint when the time is nearly over."""

    job: Job
    patience: float  # seconds for the checkpoint
    _process: Process | None = field(default=None, repr=False)

    def __call__(self) -> int:
        """Runs the command to its end and returns its exit code."""
        from submitit import JobEnvironment

        rank = JobEnvironment().global_rank
        log = self.job.log if rank == 0 else self.job.log.with_name(f"{Path(LOG).stem}-{rank}.log")
        self._process = Process(self.job, log)
        while not self._process.has_ended():
            time.sleep(POLL)
        assert self._process.code is not None
        return self._process.code

    def checkpoint(self) -> Any:
        """What goes on in this one's place: the same command, from where this one stops."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.ask_to_end(patience=self.patience)
            while not self._process.has_ended():
                time.sleep(POLL / 10)
        command = [*(entry for entry in self.job.command if not entry.startswith("resume=")), RESUME]
        return DelayedSubmission(Submission(replace(self.job, command=command), self.patience))


class Queued:
    """A job that has been submitted."""

    def __init__(self, job: Any) -> None:
        self._job = job
        self.code: int | None = None
        self.gone = ""

    def has_ended(self) -> bool:
        """Whether the queue has ended it; asks the queue as often as submitit thinks fit."""
        if self.code is not None or self.gone:
            return True
        if not self._job.done():
            return False
        try:
            codes = self._job.results()
            self.code = next((code for code in codes if code != 0), 0)  # that of the first process that failed
        except Exception as error:  # whatever happened to it there
            said = _reason(str(error).splitlines())
            self.gone = f"the queue ended it (job {self._job.job_id}, {self._job.state}): {said}"
        return True

    def ask_to_end(self, number: int, *, patience: float = 0.0) -> None:
        """Cancel it: the queue asks it to end, and ends it by force a while later."""
        self._job.cancel(check=False)

    def kill(self) -> None:
        """The same: the rest is the queue's to do."""
        self._job.cancel(check=False)
        self.gone = self.gone or f"cancelled (job {self._job.job_id})"


def submit(job: Job, settings: DictConfig, sweep: Path) -> Queued:
    """Hand a job to the queue.

    Args:
        job: to run.
        settings: the node `launcher`.
        sweep: the folder of the sweep, which the queue's machines must see under the same path.

    Raises:
        ValueError: the queue refused it.
    """
    from submitit import AutoExecutor

    executor = AutoExecutor(folder=sweep / FOLDER / "%j", cluster=settings.cluster, **_restarts(settings))
    executor.update_parameters(**parameters(settings, name=f"{sweep.name}-{job.number}"))
    try:
        return Queued(executor.submit(Submission(job, patience=0.8 * _warning(_minutes(settings)))))
    except Exception as error:  # whatever the queue has against it: submitit says it in words of its own
        raise ValueError(f"launcher: the queue refused job {job.number}: {_reason(str(error).splitlines())}") from error


def parameters(settings: DictConfig, name: str) -> dict[str, Any]:
    """The settings under submitit's names: what only SLURM knows has a prefix; what is null is left to the queue."""
    everywhere = {"nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb"}
    plain: Any = OmegaConf.to_container(settings, resolve=True)
    given = {key: value for key, value in plain.items() if key not in OURS and value not in (None, [], {})}
    minutes = _minutes(settings)
    if settings.cluster == "slurm":  # the local executor has its own
        given["signal_delay_s"] = _warning(minutes)
    found = {key if key in everywhere else f"{settings.cluster}_{key}": value for key, value in given.items()}
    return {**found, "timeout_min": minutes, "name": name}


def _reason(lines: list[str]) -> str:
    """The line of submitit's text that names the error, else its first: a traceback, a log and hints stand around them."""
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return last_line(named).rpartition("Error: ")[2] or last_line(lines[:1]) or "no reason given"


def _minutes(settings: DictConfig) -> int:
    return NO_LIMIT if settings.timeout is None else max(1, math.ceil(settings.timeout / 60))


def _warning(minutes: int) -> int:
    return min(WARNING, 60 * minutes // 2)


def _restarts(settings: DictConfig) -> dict[str, int]:
    return {f"{settings.cluster}_max_num_timeout": int(settings.restarts)}
