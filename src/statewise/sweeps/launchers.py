"""Hydra's launchers that run every job of a sweep as a command of its own: on this machine, or in a queue.

A job that is killed, runs out of memory or calls sys.exit then costs only itself. What each does is kept in its own log.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from statewise.attempts import attempts
from statewise.choices import at_least
from statewise.config import FULL_ERROR
from statewise.folders import new_folder
from statewise.sweeps.devices import pinned, visible_devices
from statewise.sweeps.job import Job, command, fair_share_of_threads, options_of_jobs, quoted
from statewise.sweeps.sweeping import Sweeping

if TYPE_CHECKING:
    from statewise.sweeps.job_record import JobRecord
    from statewise.sweeps.watch import Running


class JobFailed(Exception):
    """A job ended otherwise than ok; the message is its reason."""


class CommandLauncher(Launcher):
    """Runs each job as `python -m statewise train OVERRIDES hydra.run.dir=FOLDER` and watches over it."""

    sweeping: ClassVar[Sweeping]  # of the command, see plugins.py

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.hydra_context = hydra_context
        at_once, timeout = config.launcher.n_jobs, config.launcher.timeout
        if at_once is not None:
            at_least(1, launcher__n_jobs=at_once)
        if timeout is not None and timeout <= 0:
            raise ValueError(f"launcher.timeout must be above 0 seconds, or null for no limit, got {timeout:g}")

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs to their ends and return what became of each.

        Raises:
            Interrupted: a signal came; the jobs that ran have ended.
        """
        from statewise.sweeps.going_on import interrupted_before
        from statewise.sweeps.job_record import JobRecord
        from statewise.sweeps.outcome import outcome
        from statewise.sweeps.rows import identity
        from statewise.sweeps.watch import watch

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        sweep = self.sweeping.begin(Path(self.config.hydra.sweep.dir), str(self.config.objective))
        overrides = [list(job) for job in job_overrides]
        go_on = interrupted_before(sweep.folder)
        jobs: dict[int, Job] = {}
        records: dict[int, JobRecord] = {}

        def start(index: int, slot: int) -> "Running":
            number = initial_job_idx + index
            parent = go_on.get(identity(overrides[index]))
            jobs[index] = self.prepare(number, overrides[index], slot, at_once, parent)
            sweep.started(JobRecord(number, overrides[index], "running", jobs[index].folder))
            return self.start(jobs[index])

        def ended(index: int, process: "Running", seconds: float, reason: str | None) -> None:
            job = jobs[index]
            *before, last = [path for _, path in attempts(job.folder)]
            for path in before:  # a queue has started it again
                JobRecord(job.number, job.overrides, "interrupted", path, message=f"went on in {last}").write()
            records[index] = outcome(
                number=job.number,
                overrides=job.overrides,
                folder=last,
                log=job.log,
                code=process.code,
                seconds=seconds,
                ended_by_us=reason,
                gone=self.without_a_code(process),
            )
            sweep.ended(records[index])

        at_once = self.at_once(len(overrides))
        watch(len(overrides), at_once=at_once, start=start, ended=ended, timeout=self.timeout())
        return [_returned(records[index]) for index in range(len(overrides))]

    def prepare(self, number: int, overrides: list[str], slot: int, at_once: int, parent: Path | None = None) -> Job:
        """A job with its folder, its command line, and its share of the machine; `parent` is a run that it goes on with."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config.hydra.job):
            config.hydra.job.num = number
            config.hydra.job.id = str(number)
        before = HydraConfig.instance().cfg
        HydraConfig.instance().set_config(config)  # hydra.sweep.subdir may ask for it
        try:
            folder = Path(new_folder(os.path.join(self.config.hydra.sweep.dir, str(config.hydra.sweep.subdir)))).absolute()
        finally:
            HydraConfig.instance().cfg = before
        of_hydra: Any = OmegaConf.to_container(self.config.hydra.overrides.hydra)
        typed = [*overrides, f"resume={quoted(str(parent))}"] if parent else overrides
        typed = command(typed, folder, options=options_of_jobs(self.sweeping.typed), of_hydra=of_hydra)
        environment = {FULL_ERROR: self.sweeping.full_error, **self.share(config.hardware, slot, at_once)}
        return Job(number, overrides, folder, typed, environment)

    def share(self, hardware: DictConfig, slot: int, at_once: int) -> dict[str, str]:
        """The environment that gives a job its part of the machine."""
        raise NotImplementedError

    def start(self, job: Job) -> "Running":
        """Start a job."""
        raise NotImplementedError

    def at_once(self, jobs: int) -> int:
        """How many jobs run at the same time."""
        return int(self.config.launcher.n_jobs or jobs)

    def timeout(self) -> float | None:
        """Seconds that a job may take, where this launcher counts them."""
        return None

    def without_a_code(self, process: "Running") -> str:
        """Why a job ended without an exit code."""
        return "ended without an exit code"


class SubprocessLauncher(CommandLauncher):
    """Jobs as processes of this machine, `launcher.n_jobs` at once."""

    def start(self, job: Job) -> "Running":
        from statewise.sweeps.processes import Process

        return Process(job)

    def share(self, hardware: DictConfig, slot: int, at_once: int) -> dict[str, str]:
        if hardware.accelerator != "cpu":
            return pinned(slot, at_once, hardware.devices, visible_devices())
        processes = int(hardware.devices) if str(hardware.devices).isdecimal() else 1
        return {} if hardware.threads else fair_share_of_threads(at_once, processes, os.environ)

    def timeout(self) -> float | None:
        seconds = self.config.launcher.timeout
        return None if seconds is None else float(seconds)


class QueueLauncher(CommandLauncher):
    """Jobs handed to submitit: to a SLURM cluster, or to its local executor, which tries the same road on this machine."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        try:
            import submitit  # noqa: F401
        except ImportError as error:
            raise ValueError(
                f"launcher: {error.name} is not installed; a queue needs pip install 'statewise[slurm]'"
            ) from error
        if config.launcher.cluster == "slurm" and shutil.which("srun") is None:
            raise ValueError("launcher=slurm: there is no srun here; start it on a login node, or try launcher=submitit_local")

    def start(self, job: Job) -> "Running":
        from statewise.sweeps.submitted import submit

        return submit(job, self.config.launcher, Path(self.config.hydra.sweep.dir))

    def share(self, hardware: DictConfig, slot: int, at_once: int) -> dict[str, str]:
        settings = self.config.launcher
        if hardware.threads or not settings.cpus_per_task:
            return {}
        return {"OMP_NUM_THREADS": str(settings.cpus_per_task)}

    def without_a_code(self, process: "Running") -> str:
        return str(getattr(process, "gone", super().without_a_code(process)))


def _returned(record: "JobRecord") -> JobReturn:
    """What Hydra's sweepers read: the value, or an exception in its place."""
    result = JobReturn(overrides=record.overrides, working_dir=str(record.folder), task_name="train")
    if record.status == "ok":
        result.return_value, result.status = record.objective, JobStatus.COMPLETED
    else:
        result.return_value, result.status = JobFailed(record.message), JobStatus.FAILED
    return result
