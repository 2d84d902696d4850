"""The sweep that a command does: its folder, its jobs as they start and end, and what is said of them."""

import fcntl
import logging
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from rich.text import Text

from statewise.console import COLOURS, console
from statewise.sweeps.job_record import JobRecord
from statewise.sweeps.rows import identity, row_of
from statewise.sweeps.table import row_line, write_sweep_csv

LOCK = ".lock"

log = logging.getLogger(__name__)


class FolderInUse(ValueError):
    """Another process works on the same sweep."""


class Sweep:
    """One sweep, from its first job to its table.

    Args:
        folder: of the sweep; it exists.
        objective: the name of what is minimised.

    Raises:
        FolderInUse: another process works in this folder.
    """

    def __init__(self, folder: Path, objective: str) -> None:
        self.folder = folder.absolute()
        self.objective = objective
        self.records: dict[int, JobRecord] = {}
        self._planned = 0
        self._search = False
        self._common: frozenset[str] = frozenset()
        self._lock = _locked(self.folder)

    def plan(self, jobs: int, *, common: Sequence[str] = (), done: int = 0, search: bool = False) -> None:
        """Say what is to be done: how many jobs, what they have in common, and how many were done before.

        A search does not try again what failed: it goes on with other trials.
        """
        self._planned = jobs
        self._search = search
        self._common = frozenset(common)
        already = f"{counted(done)} done before, " if done else ""
        console().print(Text(f"sweep: {already}{counted(jobs)} to do; folder: {self.folder}"), soft_wrap=True)
        if common:
            console().print(Text(f"all with: {shlex.join(common)}", style="dim"), soft_wrap=True)

    def started(self, record: JobRecord) -> None:
        """Note that a job runs."""
        _written(record.write)
        own = shlex.join(entry for entry in record.overrides if entry in identity(record.overrides) - self._common)
        console().print(Text(f"job {record.number} started · {own}".rstrip(" ·"), style="dim"), soft_wrap=True)

    def ended(self, record: JobRecord) -> None:
        """Note how a job ended, and say so: sweep.csv holds it from now on."""
        self.records[record.number] = record
        _written(record.write)
        _written(lambda: write_sweep_csv(self.folder))
        row = replace(row_of(record.folder), job=record.number, status=record.status, message=record.message)
        own = tuple(entry for entry in record.overrides if entry not in self._common)
        line = row_line(replace(row, overrides=own), objective=self.objective)
        count = f"[{len(self.records)}/{self._planned}] " if self._planned > 1 else ""
        console().print(Text.assemble((count, "dim"), (line, COLOURS.get(record.status, "red"))), soft_wrap=True)

    def conclude(self) -> None:
        """Say what came of all jobs in the folder, those of earlier commands included."""
        from statewise.sweeps.conclusion import conclude

        conclude(self.folder)

    def close(self) -> None:
        """Leave the folder to others."""
        self._lock.close()

    @property
    def exit_code(self) -> int:
        """0 where every job of this command ended ok; 2 where every one was refused before any work; 1 for all else."""
        codes = [0 if record.status == "ok" else record.exit_code for record in self.records.values()]
        if not any(code != 0 for code in codes):
            return 0
        return 2 if all(code == 2 for code in codes) else 1

    def how_to_go_on(self) -> str | None:
        """The command that does what is missing; None where nothing is."""
        left = sum(record.status != "ok" for record in self.records.values())
        missing = max(0, self._planned - len(self.records))
        if not left and not missing:
            return None
        parts = [f"{counted(left)} did not end ok"] if left else []
        parts += [f"{counted(missing)} did not begin"] if missing else []
        here = os.path.relpath(self.folder) if self.folder.is_relative_to(Path.cwd()) else str(self.folder)
        command = f"python train.py -m sweep.resume={shlex.quote(here)}"
        if self._search and not missing:
            return f"{parts[0]}, and the study knows why; more trials: {command} sweep.n_trials=NUMBER"
        return f"{' and '.join(parts)}; to go on: {command}"


def counted(jobs: int) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{jobs} job" if jobs == 1 else f"{jobs} jobs"


def _written(write: Callable[[], object]) -> None:
    """A full disk must not end the sweep: the jobs that run may still be saved by whoever makes room."""
    try:
        write()
    except OSError as error:
        log.warning("sweep: a file could not be written: %s", error)


def _locked(folder: Path) -> IO[bytes]:
    """The lock is gone with the process that holds it, however that ends."""
    file = (folder / LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise FolderInUse(f"{folder}: another process works on this sweep; wait for its end, or begin another sweep") from error
    return file
