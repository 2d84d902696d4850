"""One line for each run of a folder: what it was asked for, how it ended and how good it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from statewise import runs
from statewise.choices import did_you_mean
from statewise.summary import best_baseline
from statewise.sweeps import composed
from statewise.sweeps.job_record import JOB, JobRecord, read_job

NOT_THE_RUN = ("sweep", "launcher", "hydra")  # these say how jobs are done, not what they do
OTHER_TARGETS = ("data.fold", "data.horizon")
SIGNS_OF_LIFE = ("train.log", runs.METRICS, JOB, str(runs.OVERRIDES))


@dataclass(frozen=True)
class Row:
    """One run. Figures are None where there is none, never NaN.

    Attributes:
        job: the number in its sweep; None for a run of its own.
        overrides: as typed.
        status: ok, diverged, unhealthy, failed or interrupted; running for a job whose launcher has not seen its end;
            unfinished for a run that left no result, because it goes on or was broken off.
        objective: what its sweep minimises; of a run that was not asked for one the best validated mse.
        health: the verdict.
        best_baseline: its name.
        skill: the share of the best baseline's mse that is saved.
        message: why, where it is not ok.
        folder: the run folder.
    """

    job: int | None
    overrides: tuple[str, ...]
    status: str
    folder: Path
    model: str = ""
    data: str = ""
    objective: float | None = None
    val_mse: float | None = None
    test_mse: float | None = None
    test_mae: float | None = None
    best_baseline: str | None = None
    best_baseline_mse: float | None = None
    skill: float | None = None
    health: str | None = None
    seconds: float | None = None
    message: str = ""


def rows_of(folder: Path) -> list[Row]:
    """Every run in a folder of runs or of a sweep, by folder and then by number; of a job done again only its latest attempt.

    Raises:
        FileNotFoundError: there is no such folder, or no run in it.
    """
    folder = Path(folder).absolute()
    if not folder.is_dir():
        ancestor = next(parent for parent in folder.parents if parent.is_dir())
        near = did_you_mean(folder.name, [entry.name for entry in ancestor.iterdir() if entry.is_dir()])
        raise FileNotFoundError(f"{folder} does not exist{near}")
    found = {*runs.run_folders(folder), *(record.parent for record in _job_records(folder))}
    if not found:
        raise FileNotFoundError(f"{folder} holds no run: neither .hydra/config.yaml nor {JOB}, down to three folders below it")
    return latest_attempts([row_of(path) for path in sorted(found, key=_in_order)])


def row_of(folder: Path) -> Row:
    """The line of one run folder, from job.json, summary.json and .hydra as far as they are there."""
    run, job, unreadable = runs.Run(folder), read_job(folder), ""
    try:
        summary = run.summary
    except ValueError as error:  # one broken file must not cost the table of all
        summary, unreadable = None, str(error)
    overrides = tuple(job.overrides if job else composed.overrides(folder))
    status, message = _outcome(folder, job, summary)
    message = unreadable or message
    if summary is None:
        figures: dict[str, Any] = {}
    else:
        test, best = summary["test"], best_baseline(summary)
        figures = {
            "model": summary["model"],
            "data": summary["data"],
            "test_mse": test["mse"],
            "test_mae": test["mae"],
            "health": summary["health"]["verdict"],
        }
        if best is not None:
            figures |= {"best_baseline": best[0].replace("_", " "), "best_baseline_mse": best[1]}
            if test["mse"] is not None and best[1] > 0:
                figures["skill"] = 1.0 - test["mse"] / best[1]
    validated = ((summary or {}).get("val") or {}).get("mse")
    figures["val_mse"] = _lowest(run, "val/mse") if validated is None else validated
    if job is not None and job.status != "running":
        figures |= {"objective": job.objective, "seconds": job.seconds}
    elif summary is not None:
        known = [value for value in summary["seconds"].values() if value is not None]
        value = (summary.get("objective") or {"value": figures["val_mse"]})["value"] if status == "ok" else None
        figures |= {"objective": value, "seconds": sum(known) if known else None}
    return Row(job.number if job else _numbered(folder), overrides, status, folder, message=message, **figures)


def latest_attempts(rows: Iterable[Row]) -> list[Row]:
    """The rows without those that a later one of the same sweep has replaced: same overrides, its number or a higher one."""
    latest: dict[Any, Row] = {}
    for row in rows:
        # A run of its own is never replaced: two runs with the same overrides are two results.
        key = row.folder if row.job is None else (row.folder.parent, identity(row.overrides))
        before = latest.get(key)
        if before is None or before.job is None or row.job is None or row.job >= before.job:
            latest.pop(key, None)
            latest[key] = row
    return list(latest.values())


def identity(overrides: Iterable[str]) -> frozenset[str]:
    """What a job does: its overrides in any order, the last one of a key, without those that say how jobs are done."""
    last = {key_of(entry): entry for entry in overrides}
    return frozenset(entry for key, entry in last.items() if of_the_run(key))


def key_of(override: str) -> str:
    """``optimizer.lr`` of ``+optimizer.lr=1e-3``."""
    return override.partition("=")[0].lstrip("+~")


def of_the_run(key: str) -> bool:
    """Whether a key says what a job does, and not how or where the jobs of a sweep are done."""
    return not any(key == group or key.startswith((f"{group}.", f"{group}/")) for group in NOT_THE_RUN)


def common_overrides(rows: Sequence[Row]) -> tuple[str, ...]:
    """What every row was asked for, in the order of the first one; all of it where there is one row."""
    if not rows:
        return ()
    shared = frozenset.intersection(*(identity(row.overrides) for row in rows))
    return tuple(dict.fromkeys(entry for entry in rows[0].overrides if entry in shared))


def varied_overrides(row: Row, common: Iterable[str]) -> tuple[str, ...]:
    """What tells a row from the others."""
    own = identity(row.overrides) - set(common)
    return tuple(dict.fromkeys(entry for entry in row.overrides if entry in own))


def best_rows(rows: Iterable[Row]) -> list[Row]:
    """The ok rows with the lowest objective: of each data set, horizon and fold on its own.

    Errors on different rows say nothing of each other.
    None where there is nothing to choose between.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.status == "ok" and row.objective is not None:
            asked = sorted(entry for entry in identity(row.overrides) if key_of(entry) in OTHER_TARGETS)
            groups.setdefault((row.data, *asked), []).append(row)
    if len(groups) > 1 and all(len(group) == 1 for group in groups.values()):
        return []
    return [min(group, key=lambda row: row.objective or 0.0) for group in groups.values()]


