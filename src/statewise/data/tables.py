"""A file in, a checked table out: time, series and numeric columns found, sorted, nothing odd let through in silence.

read_table -> files.py (which files, raw columns) -> columns.py (what each is for) -> parsing.py (times, numbers)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from statewise.data.columns import choose_numbers, choose_series, choose_time, columns_of
from statewise.data.files import ROW, Raw, find_files, read_files
from statewise.data.parsing import Numbers, missing, parse_numbers, parse_times


@dataclass(frozen=True)
class Table:
    """Checked rows of one or more series, sorted by series, then time.

    frame: the time column (Datetime in ns, UTC without a zone) if there is one, the series column (String) if there is
    one, then the numeric columns as finite Float64 with NaN for missing. There are no nulls.
    """

    frame: pl.DataFrame
    time: str | None
    series: str | None
    columns: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read_table(
    path: str,
    *,
    folder: Path,
    time: str | None = None,
    series: str | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """Reads one CSV or Parquet file (also .gz, .zst) or all files that match a pattern.

    path: relative ones mean `folder`, the folder where the command was started.
    time, series: the names of these columns; None finds them.
    columns: the numeric columns that must be read; None reads all numeric ones.
    Raises FileNotFoundError, or ValueError with one line that names the file, the column, the row (counted from 1
    below the header) and the remedy.
    """
    raw = read_files(find_files(path, folder))
    notes = list(raw.notes)
    time, about_time = choose_time(raw, time)
    series, about_series = choose_series(raw, series, time)
    notes += about_time + about_series
    if time is not None:
        raw, about = _without_blank_rows(raw)
        notes += about
    numbers, about_numbers = choose_numbers(raw, columns, time, series)

    parts: list[pl.Series] = [raw.frame[ROW]]
    if time is not None:
        stamps, how = _checked_times(raw, time)
        parts.append(stamps)
        notes.append(f'time column "{time}": {how}, {_span(stamps)}')
    if series is not None:
        names = _checked_series(raw, series)
        parts.append(names)
        notes.append(f'series column "{series}": {names.n_unique()} series')
    for name, parsed in numbers.items():
        parts.append(_checked_numbers(raw, name, parsed))
        if parsed.undefined:
            count = f"{parsed.undefined:,} time" + ("s" if parsed.undefined > 1 else "")
            notes.append(f'column "{name}": 9223372036854775807 read as missing, an undefined price, {count}')
    notes.append(f"numeric columns: {', '.join(numbers)}")
    notes += about_numbers

    frame, about_order = _sorted(raw, pl.DataFrame(parts), time, series)
    return Table(frame.drop(ROW), time, series, tuple(numbers), (*notes, *about_order))


def _span(stamps: pl.Series) -> str:
    first, last = pl.select(first=stamps.min(), last=stamps.max()).row(0)
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S}"


def _without_blank_rows(raw: Raw) -> tuple[Raw, list[str]]:
    """Drops rows without any value: in a file with times they stand for no moment."""
    filled = pl.any_horizontal(pl.col(columns_of(raw.frame)).is_not_null())
    frame = raw.frame.filter(filled)
    blank = raw.frame.height - frame.height
    if blank == 0:
        return raw, []
    return Raw(frame, raw.paths, raw.counts, raw.notes), [f"{blank} blank row{'s' if blank > 1 else ''} dropped"]


def _row(raw: Raw, flags: pl.Series) -> tuple[int, str]:
    """The index of the first flagged row in the frame, and where it stands in its file."""
    index = int(flags.arg_true()[0])
    return index, raw.where(int(raw.frame[ROW][index]))


def _checked_times(raw: Raw, name: str) -> tuple[pl.Series, str]:
    column = raw.frame[name]
    parsed = parse_times(column)
    lost = parsed.values.is_null()
    if bool(lost.any()):
        index, where = _row(raw, lost)
        count = int(lost.sum())
        what = "is empty" if bool(missing(column)[index]) else f'holds "{column[index]}", which is no time'
        others = f" ({count:,} such rows)" if count > 1 else ""
        raise ValueError(
            f'data.path: {where}: the time column "{name}" {what}{others}; '
            "write times as 2024-01-02 14:30:00 or as numbers since 1970, or name another column in data.time"
        )
    return parsed.values, parsed.how


def _checked_series(raw: Raw, name: str) -> pl.Series:
    column = raw.frame[name]
    # "NA" is a name like any other here: a bank in Montreal trades under it.
    absent = column.is_null() | (column.cast(pl.String) == "")
    if bool(absent.any()):
        _, where = _row(raw, absent)
        raise ValueError(f'data.path: {where}: the series column "{name}" is empty; fill it or remove the row')
    return column.cast(pl.String)


def _checked_numbers(raw: Raw, name: str, parsed: Numbers) -> pl.Series:
    column = raw.frame[name]
    if bool(parsed.bad.any()):
        index, where = _row(raw, parsed.bad)
        count = int(parsed.bad.sum())
        others = f"; {count:,} such values in this column" if count > 1 else ""
        raise ValueError(
            f'data.path: {where}, column "{name}": "{column[index]}" is not a number{others}; '
            "write plain numbers such as 1234.5, leave missing values empty, or leave the column out of data.features"
        )
    infinite = parsed.values.is_infinite()
    if bool(infinite.any()):
        _, where = _row(raw, infinite)
        index = int(infinite.arg_true()[0])
        raise ValueError(f'data.path: {where}, column "{name}": "{column[index]}" is infinite; correct it or leave it empty')
    return parsed.values


def _sorted(raw: Raw, frame: pl.DataFrame, time: str | None, series: str | None) -> tuple[pl.DataFrame, list[str]]:
    """Sorts by series, then time (file order where there is no time); two rows of the same moment are an error."""
    keys = [key for key in (series, time) if key is not None]
    if not keys:
        return frame, []
    ordered = frame.sort(keys, maintain_order=True)
    if time is None:
        return ordered, []
    same = ordered.select(pl.all_horizontal(pl.col(key) == pl.col(key).shift(1) for key in keys)).to_series()
    same = same.fill_null(False)
    if bool(same.any()):
        index = int(same.arg_true()[0])
        count = int(same.sum())
        first, second = (raw.where(int(ordered[ROW][i])) for i in (index - 1, index))
        of_series = f' of series "{ordered[series][index]}"' if series is not None else ""
        raise ValueError(
            f"data.path: {first} and {second} have the same time {ordered[time][index]}{of_series} "
            f"({count:,} repeated rows in all); remove the repeated rows, or {_remedy(raw, time, series)}"
        )
    rows = ordered[ROW].to_numpy()
    moved = series is None and bool(np.any(np.diff(rows.astype(np.int64)) < 0))
    return ordered, ["the rows were not in the order of time and have been sorted"] if moved else []


def _remedy(raw: Raw, time: str, series: str | None) -> str:
    """Which column would tell rows of the same time apart, if any does."""
    frame = raw.frame
    key = "data.series"
    for name in columns_of(frame):
        text = frame[name].dtype == pl.String and not parse_numbers(frame[name]).mostly_numeric
        if name not in (time, series) and text and not frame.select(pl.struct(time, name).is_duplicated().any()).item():
            return f'set {key}="{name}" if that column tells several series apart'
    return f"name the column that tells several series apart in {key}"
