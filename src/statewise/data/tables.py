"""A file in, a checked table out: time, series and numeric columns found, sorted, nothing odd let through in silence.

read_table -> files.py (which files, raw columns) -> columns.py (what each is for) -> parsing.py (times, numbers)
           -> order.py (sorted, no moment twice)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from statewise.data.columns import choose_numbers, choose_series, choose_time
from statewise.data.files import find_files, read_files
from statewise.data.numeric import Columns, InMemory
from statewise.data.order import in_order
from statewise.data.parsing import Numbers, missing, parse_numbers, parse_times
from statewise.data.raw import Raw
from statewise.data.reading import AS_IT_IS, Reading
from statewise.data.rows import Rows


@dataclass(frozen=True)
class Table:
    """Checked rows of one or more series, sorted by series, then time, whose numbers are read when they are asked for.

    Attributes:
        time, series: what these columns are called in the file; None where there is none.
        notes: sentences about what was read.
    """

    rows: Rows
    numeric: Columns
    time: str | None = None
    series: str | None = None
    notes: tuple[str, ...] = ()

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
    path: str | Sequence[str], *, folder: Path, columns: Sequence[str] | None = None, reading: Reading = AS_IT_IS
) -> Table:
    """Reads files: one, all in a folder, all that match a pattern, or all of a list.

    path: relative ones mean `folder`, the folder where the command was started.
    columns: the numeric columns that must be read; None reads all numeric ones.
    Raises FileNotFoundError, or ValueError with one line that names the file, the column, the row (counted from 1
    below the header) and the remedy.
    """
    assert isinstance(path, str)
    assert not isinstance(reading.time, tuple)
    raw = read_files(find_files(path, folder), reading)
    notes = list(raw.notes)
    time, about_time = choose_time(raw, reading.time)
    series, about_series = choose_series(raw, reading.series, time)
    notes += about_time + about_series
    if time is not None:
        raw, about = _without_blank_rows(raw)
        notes += about
    numbers, about_numbers = choose_numbers(raw, columns, time, series)

    stamps = names = None
    if time is not None:
        stamps, how = _checked_times(raw, time)
        notes.append(f'time column "{time}": {how}, {_span(stamps)}')
    if series is not None:
        names = _checked_series(raw, series)
        notes.append(f'series column "{series}": {names.n_unique()} series')
    for name in numbers:
        parsed = parse_numbers(raw.column(name))
        _check_numbers(raw, name, parsed)
        if parsed.undefined:
            count = f"{parsed.undefined:,} time" + ("s" if parsed.undefined > 1 else "")
            notes.append(f'column "{name}": 9223372036854775807 read as missing, an undefined price, {count}')
    notes.append(f"numeric columns: {', '.join(numbers)}")
    notes += about_numbers

    rows, order, about_order = in_order(raw, stamps, names, reading.duplicates)
    return Table(rows, RawColumns(raw, tuple(numbers), order), time, series, (*notes, *about_order))


class RawColumns:
    """The numeric columns of raw rows, in the order of the table."""

    def __init__(self, raw: Raw, names: tuple[str, ...], order: Int[np.ndarray, " r"] | None) -> None:
        self._raw, self._names, self._order = raw, names, order

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    def read(self, name: str) -> Float[np.ndarray, " r"]:
        parsed = parse_numbers(self._raw.column(name))
        _check_numbers(self._raw, name, parsed)
        values = parsed.values.to_numpy()
        return values if self._order is None else values[self._order]


def _span(stamps: pl.Series) -> str:
    first, last = pl.select(first=stamps.min(), last=stamps.max()).row(0)
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S}"


def _without_blank_rows(raw: Raw) -> tuple[Raw, list[str]]:
    """Drops rows without any value: in a file with times they stand for no moment."""
    filled = raw.frame.select(pl.any_horizontal(pl.all().is_not_null())).collect().to_series()
    blank = raw.rows - int(filled.sum())
    if blank == 0:
        return raw, []
    return raw.keep(filled.to_numpy()), [f"{blank} blank row{'s' if blank > 1 else ''} dropped"]


def _checked_times(raw: Raw, name: str) -> tuple[pl.Series, str]:
    column = raw.column(name)
    parsed = parse_times(column)
    lost = parsed.values.is_null()
    if bool(lost.any()):
        index = int(lost.arg_true()[0])
        count = int(lost.sum())
        what = "is empty" if bool(missing(column)[index]) else f'holds "{column[index]}", which is no time'
        others = f" ({count:,} such rows)" if count > 1 else ""
        raise ValueError(
            f'data.path: {raw.where(index)}: the time column "{name}" {what}{others}; '
            "write times as 2024-01-02 14:30:00 or as numbers since 1970, or name another column in data.time"
        )
    return parsed.values, parsed.how


def _checked_series(raw: Raw, name: str) -> pl.Series:
    column = raw.column(name)
    # "NA" is a name like any other here: a bank in Montreal trades under it.
    absent = column.is_null() | (column.cast(pl.String) == "")
    if bool(absent.any()):
        where = raw.where(int(absent.arg_true()[0]))
        raise ValueError(f'data.path: {where}: the series column "{name}" is empty; fill it or remove the row')
    return column.cast(pl.String)


def _check_numbers(raw: Raw, name: str, parsed: Numbers) -> None:
    if bool(parsed.bad.any()):
        index = int(parsed.bad.arg_true()[0])
        count = int(parsed.bad.sum())
        others = f"; {count:,} such values in this column" if count > 1 else ""
        raise ValueError(
            f'data.path: {raw.where(index)}, column "{name}": "{raw.column(name)[index]}" is not a number{others}; '
            "write plain numbers such as 1234.5, leave missing values empty, or leave the column out of data.features"
        )
    infinite = parsed.values.is_infinite()
    if bool(infinite.any()):
        index = int(infinite.arg_true()[0])
        value = raw.column(name)[index]
        raise ValueError(f'data.path: {raw.where(index)}, column "{name}": "{value}" is infinite; correct it or leave it empty')
