"""Missing values: filled from the past only and for a while only, and told in numbers.

Everything here is causal: whether a row is usable, and what a missing value becomes, depends on that row and the rows
before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int

from statewise.choices import one_of
from statewise.data.segments.observed import Observed
from statewise.data.tables.rows import Rows


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


class FillFromPast:
    """Which rows are usable when each column's last observed value is carried forward over at most max_fill rows.

    Columns are shown one after another (`see`), so that no more than one has to be in memory.

    Args:
        stretch: for each row the first row of its stretch (no value is carried from one stretch into the next).
    """

    def __init__(self, stretch: Int[np.ndarray, " r"], max_fill: int) -> None:
        self._stretch, self._max_fill = stretch, max_fill
        self._over = np.zeros(len(stretch), dtype=bool)
        self._complete = np.ones(len(stretch), dtype=bool)

    def see(self, observed: Bool[np.ndarray, " r"]) -> None:
        row = np.arange(len(observed))
        last = last_observed(observed)
        self._over |= (last < self._stretch) | (row - last > self._max_fill)
        self._complete &= observed

    @property
    def usable(self) -> Bool[np.ndarray, " r"]:
        """A row with a value that cannot be filled is not, nor are the rows after it until one has every column observed."""
        row = np.arange(len(self._over))
        last_complete = np.maximum.accumulate(np.where(self._complete, row, -1))
        return np.asarray(np.maximum.accumulate(np.where(self._over, row, -1)) <= last_complete)


def last_observed(observed: Bool[np.ndarray, " r"]) -> Int[np.ndarray, " r"]:
    """The last row up to each row that has a value, -1 where none has."""
    return np.asarray(np.maximum.accumulate(np.where(observed, np.arange(len(observed)), -1)))


def carried_forward(
    values: Float[np.ndarray, " r"], observed: Bool[np.ndarray, " r"], usable: Bool[np.ndarray, " r"]
) -> Float[np.ndarray, " r"]:
    """A copy with the missing values of usable rows replaced by the last one observed."""
    filled = values.copy()
    gone = np.flatnonzero(~observed & usable)
    last = last_observed(observed)[gone]
    # Only a target that is no input may lack any value before it; what stands there is never looked at.
    filled[gone] = np.where(last >= 0, values[last], 0.0)
    return filled


def account_of_missing(
    rows: Rows,
    names: Sequence[str],
    observed: Observed,
    usable: Bool[np.ndarray, " r"],
    kept_from: Int[np.ndarray, " g"],
    missing: Missing,
    *,
    inserted: Bool[np.ndarray, " r"] | None = None,
    ahead: Sequence[str] = (),
) -> list[str]:
    """Sentences: leading rows dropped, then for each column the count and share of missing values, then rows left out.

    Args:
        inserted: rows that are in no file, of which nothing is missing.
        ahead: targets whose values are made of later rows: where there are none, nothing is wrong.

    Raises:
        ValueError: a value is missing after the leading rows, and the policy is `error`.
    """
    notes = _account_of_leading(rows, names, observed, kept_from, ahead)
    leading = np.arange(len(rows)) < np.repeat(kept_from, np.diff(rows.offsets))
    kept = np.flatnonzero(~leading if inserted is None else ~(leading | inserted))
    for index, name in enumerate(names):
        gone_rows = kept[~observed.column(index)[kept]]
        if not len(gone_rows):
            continue
        if name in ahead:
            notes.append(f"{name}: {len(gone_rows):,} of {len(kept):,} rows have no value and are no target")
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


def _account_of_leading(
    rows: Rows, names: Sequence[str], observed: Observed, kept_from: Int[np.ndarray, " g"], ahead: Sequence[str]
) -> list[str]:
    dropped = [
        (start, first, stop)
        for first, (start, stop) in zip(kept_from.tolist(), pairwise(rows.offsets.tolist()), strict=True)
        if first > start
    ]
    if not dropped:
        return []
    count = sum(first - start for start, first, _ in dropped)
    leading = np.concatenate([np.arange(start, first) for start, first, _ in dropped])
    gone = ", ".join(
        name for index, name in enumerate(names) if name not in ahead and not observed.column(index)[leading].all()
    )
    where = f" in {len(dropped):,} of {len(rows.series):,} series" if len(rows.series) > 1 else ""
    empty = [rows.series[rows.series_of(start)] for start, first, stop in dropped if first == stop]
    nothing_left = f"; nothing is left of {', '.join(empty)}" if any(empty) else ""
    return [f"dropped {count:,} leading row(s){where}: missing values in {gone}{nothing_left}"]
