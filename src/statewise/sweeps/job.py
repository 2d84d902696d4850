"""A job of a sweep as an ordinary command: what `statewise train` is asked to do, where, and with which devices and threads."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOG = "job.log"
SWEEP_PROCESS = "STATEWISE_SWEEP_PROCESS"  # the process id of the sweep: a job ends when that process is gone
PATHS_OF_CONFIGURATION = {"--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"}
NOT_FOR_A_JOB = tuple(f"hydra{key}" for key in (".mode", ".run.", ".sweep.", ".launcher", "/launcher", ".sweeper", "/sweeper"))


@dataclass(frozen=True)
class Job:
    """One job before it runs.

    Attributes:
        number: in its sweep, from 0.
        overrides: what it is asked for.
        folder: its run folder; it exists.
        command: what is typed, the program first.
        environment: what is set beyond the environment of the sweep.
    """

    number: int
    overrides: list[str]
    folder: Path
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """Where all that the job says is kept."""
        return self.folder / LOG


def command(overrides: Sequence[str], folder: Path, *, options: Sequence[str] = (), of_hydra: Sequence[str] = ()) -> list[str]:
    """What runs one job in a process of its own.

    Args:
        overrides: of the job.
        folder: its run folder.
        options: of the sweep's command line, see `options_of_jobs`.
        of_hydra: the overrides of Hydra's own keys; those that say how a sweep is done are left out.
    """
    kept = [entry for entry in of_hydra if not entry.lstrip("+~").startswith(NOT_FOR_A_JOB)]
    here = f"hydra.run.dir={quoted(str(folder))}"
    return [sys.executable, "-m", "statewise", "train", *options, *overrides, *kept, here]


def options_of_jobs(typed: Sequence[str]) -> list[str]:
    """The options of a command line that say where configuration is found: a job needs them as well."""
    kept: list[str] = []
    rest = iter(typed)
    for argument in rest:
        if argument in PATHS_OF_CONFIGURATION:
            kept += [argument, next(rest, "")]
        elif argument.partition("=")[0] in PATHS_OF_CONFIGURATION:
            kept.append(argument)
    return kept


def quoted(value: str) -> str:
    """A value as Hydra's grammar reads it: quoted where it holds anything but letters, digits and the signs of a path."""
    if re.fullmatch(r"[\w/.:%+@-]+", value, re.ASCII):
        return value
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)  # before a quote only
    return f"'{escaped}'"


def split_overrides(text: str) -> list[str]:
    """The overrides in one string, as a shell would part them: ``optimizer.lr=1e9 model=gru``."""
    return shlex.split(text)


def fair_share_of_threads(at_once: int, processes: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Threads for each process of `at_once` jobs that run together, unless the environment says how many.

    Without it every job would take all cores, and all would be slower than one after another.
    """
    if "OMP_NUM_THREADS" in environment:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // (at_once * max(1, processes))))}


def last_line(lines: Iterable[str]) -> str:
    """The last line that says anything."""
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else ""
