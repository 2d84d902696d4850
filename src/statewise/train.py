"""One run, from its configuration to its folder: this is the one place that puts the parts together.

config -> data -> model -> task -> callbacks -> trainer -> run folder. What is imported at the top is light, so that
``--help`` and a refused configuration answer at once; Lightning is imported when a run begins.
"""

import logging
import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import get_original_cwd
from omegaconf import DictConfig, OmegaConf

from statewise.interrupts import Interrupted, ask_before_stopping
from statewise.launch import Job, Refused, RunFailed, launch

if TYPE_CHECKING:
    from statewise.run_record import RunRecord

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; `argv` is that of this process by default. Returns the exit code."""
    return launch(run, argv)


def run(config: DictConfig, job: Job) -> float:
    """Do one run in `job.folder` and return the objective.

    Raises:
        Refused: the configuration or the data cannot be used; nothing was trained.
        RunFailed: the run diverged, is unhealthy or failed; the folder says how.
        Interrupted: a signal ended the run; it can be resumed from the folder.
    """
    with refusals():
        plain = prepare(config, job)
    from statewise.run_record import RunRecord

    chosen = HydraConfig.get().runtime.choices
    record = RunRecord(job.folder, plain, model=str(chosen.get("model")), data=str(chosen.get("data")))
    try:
        objective = fit_and_test(config, job, record)
    except BaseException as error:
        record.status = job.status = status_of(error)
        record.message = str(error)
        try:
            record.close()
        except OSError as second:  # a full disk, most likely: the first error is the one to tell
            log.warning("the run folder is not complete: %s", second)
        if record.status in {"diverged", "unhealthy"}:
            raise RunFailed(str(error)) from error
        raise
    record.close()
    return objective


def prepare(config: DictConfig, job: Job) -> dict[str, Any]:
    """Complete the configuration, write it into the folder, and return it as plain values."""
    from statewise.checkpoints import ENTRY, find_checkpoint, read_checkpoint
    from statewise.resume import with_parents_values

    launched_from = Path(get_original_cwd())
    if path := OmegaConf.select(config, "data.path"):
        config.data.path = _from(launched_from, path) if isinstance(path, str) else [_from(launched_from, p) for p in path]
    if config.resume:
        config.resume = str(find_checkpoint(config.resume, launched_from))
        entry = read_checkpoint(Path(config.resume))[ENTRY]
        for key, (before, now) in with_parents_values(config, entry["config"], job.typed).items():
            log.info("resume: %s was %s in the parent run and is %s now", key, before, now)
    OmegaConf.resolve(config)
    OmegaConf.save(config, job.folder / ".hydra" / "config.yaml")
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return plain


def _from(folder: Path, path: str) -> str:
    """The path, or pattern, as it means the same in any folder."""
    return os.path.join(folder, os.path.expanduser(path))


def fit_and_test(config: DictConfig, job: Job, record: "RunRecord") -> float:
    """Train, test the best checkpoint, and leave everything in the run folder."""
    from statewise import assembly
    from statewise.callbacks.checkpoints import BestAndLast
    from statewise.callbacks.epoch_lines import EpochLines
    from statewise.callbacks.exact_order import ExactOrder
    from statewise.callbacks.numerics_guard import NumericsGuard
    from statewise.callbacks.stopping import StoppedEarly, Stopping
    from statewise.checkpoints import describe, read_checkpoint
    from statewise.models.baselines import evaluate_baselines
    from statewise.resume import refuse_resume
    from statewise.trading import Trading

    quieten_lightning()
    stopping: Stopping | None = None

    def request_stop(name: signal.Signals) -> bool:
        if stopping is None or not stopping.fitting:
            return False
        log.info("%s: stopping after this batch; once more to stop at once", name.name)
        stopping.request(name)
        return True

    with ask_before_stopping(request_stop):
        with record.phase("setup"), refusals():
            datamodule, task, named, fault = assembly.assemble(config)
            record.describe(datamodule, task.model, fault)
            record.trading = Trading(**record.config.get("evaluate", {}))
            record.trading.check(datamodule.target_names, datamodule.targets_are_levels)
            checkpoints = BestAndLast(
                job.folder / "checkpoints",
                describe(record.config, job.overrides),
                monitor=config.objective if config.objective.startswith("val/") else "val/mse",
                every_n_steps=config.trainer.checkpoint_every_n_steps,
            )
            stopping = Stopping(
                checkpoints, after_steps=config.trainer.stop_after_steps, after_epochs=config.trainer.stop_after_epochs
            )
            callbacks = [*named.values(), NumericsGuard(), ExactOrder(config.seed), EpochLines(), checkpoints, stopping]
            trainer = assembly.build_trainer(config, job.folder, callbacks, datamodule)
            record.watch(trainer, named)
            if config.resume:
                refuse_resume(config, read_checkpoint(Path(config.resume)), task, datamodule)
            record.baselines = evaluate_baselines(datamodule)
        with record.phase("fit"):
            try:
                trainer.fit(task, datamodule=datamodule, ckpt_path=config.resume, weights_only=True)
            except StoppedEarly as stop:
                go_on = f"continue with: python train.py resume={job.folder}"
                if stopping.requested:
                    raise Interrupted(stopping.requested, f"{stop} after step {trainer.global_step}; {go_on}") from None
                log.info("stopped %s of the planned %s epochs; %s", stop, config.trainer.max_epochs, go_on)
        with record.phase("test"):
            best = checkpoints.best if checkpoints.best.is_file() else checkpoints.last
            trainer.test(task, datamodule=datamodule, ckpt_path=best, weights_only=True, verbose=False)
            record.write_results(datamodule, task)
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


def quieten_lightning() -> None:
    """Lightning's log lines come through its own handlers and Hydra's: keep one, and only what matters."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning", "lightning_fabric", "pytorch_lightning"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)
    # Lightning's own calls, in every fit; and a worker would be slower than the gather it would do.
    warnings.filterwarnings("ignore", message=r".*LeafSpec.*is deprecated")
    warnings.filterwarnings("ignore", message=r".*does not have many workers")
