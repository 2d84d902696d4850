"""Where the training, validation and test blocks lie on the time axis that all series share."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

PARTS = ("train", "val", "test")
# Of each part its blocks, as positions [start, stop) on the axis, ascending.
Blocks = dict[str, tuple[tuple[int, int], ...]]
_DAY = 86_400 * 10**9
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


def in_turn(borders: tuple[int, int, int, int]) -> Blocks:
    """One block for each part, one after another."""
    return {name: (block,) for name, block in zip(PARTS, pairwise(borders), strict=True)}


def row_blocks(
    blocks: Blocks,
    axis: Shaped[np.ndarray, " n"],
    clock: Shaped[np.ndarray, " r"],
    offsets: Int[np.ndarray, " g1"],
    kept_from: Int[np.ndarray, " g"],
) -> dict[str, Int[np.ndarray, "g k 2"]]:
    """The rows [start, stop) of the blocks of each part in each series, for blocks of the common axis.

    Args:
        clock: the place of each row on the axis; sorted within a series, whose rows are offsets[i] to offsets[i + 1].
        kept_from: first row of each series that is not dropped.
    """
    borders = np.array(sorted({border for part in blocks.values() for block in part for border in block}))
    inside = borders[borders < len(axis)]
    rows = np.empty((len(kept_from), len(borders)), dtype=np.int64)
    for series, (start, stop) in enumerate(pairwise(offsets)):
        rows[series] = stop
        rows[series, : len(inside)] = start + np.searchsorted(clock[start:stop], axis[inside])
    rows = np.maximum(rows, kept_from[:, None])
    return {name: rows[:, np.searchsorted(borders, np.array(part))] for name, part in blocks.items()}


def rows_in(blocks: Int[np.ndarray, "g k 2"], count: int, short: int = 0) -> Bool[np.ndarray, " r"]:
    """Which of `count` rows lie in one of the blocks, the last `short` rows of each block left out."""
    stops = np.maximum(blocks[..., 1] - short, blocks[..., 0])
    steps = np.zeros(count + 1, dtype=np.int8)
    np.add.at(steps, blocks[..., 0].ravel(), 1)
    np.add.at(steps, stops.ravel(), -1)
    return np.asarray(np.cumsum(steps, dtype=np.int8, out=steps)[:count] > 0)


def refuse_local_moments(split: Sequence[Any], axis: Shaped[np.ndarray, " n"]) -> None:
    """For times that carry no zone, where none was given: a clock time would cut where nobody knows.

    Raises:
        ValueError: a date of the split has a clock time, and so have the times.
    """
    if axis.dtype.kind != "M" or not (axis.astype(np.int64) % _DAY).any():
        return
    for entry in split:
        if isinstance(entry, str | date) and _moment(entry).astype(np.int64) % _DAY:
            raise ValueError(
                f"data.split cuts inside a day, at {str(entry)!r}, but the times of the file carry no time zone: name it "
                "in data.timezone, such as UTC or Europe/Berlin, or give a day without a clock time"
            )


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
