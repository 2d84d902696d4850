"""Rows by series, then time, and no moment twice."""

import numpy as np
import polars as pl
from jaxtyping import Int

from statewise.data.parsing import parse_numbers
from statewise.data.raw import Raw
from statewise.data.rows import Rows


def in_order(
    raw: Raw, times: pl.Series | None, series: pl.Series | None, duplicates: str
) -> tuple[Rows, Int[np.ndarray, " r"] | None, list[str]]:
    """The rows in order, the place in `raw` of each of them (None where nothing moves), and sentences.

    Without times the order of the file is kept in each series.

    Args:
        duplicates: `error` where two rows of a series have the same time.

    Raises:
        ValueError: they do, and are an error.
    """
    keys = pl.DataFrame([column for column in (series, times) if column is not None])
    if not keys.width:
        return Rows.of(None, None, raw.rows), None, []
    place = np.arange(raw.rows)
    ordered = keys.with_columns(pl.Series("", place)).sort(keys.columns, maintain_order=True)
    place = ordered[""].to_numpy()
    stamps = None if times is None else ordered[times.name]
    names = None if series is None else ordered[series.name]
    notes = []
    if stamps is not None:
        _refuse_repeated(raw, stamps, names, place)
        if names is None and bool(np.any(np.diff(place) < 0)):
            notes.append("the rows were not in the order of time and have been sorted")
    moved = bool(np.any(np.diff(place) != 1))
    return Rows.of(stamps, names, raw.rows), place if moved else None, notes


def _refuse_repeated(raw: Raw, times: pl.Series, series: pl.Series | None, place: Int[np.ndarray, " r"]) -> None:
    same = times == times.shift(1)
    if series is not None:
        same &= series == series.shift(1)
    same = same.fill_null(False)
    if not bool(same.any()):
        return
    index = int(same.arg_true()[0])
    count = int(same.sum())
    first, second = (raw.where(int(place[i])) for i in (index - 1, index))
    of_series = f' of series "{series[index]}"' if series is not None else ""
    remedy = _remedy(raw, times.name, None if series is None else series.name)
    raise ValueError(
        f"data.path: {first} and {second} have the same time {times[index]}{of_series} "
        f"({count:,} repeated rows in all); remove the repeated rows, or {remedy}"
    )


def _remedy(raw: Raw, time: str, series: str | None) -> str:
    """Which column would tell rows of the same time apart, if any does."""
    for name in raw.names:
        column = raw.column(name)
        text = column.dtype == pl.String and not parse_numbers(column).mostly_numeric
        if name not in (time, series) and text:
            pairs = raw.columns([time, name])
            if not pairs.select(pl.struct(time, name).is_duplicated().any()).item():
                return f'set data.series="{name}" if that column tells several series apart'
    return "name the column that tells several series apart in data.series"
