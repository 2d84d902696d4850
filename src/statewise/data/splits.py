"""Where the training, validation and test blocks lie on the time axis that all series share."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

PARTS = ("train", "val", "test")
_FORMS = "three fractions such as [0.7, 0.1, 0.2], three row counts, or two or three ISO dates"


def axis_borders(split: Sequence[Any], axis: Shaped[np.ndarray, " n"]) -> tuple[int, int, int, int]:
    """Positions on the axis where train, val, test begin and where test ends.

    Args:
        split: fractions (borders floor(f * n), exact in decimals), row counts, or dates (train < d1 <= val < d2 <= test
            [< d3]).
        axis: the sorted distinct times of the table, or row numbers where there is no time column.

    Raises:
        ValueError: anything that is no split, or asks for more than there is.
    """
    entries = list(split)
    if any(isinstance(entry, bool) for entry in entries) or not entries:
        raise ValueError(f"data.split must be {_FORMS}, got {entries}")
    if all(isinstance(entry, str | date) for entry in entries):
        return _by_date(entries, axis)
    if not all(isinstance(entry, int | float) and math.isfinite(entry) for entry in entries) or len(entries) != 3:
        raise ValueError(f"data.split must be {_FORMS}, got {entries}")
    if any(entry < 0 for entry in entries):
        raise ValueError(f"data.split must not be negative, got {entries}")
    n = len(axis)
    if all(isinstance(entry, int) for entry in entries):
        first, second, third = np.cumsum(entries).tolist()
        if third > n:
            raise ValueError(f"data.split asks for {third:,} rows, but there are {n:,}: got {entries}")
        return 0, first, second, third
    shares = [Fraction(str(entry)) for entry in entries]
    if sum(shares) > 1:
        raise ValueError(f"data.split has fractions that sum to {float(sum(shares)):g}, more than 1: got {entries}")
    first, second, third = (math.floor(sum(shares[: k + 1]) * n) for k in range(3))
    return 0, first, second, third


def row_borders(
    borders: tuple[int, int, int, int],
    axis: Shaped[np.ndarray, " n"],
    clock: Shaped[np.ndarray, " r"],
    offsets: Int[np.ndarray, " g1"],
    kept_from: Int[np.ndarray, " g"],
) -> Int[np.ndarray, "g 4"]:
    """The rows where the blocks of each series begin and end, for borders on the common axis.

    Args:
        clock: the place of each row on the axis; sorted within a series, whose rows are offsets[i] to offsets[i + 1].
        kept_from: first row of each series that is not dropped.
    """
    rows = np.empty((len(kept_from), 4), dtype=np.int64)
    for series, (start, stop) in enumerate(pairwise(offsets)):
        for place, border in enumerate(borders):
            inside = border < len(axis)
            rows[series, place] = start + np.searchsorted(clock[start:stop], axis[border]) if inside else stop
    return np.asarray(np.maximum(rows, kept_from[:, None]))


def _by_date(entries: list[Any], axis: np.ndarray) -> tuple[int, int, int, int]:
    if axis.dtype.kind != "M":
        raise ValueError(f"data.split has dates, but there is no time column: name it in data.time, got {entries}")
    if len(entries) not in (2, 3):
        raise ValueError(f"data.split needs two or three dates (val begins, test begins, test ends), got {entries}")
    days = [_moment(entry) for entry in entries]
    if any(later <= earlier for earlier, later in pairwise(days)):
        raise ValueError(f"data.split needs dates in ascending order, got {[str(entry) for entry in entries]}")
    places = [int(np.searchsorted(axis, day)) for day in days]
    return 0, places[0], places[1], places[2] if len(places) == 3 else len(axis)


def _moment(entry: str | date) -> np.datetime64:
    try:
        moment = datetime.fromisoformat(str(entry))
    except ValueError:
        raise ValueError(f"data.split: {entry!r} is no ISO date such as 2024-05-31 or 2024-05-31T12:00") from None
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(moment, "ns")
