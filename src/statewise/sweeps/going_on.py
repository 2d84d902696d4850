"""A sweep that is started again: what it was asked for, what is done, and the numbers that are still free."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from statewise.sweeps.job import quoted

MULTIRUN = "multirun.yaml"
KEY = "sweep.resume"
NOT_INHERITED = ("hydra.sweep.dir", "hydra.run.dir", "hydra.mode", KEY)  # they are about one command


def with_sweeps_overrides(arguments: Sequence[str], folder: Path) -> list[str]:
    """The command line of a sweep that goes on: what it was asked for first, where this command says nothing of it.

    Args:
        arguments: this command's; without ``sweep.resume=`` they come back as they are.
        folder: what a relative path means.

    Raises:
        FileNotFoundError: there is no sweep in the folder.
    """
    place = next((entry.partition("=")[2] for entry in arguments if entry.startswith(f"{KEY}=")), "").strip("'\"")
    if place in {"", "null"}:
        return list(arguments)
    from statewise.sweeps.rows import key_of

    sweep = (folder / Path(place).expanduser()).absolute()
    if not (sweep / MULTIRUN).is_file():
        what = f"holds no sweep: it has no {MULTIRUN}" if sweep.is_dir() else "does not exist"
        raise FileNotFoundError(f"{KEY}={place}: {sweep} {what}; give the folder of a command with -m")
    before = OmegaConf.select(OmegaConf.load(sweep / MULTIRUN), "hydra.overrides")
    own = {key_of(entry) for entry in arguments} | set(NOT_INHERITED)
    asked = [str(entry) for entry in (*before.task, *before.hydra) if key_of(str(entry)) not in own]
    if "launcher" in own:  # another one has other keys
        asked = [entry for entry in asked if not key_of(entry).startswith("launcher.")]
    multirun = [] if {"-m", "--multirun"} & set(arguments) else ["--multirun"]
    kept = [entry for entry in arguments if key_of(entry) not in {"hydra.sweep.dir", KEY}]
    return [*multirun, *asked, *kept, f"{KEY}={quoted(str(sweep))}", f"hydra.sweep.dir={quoted(str(sweep))}"]


def done_before(sweep: Path) -> set[frozenset[str]]:
    """What the jobs do that ended ok in this folder."""
    from statewise.sweeps.rows import identity, rows_of

    try:
        return {identity(row.overrides) for row in rows_of(sweep) if row.status == "ok"}
    except FileNotFoundError:  # no job has begun
        return set()


def interrupted_before(sweep: Path) -> dict[frozenset[str], Path]:
    """The folders of jobs that were ended by a signal or with their sweep, and can go on from a checkpoint, by what they do."""
    from statewise.sweeps.rows import identity, rows_of

    try:
        rows = rows_of(sweep)
    except FileNotFoundError:
        return {}
    stopped = [row for row in rows if row.status in {"interrupted", "running", "unfinished"}]
    return {identity(row.overrides): row.folder for row in stopped if (row.folder / "checkpoints" / "last.ckpt").is_file()}


def first_number(sweep: Path) -> int:
    """The number of the next job: above that of every folder and every record there is."""
    from statewise.sweeps.job_record import read_job

    folders = [entry for entry in sweep.iterdir() if entry.is_dir()]
    named = [int(entry.name.partition("-")[0]) for entry in folders if entry.name.partition("-")[0].isdecimal()]
    recorded = [record.number for entry in folders if (record := read_job(entry)) is not None]
    return max([-1, *named, *recorded]) + 1
