"""`statewise runs`: the table of the runs in some folders, sorted, filtered, as JSON or as a page.

Exit codes: 0 shown; 1 no run passes the filters; 2 refused.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from statewise.console import console
from statewise.summary import plain
from statewise.sweeps.choosing import known, objective_name, ordered, read_filter
from statewise.sweeps.rows import Row, best_rows, rows_of
from statewise.sweeps.table import print_sweep


def main(
    folders: Sequence[Path], sort: str | None, where: Sequence[str], best: int | None, *, as_json: bool, page: Path | None
) -> int:
    """Show the runs and return the exit code; what is refused is said in one line."""
    try:
        everything = [row for folder in folders for row in rows_of(folder)]
        every = list({row.folder: row for row in everything}.values())
        rows = chosen(every, sort, where, best)
        if page is not None and rows:
            _write_page(rows, page)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if as_json:
        sys.stdout.write(json.dumps(as_objects(rows), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    elif rows:
        print_sweep(rows, _above(folders), objective=objective_name(rows), to=console())
    if not rows:
        asked = " ".join(f"--where {entry!r}" for entry in where) or f"--best {best}: none ended ok"
        sys.stderr.write(f"none of {len(every)} runs passes {asked}\n")
        return 1
    if page is not None and not as_json:
        console().print(f"wrote {page}", soft_wrap=True, markup=False)
    return 0


def chosen(rows: Sequence[Row], sort: str | None = None, where: Sequence[str] = (), best: int | None = None) -> list[Row]:
    """The rows that pass every filter, in order; with `best` the first so many of those that ended ok.

    Raises: ValueError for a filter that is none, an unknown name or a `best` below 1; the message is one line.
    """
    if best is not None and best < 1:
        raise ValueError(f"--best must be at least 1, got {best}")
    filters = [read_filter(text) for text in where]
    for one in filters:
        known(one.name, rows, "--where")
    if sort is not None:
        known(sort.removeprefix("-"), rows, "--sort")
    kept = ordered((row for row in rows if all(one.passes(row) for one in filters)), sort)
    return [row for row in kept if row.status == "ok"][:best] if best is not None else kept


def as_objects(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For programs: every field of each row, and whether it is the best; nothing in it that JSON does not know."""
    best = best_rows(rows)
    return [plain(asdict(row)) | {"best": any(row is found for found in best)} for row in rows]


def _above(folders: Sequence[Path]) -> Path:
    return Path(os.path.commonpath([folder.absolute() for folder in folders]))


def _write_page(rows: Sequence[Row], page: Path) -> None:
    from statewise.sweeps.comparison import write_page

    write_page(rows, page)