def _job_records(folder: Path) -> Iterable[Path]:
    return (path for level in range(4) for path in folder.glob("/".join([*["*"] * level, JOB])))


def _in_order(folder: Path) -> tuple[Path, int, int, str]:
    """Job 10 after job 9, and a further attempt at one, 9-2, after the first."""
    number, _, attempt = folder.name.partition("-")
    if not number.isdecimal() or not (attempt or "1").isdecimal():
        return folder.parent, -1, 0, folder.name
    return folder.parent, int(number), int(attempt or 1), folder.name


def _numbered(folder: Path) -> int | None:
    """The number of a job that has no record: Hydra names its folder by it, and leaves multirun.yaml beside it."""
    return int(folder.name) if folder.name.isdecimal() and (folder.parent / "multirun.yaml").is_file() else None


def _outcome(folder: Path, job: JobRecord | None, summary: dict[str, Any] | None) -> tuple[str, str]:
    """(status, message). The launcher's word goes before the run's own: it saw the end."""
    if job is not None and job.status != "running":
        return job.status, job.message or str((summary or {}).get("error", "")) if job.status != "ok" else ""
    if summary is not None:
        return summary["status"], summary.get("error", "")
    signs = [(folder / name).stat().st_mtime for name in SIGNS_OF_LIFE if (folder / name).is_file()]
    when = f"; last written {datetime.fromtimestamp(max(signs)):%Y-%m-%d %H:%M:%S}" if signs else ""
    return ("unfinished" if job is None else "running"), f"no result yet, or broken off{when}"


def _lowest(run: runs.Run, name: str) -> float | None:
    """Of a metric over the run, for a run that ended before it could sum up."""
    try:
        metrics = run.metrics
    except pl.exceptions.PolarsError:  # the run is writing it just now
        return None
    if metrics is None or name not in metrics.columns:
        return None
    values = metrics[name].drop_nulls().drop_nans()
    return float(values.min()) if len(values) else None  # type: ignore[arg-type]
