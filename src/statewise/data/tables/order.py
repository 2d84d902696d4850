"""Rows by series, then time, and no moment twice."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Bool, Int

from statewise.data.files.raw import Raw
from statewise.data.tables.numbers import parse_numbers
from statewise.data.tables.rows import Rows


def in_order(
    raw: Raw, times: pl.Series | None, series: pl.Series | None, duplicates: str
) -> tuple[Rows, Int[np.ndarray, " r"] | None, list[str]]:
    """The rows in order, the place in `raw` of each of them (None where nothing moves), and sentences.

    Without times the order of the file is kept in each series.

    Args:
        duplicates: what rows of one series and time mean: `error`, or which of them counts, the `first` or the `last` in
            the order of the files.

    Raises:
        ValueError: there are such rows, and they are an error.
    """
    keys = pl.DataFrame([column for column in (series, times) if column is not None])
    if not keys.width:
        return Rows.of(None, None, raw.rows), None, []
    if series is None and times is not None and _ascends(times):
        return Rows.of(times, None, raw.rows), None, []
    place = np.arange(raw.rows)
    ordered = keys.with_columns(pl.Series("", place)).sort(keys.columns, maintain_order=True)
    place = ordered[""].to_numpy()
    stamps = None if times is None else ordered[times.name]
    names = None if series is None else ordered[series.name]
    notes = []
    if stamps is not None:
        if names is None and bool(np.any(np.diff(place) < 0)):
            notes.append("the rows were not in the order of time and have been sorted")
        again = _repeated(stamps, names)
        if again.any():
            found = _describe(raw, stamps, names, place, again)
            if duplicates == "error":
                raise ValueError(
                    f"data.path: {found.first} ({found.rows:,} repeated rows in all); {_advice(raw, found, stamps, names)}"
                )
            notes.append(
                f"{found.rows:,} repeated rows ({found.kinds}) dropped by data.duplicates={duplicates}, first: {found.first}"
            )
            # Of the rows of one moment the last one is followed by none that repeats it.
            kept = ~again if duplicates == "first" else ~np.append(again[1:], False)
            place, stamps = place[kept], stamps.filter(kept)
            names = None if names is None else names.filter(kept)
    moved = len(place) != raw.rows or bool(np.any(np.diff(place) != 1))
    return Rows.of(stamps, names, len(place)), place if moved else None, notes


def _ascends(times: pl.Series) -> bool:
    """Whether each time is later than the one before it: most files are in this order, and need no copy to be sorted."""
    stamps = times.to_physical().to_numpy()
    return bool(np.all(stamps[1:] > stamps[:-1]))


@dataclass(frozen=True)
class _Repeats:
    """Rows that repeat the series and time of another."""

    rows: int
    identical: int  # of them, those that are equal to the row before in every column
    first: str

    @property
    def kinds(self) -> str:
        differing = self.rows - self.identical
        counts = ((self.identical, "identical copies"), (differing, "with other values"))
        return ", ".join(f"{kind}: {count:,}" for count, kind in counts if count)


def _repeated(times: pl.Series, series: pl.Series | None) -> Bool[np.ndarray, " r"]:
    """The rows, in order, that have the series and time of the row before."""
    same = times == times.shift(1)
    if series is not None:
        same &= series == series.shift(1)
    return same.fill_null(False).to_numpy()


def _describe(
    raw: Raw, times: pl.Series, series: pl.Series | None, place: Int[np.ndarray, " r"], again: Bool[np.ndarray, " r"]
) -> _Repeats:
    rows = np.flatnonzero(again)
    equal: np.ndarray = np.ones(len(rows), dtype=bool)
    # A column at a time, and of it these rows only: a file may have many.
    told_apart = {times.name} if series is None else {times.name, series.name}
    for name in raw.names:
        if name not in told_apart:
            column = raw.column(name)
            equal &= column.gather(place[rows]).eq_missing(column.gather(place[rows - 1])).to_numpy()
    first, second = (raw.where(int(place[row])) for row in (rows[0] - 1, rows[0]))
    of_series = f' of series "{series[int(rows[0])]}"' if series is not None else ""
    where = f"{first} and {second} have the same time {times[int(rows[0])]}{of_series}"
    return _Repeats(len(rows), int(equal.sum()), where)


def _advice(raw: Raw, found: _Repeats, times: pl.Series, series: pl.Series | None) -> str:
    if found.identical == found.rows:
        return "identical copies: data.duplicates=first drops them"
    remedy = _remedy(raw, times, None if series is None else series.name)
    return f"{found.kinds}; remove the repeated rows, {remedy}, or choose which counts with data.duplicates=first or last"


def _remedy(raw: Raw, times: pl.Series, series: str | None) -> str:
    """Which column would tell rows of the same time apart, if any does; `times` in the order of the file."""
    for name in raw.names:
        column = raw.column(name)
        text = column.dtype == pl.String and not parse_numbers(column).mostly_numeric
        if name not in (times.name, series) and text:
            pairs = pl.DataFrame({"time": times, "name": column})
            if not pairs.is_duplicated().any():
                return f'set data.series="{name}" if that column tells several series apart'
    return "name the column that tells several series apart in data.series"
