"""The doctor: what was understood of files, what is odd in them, and which windows training would get.

Nothing is estimated: the table is read, cut and scaled as for a run, so that what training would refuse is refused here,
with the same line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from statewise.data.datamodule import WindowsDataModule
from statewise.data.datasets import File
from statewise.data.doctor.changed import held
from statewise.data.doctor.leaks import FileOf
from statewise.data.doctor.losses import WindowAccount, windows_of, windows_without_setup
from statewise.data.doctor.seen_so_far import SeenSoFar, see
from statewise.data.oddities import OF_A_COLUMN, OF_THE_TABLE, Oddity, Subject, in_order_of_severity
from statewise.data.oddities.refused import repeated_rows
from statewise.data.oddities.rounding import lost_to_rounding
from statewise.data.progress import progress
from statewise.data.segments.frequency import frequency
from statewise.data.tables.table import Table
from statewise.data.windows.splits import rows_in


@dataclass(frozen=True)
class Column:
    """One column of the files; the figures of numeric ones, None where there is no value."""

    name: str
    role: str
    type: str
    why: str
    missing: int | None = None
    min: float | None = None
    max: float | None = None
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True)
class Examination:
    """What the doctor found.

    Attributes:
        formats, rows, columns: of the files; empty, 0 and empty where not even that could be understood.
        table: None where it could not be read.
        first_row, last_row: of the table, those of the earliest and of the latest time.
        windows: None where training refuses before there are any.
        refused: the line that training would refuse with, None where it would begin.
        module: set up, None where it is refused.
    """

    formats: tuple[str, ...]
    rows: int
    columns: tuple[Column, ...]
    table: Table | None = None
    first_row: int | None = None
    last_row: int | None = None
    frequency: str | None = None
    oddities: tuple[Oddity, ...] = ()
    windows: WindowAccount | None = None
    refused: str | None = None
    module: WindowsDataModule | None = field(default=None, compare=False)
    over: Callable[[Table], FileOf] | None = field(default=None, compare=False)


def examine(keys: Mapping[str, Any], *, dtype: torch.dtype, further: Callable[[WindowsDataModule], None]) -> Examination:
    """Examines the files of a configuration.

    Args:
        keys: the arguments of datasets.File.
        dtype: of the batches of the run.
        further: raises ValueError where the run would be refused after its data was prepared.
    """
    try:
        module = File(**keys)
    except ValueError as error:
        return Examination((), 0, (), refused=str(error))
    repeats: list[Oddity] = []
    refused = None
    table: Table | None
    try:
        table = module.table()
    except (ValueError, OSError) as error:
        refused = str(error)
        table, repeats = _despite_refusal(keys, refused)
    if table is None:
        seen = see(module)
        return _of_what_was_seen(seen, refused or "")
    table = held(table)
    over = partial(_over, keys=dict(keys), dtype=dtype)
    module = over(table)
    ready: WindowsDataModule | None = None
    windows: WindowAccount | None = None
    try:
        module.setup()
        windows = windows_of(module)
        if refused is None:
            further(module)
        ready = module
    except (ValueError, OSError) as error:
        refused = refused or str(error)
        windows = windows or _windows_anyway(module)
    lost = {} if windows is None else {cause: windows.share_lost(cause) for cause in ("gaps", "missing")}
    subject = Subject(table, _trained(ready, table), module.gap, module.max_gap, module.missing, lost)
    columns, oddities = _looked_at(subject)
    if repeats:
        # The reader's own note says what a policy would do that nobody has chosen.
        oddities = [oddity for oddity in oddities if oddity.id != repeats[0].id]
    oddities += repeats + lost_to_rounding(ready)
    first, last = _ends(table)
    understood = table.understood
    return Examination(
        () if understood is None else understood.formats,
        len(table.rows),
        columns if understood is None else _all_columns(table, columns),
        table,
        first,
        last,
        frequency(table.rows),
        tuple(in_order_of_severity(oddities)),
        windows,
        refused,
        ready if refused is None else None,
        over,
    )


def _over(table: Table, *, keys: Mapping[str, Any], dtype: torch.dtype) -> FileOf:
    module = FileOf(table, **keys)
    module.dtype = dtype
    return module


def _despite_refusal(keys: Mapping[str, Any], line: str) -> tuple[Table | None, list[Oddity]]:
    """The table that policies refuse, as laxer ones read it, and the repeated rows that were in the way."""
    found = repeated_rows(line)
    laxer = {"impossible_bars": "keep"} if found is None else {"impossible_bars": "keep", "duplicates": "first"}
    repeats = [] if found is None else [found]
    if all(keys.get(key) == value for key, value in laxer.items()):
        return None, repeats
    try:
        return File(**{**keys, **laxer}).table(), repeats
    except (ValueError, OSError):
        return None, repeats


def _of_what_was_seen(seen: SeenSoFar, refused: str) -> Examination:
    found = repeated_rows(refused)
    columns = tuple(Column(one.name, one.role, one.type, one.why) for one in seen.columns)
    return Examination(seen.formats, seen.rows, columns, oddities=() if found is None else (found,), refused=refused)


def _windows_anyway(module: WindowsDataModule) -> WindowAccount | None:
    try:
        return windows_without_setup(module)
    except ValueError:
        return None


def _trained(module: WindowsDataModule | None, table: Table) -> Bool[np.ndarray, " r"] | None:
    """Which rows of the table lie in the training part."""
    if module is None:
        return None
    prepared = module.prepared
    flags = rows_in(prepared.part("train").blocks, len(prepared.rows))
    inserted = prepared.source.table.inserted
    return flags if inserted is None else flags[~inserted]


def _looked_at(subject: Subject) -> tuple[tuple[Column, ...], list[Oddity]]:
    """The numeric columns, and all that is odd; every column is read once, and one at a time."""
    table = subject.table
    oddities = [oddity for check in OF_THE_TABLE for oddity in check(subject)]
    columns = []
    size = 8 * len(table.rows) * len(table.columns)
    with progress("examining", len(table.columns), "columns", size) as done:
        for name in table.columns:
            values = table.read(name)
            columns.append(_column(table, name, values))
            oddities += [oddity for check in OF_A_COLUMN for oddity in check(subject, name, values)]
            del values
            done(name)
    return tuple(columns), oddities


def _column(table: Table, name: str, values: Float[np.ndarray, " r"]) -> Column:
    first, last = _ends(table)
    missing = int(np.isnan(values).sum())
    low, high = (None, None) if missing == len(values) else (float(np.nanmin(values)), float(np.nanmax(values)))
    return Column(name, "number", "Float64", "", missing, low, high, number(values, first), number(values, last))


def number(values: Float[np.ndarray, " r"], row: int | None) -> float | None:
    """A value, None where it is missing."""
    return None if row is None or np.isnan(values[row]) else float(values[row])


def _all_columns(table: Table, numeric: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns of the files in their order, the numeric ones with their figures."""
    assert table.understood is not None
    figures = {column.name: column for column in numeric}
    found = []
    for one in table.understood.columns:
        plain = Column(one.name, one.role, one.type, one.why)
        own = figures.get(one.name)
        found.append(plain if own is None else replace(own, role=one.role, type=one.type, why=one.why))
    return tuple(found)


def _ends(table: Table) -> tuple[int | None, int | None]:
    """The rows of the earliest and of the latest time, of several the first and the last."""
    count = len(table.rows)
    if not count:
        return None, None
    times = table.rows.times
    if times is None:
        return 0, count - 1
    return int(np.argmin(times)), count - 1 - int(np.argmax(times[::-1]))
