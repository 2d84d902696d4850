"""Every combination of the listed values, and the further jobs of `sweep.also`; what is done is not done again."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from statewise.sweeps.job import split_overrides
from statewise.sweeps.sweeper import CommandSweeper


class GridSweeper(CommandSweeper):
    """The product of all lists and ranges of values, in the order typed, then `sweep.also`."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run what is missing of the jobs and return what became of them.

        Raises:
            ValueError: something is no list of values.
            HydraException, OmegaConfBaseException: a job cannot be composed; nothing was run.
        """
        from statewise.sweeps.going_on import MULTIRUN, done_before, first_number
        from statewise.sweeps.rows import identity, key_of, of_the_run

        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        given = parser.parse_overrides([entry for entry in arguments if of_the_run(key_of(entry))])
        wanted = product(given)
        for text in self.config.sweep.also:
            try:
                wanted.append(further_job(given, parser.parse_overrides(split_overrides(text))))
            except (ValueError, OverrideParseException) as error:
                raise ValueError(f"sweep.also: {text!r} is not one job's overrides: {str(error).splitlines()[0]}") from error
        once: dict[frozenset[str], list[str]] = {}
        for job in wanted:
            once.setdefault(identity(job), job)
        jobs = list(once.values())
        self.validate_batch_is_legal(jobs)
        sweep = self.sweeping.begin(Path(self.config.hydra.sweep.dir), str(self.config.objective))
        OmegaConf.save(self.config, sweep.folder / MULTIRUN)
        done = done_before(sweep.folder)
        left = [job for key, job in once.items() if key not in done]
        common = [entry for entry in jobs[0] if all(entry in job for job in jobs)] if len(jobs) > 1 else []
        sweep.plan(len(left), common=common, done=len(jobs) - len(left))
        return [self.launcher.launch(left, initial_job_idx=first_number(sweep.folder))] if left else []


def product(overrides: Iterable[Override]) -> list[list[str]]:
    """One list of overrides for each combination; the last override of a key counts.

    Raises:
        ValueError: an interval has no end of values.
    """
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [str(override.input_line)]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise ValueError(f"{override.input_line}: an interval cannot be listed; search it with sweep=optuna_small")
    return [list(job) for job in itertools.product(*choices.values())]


def further_job(common: Sequence[Override], own: Sequence[Override]) -> list[str]:
    """A job beyond the product: what a command does not sweep over, and the job's own.

    Raises:
        ValueError: it is several jobs, or none.
    """
    if not own:
        raise ValueError("it is empty")
    swept = next((override.input_line for override in own if override.is_sweep_override()), None)
    if swept:
        raise ValueError(f"{swept} is more than one value")
    fixed = [override for override in common if not override.is_sweep_override()]
    return [str(override.input_line) for override in {last.get_key_element(): last for last in [*fixed, *own]}.values()]
