"""A file in, a checked table out: time, series and numeric columns found, sorted, nothing odd let through in silence.

read_table -> files.py (which files, raw columns) -> columns.py (what each is for) -> times/ (moments in UTC)
           -> checked.py (numbers, one column at a time) -> order.py (sorted, no moment twice)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from statewise.data.files.raw import Raw
from statewise.data.files.read import read_files
from statewise.data.files.reading import AS_IT_IS, Reading
from statewise.data.files.search import search
from statewise.data.files.series import FILE, series_of_files
from statewise.data.tables.checked import RawColumns, notations
from statewise.data.tables.columns import NumberColumns, TimeColumns, choose_numbers, choose_series, choose_time
from statewise.data.tables.heads import Heads
from statewise.data.tables.numeric import Columns, InMemory
from statewise.data.tables.order import in_order
from statewise.data.tables.rows import Rows
from statewise.data.tables.times.utc import utc_times
from statewise.data.tables.understood import Found, Understood


@dataclass(frozen=True)
class Table:
    """Checked rows of one or more series, sorted by series, then time, whose numbers are read when they are asked for.

    Attributes:
        time, series: what these columns are called in the file; None where there is none.
        notes: sentences about what was read.
        inserted: rows that no file holds (regular.py); None where there is none.
        understood: what was understood of the files; None for a table of no file.
    """

    rows: Rows
    numeric: Columns
    time: str | None = None
    series: str | None = None
    notes: tuple[str, ...] = ()
    inserted: Bool[np.ndarray, " r"] | None = None
    understood: Understood | None = None

    @classmethod
    def of(cls, frame: pl.DataFrame, time: str | None, series: str | None, columns: Sequence[str]) -> "Table":
        """A frame that is in order already."""
        rows = Rows.of(
            None if time is None else frame[time], None if series is None else frame[series].cast(pl.String), len(frame)
        )
        return cls(rows, InMemory(frame.select(columns)), time, series)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.numeric.names

    def read(self, name: str) -> Float[np.ndarray, " r"]:
        """The values of a column, NaN where missing."""
        return self.numeric.read(name)

    @property
    def frame(self) -> pl.DataFrame:
        """Everything at once: times (ns, UTC without a zone), series, then the numeric columns as Float64 with NaN."""
        parts: list[pl.Series] = []
        if self.time is not None:
            parts.append(pl.Series(self.time, self.rows.times))
        if self.series is not None:
            names = pl.Series(self.series, self.rows.series, dtype=pl.String)
            parts.append(names.gather(self.rows.codes))
        return pl.DataFrame([*parts, *(pl.Series(name, self.read(name)) for name in self.columns)])


def read_table(
    path: str | Sequence[str],
    *,
    folder: Path,
    columns: Sequence[str] | Callable[[Sequence[str]], Sequence[str]] | None = None,
    reading: Reading = AS_IT_IS,
) -> Table:
    """Reads files: one, all in a folder, all that match a pattern, or all of a list.

    path: relative ones mean `folder`, the folder where the command was started.
    columns: the numeric columns that must be read, or what says them from the names that the file has; None reads all
    numeric ones.
    Raises FileNotFoundError, or ValueError with one line that names the file, the column, the row (counted from 1
    below the header) and the remedy.
    """
    raw = read_files(search(path, folder), reading, columns)
    heads = Heads(raw, reading.null_values)
    notes = list(raw.notes)
    time = choose_time(heads, reading)
    by_file = reading.series == FILE and FILE not in raw.names
    series, why = (None, "") if by_file else choose_series(heads, reading.series, time)
    if callable(columns):
        columns = columns(raw.names)
    numbers = choose_numbers(heads, columns, time, series, reading)
    understood = _understood(raw, time, (series, why), numbers)

    stamps = names = None
    if time is None:
        notes.append("no time column found: rows are taken in the order of the file")
    else:
        notes += [] if time.note is None else [time.note]
        raw, about = _without_blank_rows(raw, list(time.parts.values()))
        notes += about
    names = None if series is None else _checked_series(raw, series)
    if time is not None:
        read = utc_times(raw, time.parts, names if names is not None else _files(raw), reading, time.name)
        stamps = read.values
        understood = replace(understood, zone=read.zone, naive=read.naive)
        notes += [f'time column "{time.name}": {read.how}, zone {read.zone}, {_span(stamps)}', *read.notes]
    if names is not None:
        notes.append(f'series column "{series}": {names.n_unique()} series')
    else:
        names, about = series_of_files(raw, stamps, forced=by_file)
        notes += about
        series = None if names is None else FILE
    written, about = notations(raw, heads, numbers.names, reading)
    notes += [*about, f"numeric columns: {', '.join(numbers.names)}", *numbers.notes]

    rows, order, about = in_order(raw, stamps, names, reading.duplicates)
    notes += about
    called = None if time is None else time.name
    return Table(rows, RawColumns(raw, written, order), called, series, tuple(notes), understood=understood)


def _understood(raw: Raw, time: TimeColumns | None, series: tuple[str | None, str], numbers: NumberColumns) -> Understood:
    found = []
    for name, dtype in raw.types.items():
        if time is not None and name in time.parts.values():
            role, why = "time", time.why
        elif name == series[0]:
            role, why = "series", series[1]
        elif name in numbers.names:
            role, why = "number", "numeric"
        else:
            role, why = "left out", numbers.left_out[name]
        found.append(Found(name, role, str(dtype), why))
    return Understood(tuple(dict.fromkeys(chunk.format for chunk in raw.chunks)), tuple(found), "", False)


def _files(raw: Raw) -> pl.Series | None:
    """The file of each row: one after another they are no series, but each is in an order of its own."""
    if len(raw.chunks) == 1:
        return None
    sizes = [chunk.rows for chunk in raw.chunks]
    codes = np.repeat(np.arange(len(sizes)), sizes)
    return pl.Series(codes if raw.kept is None else codes[raw.kept])


def _span(stamps: pl.Series) -> str:
    first, last = pl.select(first=stamps.min(), last=stamps.max()).row(0)
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S}"


def _without_blank_rows(raw: Raw, times: list[str]) -> tuple[Raw, list[str]]:
    """Drops rows without any value: in a file with times they stand for no moment."""
    # The other columns are looked at only where a time is missing.
    if not raw.columns(times).select(pl.all_horizontal(pl.all().is_null()).any()).item():
        return raw, []
    filled = raw.computed(pl.any_horizontal(pl.all().is_not_null())).to_series()
    blank = raw.rows - int(filled.sum())
    if blank == 0:
        return raw, []
    return raw.keep(filled.to_numpy()), [f"{blank} blank row{'s' if blank > 1 else ''} dropped"]


def _checked_series(raw: Raw, name: str) -> pl.Series:
    column = raw.column(name)
    # "NA" is a name like any other here: a bank in Montreal trades under it.
    absent = column.is_null() | (column.cast(pl.String) == "")
    if bool(absent.any()):
        where = raw.where(int(absent.arg_true()[0]))
        raise ValueError(f'data.path: {where}: the series column "{name}" is empty; fill it or remove the row')
    return column.cast(pl.String)
