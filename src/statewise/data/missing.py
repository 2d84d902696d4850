"""Missing values: filled from the past only and for a while only, and told in numbers.

Everything here is causal: whether a row is usable, and what a missing value becomes, depends on that row and the rows
before it.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int

from statewise.choices import one_of
from statewise.data.rows import Rows


@dataclass(frozen=True)
class Missing:
    """What a missing value inside a series means (leading rows that are not complete are always dropped).

    Attributes:
        policy: `fill` (from the past, never used as a target), `segment` (the rows are left out) or `error` (stop).
        max_fill: the most rows that one value may fill; a longer run of missing values ends the segment.
    """

    policy: str = "fill"
    max_fill: int = 24

    def __post_init__(self) -> None:
        one_of("data.missing.policy", self.policy, ("fill", "segment", "error"))
        if self.max_fill < 0:
            raise ValueError(f"data.missing.max_fill must be at least 0, got {self.max_fill}")


def fill_from_past(
    values: Float[np.ndarray, "r c"], observed: Bool[np.ndarray, "r c"], stretch: Int[np.ndarray, " r"], max_fill: int
) -> tuple[Float[np.ndarray, "r c"], Bool[np.ndarray, " r"]]:
    """Carries the last observed value of each column forward over at most max_fill rows, within a stretch.

    Args:
        stretch: for each row the first row of its stretch (no value is carried from one stretch into the next).

    Returns:
        The filled values, and which rows are usable: a row with a value that cannot be filled is not, nor are the rows
        after it until one has every column observed.
    """
    row = np.arange(len(values))
    over = np.zeros(len(values), dtype=bool)
    sources = {}
    for column in np.flatnonzero(~observed.all(axis=0)):
        last = np.maximum.accumulate(np.where(observed[:, column], row, -1))
        over |= (last < stretch) | (row - last > max_fill)
        sources[column] = last
    last_complete = np.maximum.accumulate(np.where(observed.all(axis=1), row, -1))
    usable = np.maximum.accumulate(np.where(over, row, -1)) <= last_complete
    filled = values.copy()
    for column, last in sources.items():
        gone = ~observed[:, column] & usable
        filled[gone, column] = values[last[gone], column]
    return filled, usable


def account_of_missing(
    rows: Rows,
    observed: Bool[np.ndarray, "r c"],
    usable: Bool[np.ndarray, " r"],
    kept_from: Int[np.ndarray, " g"],
    missing: Missing,
) -> list[str]:
    """Sentences: leading rows dropped, then for each column the count and share of missing values, then rows left out.

    Raises:
        ValueError: a value is missing after the leading rows, and the policy is `error`.
    """
    notes = _account_of_leading(rows, observed, kept_from)
    leading = np.arange(len(rows)) < np.repeat(kept_from, np.diff(rows.offsets))
    kept = np.flatnonzero(~leading)
    for index, name in enumerate(rows.columns):
        gone_rows = kept[~observed[kept, index]]
        if not len(gone_rows):
            continue
        if missing.policy == "error":
            first = int(gone_rows[0])
            number = first - int(rows.offsets[rows.series_of(first)])
            time = f" ({rows.at(first)})" if rows.times is not None else ""
            raise ValueError(
                f"column {name!r} has {len(gone_rows):,} missing value(s), the first in row {number}, counted from 0"
                f"{time}{rows.of_series(first)}: set data.missing.policy=fill or segment, or correct the file"
            )
        notes.append(
            f"{name}: {len(gone_rows):,} of {len(kept):,} values missing ({len(gone_rows) / len(kept):.1%}), "
            f"{int(usable[gone_rows].sum()):,} filled from the past; none is a target"
        )
    out = kept[~usable[kept]]
    if len(out):
        runs = int((np.diff(out) > 1).sum()) + 1
        rule = f" that cannot be filled (data.missing.max_fill={missing.max_fill})" if missing.policy == "fill" else ""
        notes.append(f"{len(out):,} rows left out in {runs:,} run(s) of missing values{rule}: no window crosses one")
    return notes


def _account_of_leading(rows: Rows, observed: Bool[np.ndarray, "r c"], kept_from: Int[np.ndarray, " g"]) -> list[str]:
    dropped = [
        (start, first, stop)
        for first, (start, stop) in zip(kept_from.tolist(), pairwise(rows.offsets.tolist()), strict=True)
        if first > start
    ]
    if not dropped:
        return []
    count = sum(first - start for start, first, _ in dropped)
    seen = np.all([observed[start:first].all(axis=0) for start, first, _ in dropped], axis=0)
    gone = ", ".join(name for name, complete in zip(rows.columns, seen, strict=True) if not complete)
    where = f" in {len(dropped):,} of {len(rows.series):,} series" if len(rows.series) > 1 else ""
    empty = [rows.series[rows.series_of(start)] for start, first, stop in dropped if first == stop]
    nothing_left = f"; nothing is left of {', '.join(empty)}" if any(empty) else ""
    return [f"dropped {count:,} leading row(s){where}: missing values in {gone}{nothing_left}"]
