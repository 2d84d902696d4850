"""The table of many runs: for the terminal, and as sweep.csv, which grows with every job that ends."""

import csv
import io
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statewise.console import COLOURS
from statewise.runs import atomic_file
from statewise.summary import number, percent
from statewise.sweeps.rows import Row, best_rows, common_overrides, identity, rows_of, varied_overrides

SWEEP_CSV = "sweep.csv"
COLUMNS = (
    "job", "overrides", "status", "objective", "val_mse", "test_mse", "test_mae", "best_baseline", "best_baseline_mse", "skill",
    "health", "seconds", "folder", "message",
)  # fmt: skip
BEST = "★"
MAX_NAMES = 8


def write_sweep_csv(folder: Path) -> Path:
    """Write sweep.csv into the folder of a sweep, from what its jobs have left so far; returns its path.

    One line for each job, floats with all their digits, empty where there is nothing. `overrides` can be pasted into a
    command line; `folder` is below that of the file, so that both can move together.

    Raises: FileNotFoundError where no job has left anything yet.
    """
    folder = Path(folder).absolute()
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows_of(folder):
        line = {field.name: getattr(row, field.name) for field in fields(Row)}
        writer.writerow(line | {"overrides": typed(row.overrides), "folder": row.folder.relative_to(folder).as_posix()})
    with atomic_file(folder / SWEEP_CSV) as file:
        file.write(text.getvalue().encode("utf-8"))
    return folder / SWEEP_CSV


def sweep_table(rows: Sequence[Row], *, objective: str = "objective", below: Path | None = None) -> Table:
    """One line for each row, in the order given: what it has for itself, how it ended, and its errors.

    Args:
        objective: its name, for the head of the column.
        below: folders are shown as seen from here; not at all where each is the number of its job.

    The best row, or of several data sets the best of each, is bold and has a star.
    """
    common, best = common_overrides(rows), best_rows(rows)
    numbered = any(row.job is not None for row in rows)
    names = {row.model for row in rows if row.model}, {row.data for row in rows if row.data}
    where = [os.path.relpath(row.folder, below) if below else str(row.folder) for row in rows]
    shown = [str(row.job) for row in rows] != where
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    if numbered:
        table.add_column("job", justify="right", no_wrap=True)
    for name, several in zip(("model", "data"), names, strict=True):
        if len(several) > 1:
            table.add_column(name, no_wrap=True)
    table.add_column("overrides", overflow="fold")
    table.add_column("status", no_wrap=True)
    for name in (objective, "test MSE", "test MAE", "skill"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("health", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    if shown:
        table.add_column("folder", overflow="fold")
    for row, folder in zip(rows, where, strict=True):
        is_best = any(row is found for found in best)
        health = (row.health or "–").replace("_", " ")
        table.add_row(
            BEST if is_best else "",
            *([str("–" if row.job is None else row.job)] if numbered else []),
            *(name for name, several in zip((row.model, row.data), names, strict=True) if len(several) > 1),
            Text(typed(varied_overrides(row, common)) if len(rows) > 1 else typed(row.overrides)),
            Text(row.status, style=COLOURS.get(row.status, "red")),
            number(row.objective),
            number(row.test_mse),
            number(row.test_mae),
            percent(row.skill),
            Text(health, style=COLOURS.get(row.health or "not_checked", "red")),
            "–" if row.seconds is None else f"{row.seconds:,.1f}",
            *([Text(folder)] if shown else []),
            style="bold" if is_best else None,
        )
    return table


def print_sweep(rows: Sequence[Row], below: Path, *, objective: str = "objective", to: Console) -> None:
    """The table with what its rows have in common above it, and why some did not end well below it."""
    if len(rows) > 1 and (common := common_overrides(rows)):
        _dim(to, f"all with: {typed(common)}")
    to.print(sweep_table(rows, objective=objective, below=below))
    for (status, message), names in reasons(rows, below).items():
        to.print(Text.assemble((listed(names), "bold"), f"  {status}: {message}"), soft_wrap=True)
    counts = [f"{sum(row.status == status for row in rows)} {status}" for status in dict.fromkeys(row.status for row in rows)]
    baselines = {(row.best_baseline, row.best_baseline_mse) for row in rows if row.best_baseline_mse is not None}
    for baseline, mse in baselines if len(baselines) == 1 else ():
        to.print(f"best baseline, of all on the same test rows: {baseline}, MSE {number(mse)}", soft_wrap=True, markup=False)
    best = f"; {BEST} lowest {objective} of those that ended ok" if best_rows(rows) and len(rows) > 1 else ""
    several = " (of each data set, horizon and fold)" if best and len(best_rows(rows)) > 1 else ""
    _dim(to, f"{len(rows)} run{'s' if len(rows) > 1 else ''}: {', '.join(counts)}{best}{several}; folder: {below}")


def reasons(rows: Sequence[Row], below: Path) -> dict[tuple[str, str], list[str]]:
    """Why rows did not end ok: status and message, and the numbers (or folders) of the rows that say it."""
    numbered = len({row.job for row in rows} - {None}) == len(rows)
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.message and row.status != "ok":
            name = str(row.job) if numbered else os.path.relpath(row.folder, below)
            found.setdefault((row.status, row.message), []).append(name)
    return found


def listed(names: Sequence[str]) -> str:
    """With commas, and how many more there are where they are very many."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def row_line(row: Row, *, objective: str = "objective") -> str:
    """One job in one line, as it ends; the whole table follows at the end of the sweep."""
    name = f"job {row.job}" if row.job is not None else row.folder.name
    parts = [f"{name} {row.status}", typed(entry for entry in row.overrides if entry in identity(row.overrides))]
    parts += [f"{objective} {number(row.objective)}"] if row.objective is not None else []
    parts += [f"test MSE {number(row.test_mse)}"] if row.test_mse is not None else []
    parts += [f"{row.seconds:,.1f} s"] if row.seconds is not None else []
    parts += [row.message] if row.message and row.status != "ok" else []
    return " · ".join(part for part in parts if part)


def typed(overrides: Iterable[str]) -> str:
    """As they can be typed again, quoted where a shell needs it."""
    return shlex.join(overrides)


def _dim(to: Console, text: str) -> None:
    to.print(Text(text, style="dim"), soft_wrap=True)
