"""A search by Optuna: each trial is a job, and what a study has learned lives in a file of the sweep's folder.

Reads spaces as hydra-optuna-sweeper does, and asks and tells the study itself: a trial that fails keeps its reason, trials are
numbered on where a study goes on, and a study in which every trial failed ends with a table instead of an exception.

A trial is judged by its end: jobs are other processes, which report nothing on the way, so there is no pruning. A job that
should stop early does so by itself (trainer.stop_after_epochs, health.stop_at).
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from statewise.sweeps.sweeper import CommandSweeper

if TYPE_CHECKING:
    from statewise.sweeps.job_record import JobRecord

STUDY = "study.db"
NAME = "statewise"
JOB, REASON = "job", "reason"  # what a trial knows beside its value

log = logging.getLogger(__name__)


class OptunaSearch(CommandSweeper):
    """Trials that a sampler proposes, as many at once as the launcher runs, until the study has `sweep.n_trials`."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run what is missing of the trials.

        Raises:
            ValueError: Optuna is not installed, or the space is none.
            HydraException, OmegaConfBaseException: a trial cannot be composed.
        """
        from statewise.sweeps.going_on import MULTIRUN, first_number
        from statewise.sweeps.rows import key_of, of_the_run

        settings = self.config.sweep
        own = [entry for entry in arguments if of_the_run(key_of(entry))]
        space, fixed = _space([*(f"{key}={value}" for key, value in settings.params.items()), *own])
        sweep = self.sweeping.begin(Path(self.config.hydra.sweep.dir), str(self.config.objective))
        OmegaConf.save(self.config, sweep.folder / MULTIRUN)
        study = _Study(sweep.folder, settings.sampler)
        left = max(0, int(settings.n_trials) - study.ended)
        sweep.plan(left, common=fixed, done=study.ended, search=True)
        if not left:
            log.warning("sweep: the study has its %s trials; more with sweep.n_trials=NUMBER", study.ended)
        at_once = int(self.config.launcher.get("n_jobs") or 1)
        number = first_number(sweep.folder)
        while left:
            trials = [study.ask(space, number + offset) for offset in range(min(left, at_once))]
            jobs = [[*fixed, *(f"{name}={value}" for name, value in trial.params.items())] for trial in trials]
            try:
                self.validate_batch_is_legal(jobs)
                self.launcher.launch(jobs, initial_job_idx=number)
            finally:  # also of a sweep that is interrupted: what ended before counts
                for trial, job in zip(trials, range(number, number + len(trials)), strict=True):
                    study.tell(trial, sweep.records.get(job))
            number += len(trials)
            left -= len(trials)
        return []


class _Study:
    """Optuna's study in the file of a sweep's folder."""

    def __init__(self, folder: Path, sampler: DictConfig) -> None:
        optuna = _optuna()
        storage = f"sqlite:///{folder / STUDY}"
        self._study = optuna.create_study(study_name=NAME, storage=storage, direction="minimize", load_if_exists=True)
        self._states = optuna.trial.TrialState
        self._tell_of_the_lost(folder)
        trials = self._study.get_trials(deepcopy=False)
        # The same seed again would propose the same trials again.
        seed = {} if sampler.get("seed") is None else {"seed": int(sampler.seed) + len(trials)}
        self._study.sampler = instantiate(sampler, **seed)
        self.ended = sum(trial.state == self._states.COMPLETE or REASON in trial.user_attrs for trial in trials)

    def ask(self, space: Mapping[str, Any], job: int) -> Any:
        """A new trial, for the job of that number."""
        trial = self._study.ask(dict(space))
        trial.set_user_attr(JOB, job)
        return trial

    def tell(self, trial: Any, record: "JobRecord | None") -> None:
        """Give the study the value of a trial, or why it has none; a trial that was not tried to its end counts for nothing."""
        if record is not None and record.status == "ok":
            self._study.tell(trial, record.objective)
            return
        if record is not None and record.status != "interrupted":
            trial.set_user_attr(REASON, f"{record.status}: {record.message}")
        self._study.tell(trial, state=self._states.FAIL)

    def _tell_of_the_lost(self, folder: Path) -> None:
        """Trials of a sweep that was killed: some of their jobs may have ended well all the same."""
        from statewise.sweeps.rows import rows_of

        lost = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state == self._states.RUNNING]
        known = {row.job: row for row in rows_of(folder) if row.status == "ok"} if lost else {}
        for trial in lost:
            row = known.get(trial.user_attrs.get(JOB))
            if row is not None and row.objective is not None:
                self._study.tell(trial.number, row.objective)
            else:
                self._study.tell(trial.number, state=self._states.FAIL)


def _space(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """(what is searched: a distribution for each key, what every trial has)."""
    _optuna()
    from hydra_plugins.hydra_optuna_sweeper._impl import create_params_from_overrides

    from statewise.sweeps.rows import key_of

    space, fixed = create_params_from_overrides(list(overrides))
    searched = {key: found for key, found in space.items() if key not in fixed}
    if not searched:
        raise ValueError("sweep: there is nothing to search; give intervals or choices, as optimizer.lr='interval(1e-4,1e-2)'")
    last = {key_of(entry): entry for entry in overrides}
    return searched, [entry for key, entry in last.items() if key not in searched]


def _optuna() -> Any:
    try:
        import hydra_plugins.hydra_optuna_sweeper  # noqa: F401
        import optuna
    except ImportError as error:
        raise ValueError(f"sweep: {error.name} is not installed; a search needs pip install 'statewise[sweeps]'") from error
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna
