"""What the checks look at: a table, and what is known of how it will be used."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from statewise.data.oddities.oddity import SHOWN, Place
from statewise.data.segments.gaps import Gap, differences, usual_step
from statewise.data.segments.missing import Missing
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table
from statewise.data.tables.times.iso import utc

DAY = 86_400 * 10**9


@dataclass(frozen=True)
class Subject:
    """A table and its use.

    Attributes:
        trained: which rows lie in the training part; None where that is not known.
        lost: of each cause (`gaps`, `missing`) the share of windows that it costs; empty where that is not known.
    """

    table: Table
    trained: Bool[np.ndarray, " r"] | None
    gap: Gap
    max_gap: str | None
    missing: Missing
    lost: Mapping[str, float]

    @property
    def rows(self) -> Rows:
        return self.table.rows

    @cached_property
    def steps(self) -> tuple[Int[np.ndarray, " d"], Bool[np.ndarray, " d"]]:
        """Nanoseconds from each row to the next, and whether both are of one series."""
        return differences(self.rows)

    @cached_property
    def usual(self) -> int | None:
        """The usual step in nanoseconds; None where there are no times, or no series has two rows."""
        if self.rows.times is None:
            return None
        difference, within = self.steps
        return usual_step(difference[within], self.gap) if within.any() else None

    @cached_property
    def within(self) -> Bool[np.ndarray, " d"]:
        """Whether each row and the next are of one series."""
        if self.rows.times is not None:
            return self.steps[1]
        within: np.ndarray = np.ones(max(len(self.rows) - 1, 0), dtype=bool)
        ends = self.rows.offsets[1:-1]
        within[ends[(ends > 0) & (ends < len(self.rows))] - 1] = False
        return within

    def places(self, rows: Any, columns: Mapping[str, np.ndarray] | None = None) -> tuple[Place, ...]:
        """The first of some rows, with their values in these columns."""
        return tuple(self._place(int(row), columns or {}) for row in rows[:SHOWN])

    def _place(self, row: int, columns: Mapping[str, np.ndarray]) -> Place:
        rows = self.rows
        time = rows.at(row) if rows.times is None else utc(rows.times[row])
        values = {name: None if np.isnan(column[row]) else float(column[row]) for name, column in columns.items()}
        return Place(time, rows.series[rows.series_of(row)], values)

    def bounds(self, series: int) -> tuple[int, int]:
        """First and last row of a series that has some."""
        return int(self.rows.offsets[series]), int(self.rows.offsets[series + 1]) - 1


def longest_run(flags: Bool[np.ndarray, " r"], offsets: Int[np.ndarray, " g1"]) -> int:
    """The most flagged rows one after another in one series."""
    if not flags.any():
        return 0
    row = np.arange(len(flags))
    broken = ~flags
    begins = offsets[:-1][offsets[:-1] < len(flags)]
    # The last row before each that ends a run: one that is not flagged, or that of another series.
    last = np.where(broken, row, -1)
    last[begins] = np.maximum(last[begins], begins - 1)
    last = np.maximum.accumulate(last)
    return int((row - last).max())


def counted(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}" + ("s" if count != 1 else "")


def share(count: int, of: int) -> str:
    """A share in words, never 0 % or 100 % for what is not."""
    percent = 100 * count / of if of else 0.0
    if 0 < percent < 0.01:
        return "below 0.01 %"
    if 99.99 < percent < 100:
        return "above 99.99 %"
    return f"{percent:.{4 if percent > 99 else 3}g} %"
