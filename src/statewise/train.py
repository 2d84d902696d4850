"""One run, from its configuration to its folder: this is the one place that puts the parts together.

config -> data -> model -> task -> callbacks -> trainer -> run folder. What is imported at the top is light, so that
``--help`` and a refused configuration answer at once; Lightning is imported when a run begins.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import get_original_cwd
from omegaconf import DictConfig, OmegaConf

from statewise.interrupts import Interrupted, ask_before_stopping, finish_first
from statewise.launch import Job, Refused, RunFailed, launch, options_first
from statewise.lightning_log import quieten_lightning
from statewise.parallel.company import has_company

if TYPE_CHECKING:
    from statewise.run_record import RunRecord

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; `argv` is that of this process by default. Returns the exit code."""
    if has_company():
        from statewise.parallel.started_at_once import in_company

        return in_company(run, options_first(sys.argv[1:] if argv is None else argv))
    return launch(run, argv)


def run(config: DictConfig, job: Job, tell: Callable[[str], None] | None = None) -> float:
    """Do one run in `job.folder` and return the objective.

    tell: given the folder when all is ready to train, where other processes wait for it.

    Raises:
        Refused: the configuration or the data cannot be used; nothing was trained.
        RunFailed: the run diverged, is unhealthy or failed; the folder says how.
        Interrupted: a signal ended the run; it can be resumed from the folder.
    """
    with refusals():
        plain = prepare(config, job)
    from statewise.parallel.followers import Lost
    from statewise.run_record import RunRecord

    chosen = HydraConfig.get().runtime.choices
    record = RunRecord(job.folder, plain, model=str(chosen.get("model")), data=str(chosen.get("data")))
    try:
        objective = fit_and_test(config, job, record, tell)
    except BaseException as error:
        record.status = job.status = status_of(error)
        record.message = str(error)
        try:
            with finish_first():
                record.close()
        except OSError as second:  # a full disk, most likely: the first error is the one to tell
            log.warning("the run folder is not complete: %s", second)
        if record.status in {"diverged", "unhealthy"} or isinstance(error, Lost):
            raise RunFailed(str(error)) from error
        raise
    with finish_first():
        record.close()
    return objective


def prepare(config: DictConfig, job: Job) -> dict[str, Any]:
    """Complete the configuration, write it into the folder, and return it as plain values."""
    from statewise.checkpoints import ENTRY, find_checkpoint, read_checkpoint
    from statewise.resume import refuse_without_effect, with_parents_values

    launched_from = Path(get_original_cwd())
    if path := OmegaConf.select(config, "data.path"):
        config.data.path = _from(launched_from, path) if isinstance(path, str) else [_from(launched_from, p) for p in path]
    if config.resume:
        config.resume = str(find_checkpoint(config.resume, launched_from))
        entry = read_checkpoint(Path(config.resume))[ENTRY]
        for key, (before, now) in with_parents_values(config, entry["config"], job.typed).items():
            refuse_without_effect(key, before, now)
            log.info("resume: %s was %s in the parent run and is %s now", key, before, now)
    OmegaConf.resolve(config)
    OmegaConf.save(config, job.folder / ".hydra" / "config.yaml")
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return plain


def _from(folder: Path, path: str) -> str:
    """The path, or pattern, as it means the same in any folder."""
    return os.path.join(folder, os.path.expanduser(path))


def fit_and_test(config: DictConfig, job: Job, record: "RunRecord", tell: Callable[[str], None] | None = None) -> float:
    """Train, test the best checkpoint, and leave everything in the run folder."""
    from statewise import assembly
    from statewise.fitting import Fitting
    from statewise.models.baselines import evaluate_baselines
    from statewise.parallel.followers import ended_with_the_run
    from statewise.trading import Trading

    quieten_lightning()
    fitting: Fitting | None = None
    with ask_before_stopping(lambda name: fitting is not None and fitting.request_stop(name)), ended_with_the_run():
        with record.phase("setup"), refusals():
            parts = assembly.assemble(config)
            record.describe(parts.datamodule, parts.task.model, parts.fault)
            record.trading = Trading(**record.config.get("evaluate", {}))
            record.trading.check(parts.datamodule.target_names, parts.datamodule.targets_are_levels)
            fitting = Fitting(config, job.folder, parts, job.overrides)
            record.watch(fitting.trainer, parts.callbacks)
            record.baselines = evaluate_baselines(parts.datamodule)
        with record.phase("fit"):
            if tell is not None:
                tell(str(job.folder))
            fitting.fit()
            record.stopped = fitting.stopped
        with record.phase("test"):
            fitting.test()
            record.write_results(parts.datamodule, parts.task)
    return record.objective(config.objective)


def status_of(error: BaseException) -> str:
    """The status of a run that ended with `error`."""
    from statewise.callbacks.numerics_guard import Diverged
    from statewise.health import UnhealthyTraining

    if isinstance(error, Diverged):
        return "diverged"
    if isinstance(error, UnhealthyTraining):
        return "unhealthy"
    return "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"


@contextmanager
def refusals() -> Iterator[None]:
    """Before anything is trained, what a constructor or a reader objects to is the user's to change."""
    try:
        yield
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError | TypeError | OSError):
            raise Refused(str(cause)) from error
        raise
    except (ValueError, OSError) as error:
        raise Refused(str(error)) from error
