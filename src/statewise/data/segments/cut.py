"""Which rows may stand in one window: a segment ends where its series ends, time jumps or data is missing for long."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from statewise.data.segments.gaps import Gap, find_gaps
from statewise.data.segments.missing import FillFromPast, Missing, account_of_missing, carried_forward
from statewise.data.segments.observed import Observed
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table


@dataclass(frozen=True)
class Segments:
    """Rows ready to be cut into windows. Rows outside all segments may still miss values and are in no window."""

    names: tuple[str, ...]  # the columns that were looked at
    observed: Observed  # False: missing, or filled from the past
    usable: Bool[np.ndarray, " r"]  # False: in no segment
    bounds: Int[np.ndarray, "k 2"]  # rows [start, stop) of each segment, in order
    kept_from: Int[np.ndarray, " g"]  # first row of each series that is not dropped; the series' end if there is none
    notes: tuple[str, ...]

    def filled(self, column: int, values: Float[np.ndarray, " r"]) -> Float[np.ndarray, " r"]:
        """The values of a column with what may be filled; an inserted row keeps what it has, such as a return of 0."""
        if self.observed.complete(column):
            return values
        return carried_forward(values, ~np.isnan(values), self.usable)


def cut(
    table: Table,
    gap: Gap,
    missing: Missing,
    names: Sequence[str] | None = None,
    *,
    max_gap: str | None = None,
    ahead: Sequence[str] = (),
) -> Segments:
    """Cuts rows into segments and finds what may be filled, a column at a time.

    Args:
        names: the columns that count; None means all.
        max_gap: the longest jump in time that windows cross (gaps.find_gaps).
        ahead: targets that are no inputs, made of later rows: one that is missing ends no segment.

    Raises:
        ValueError: an infinite value, or a gap or a missing value under the policy `error`.
    """
    rows, names = table.rows, tuple(table.columns if names is None else names)
    n = len(rows)
    jumps, gap_note = find_gaps(rows, gap, max_gap)
    first_of_stretch = np.zeros(n, dtype=bool)
    first_of_stretch[rows.offsets[:-1][rows.offsets[:-1] < n]] = True
    first_of_stretch[jumps] = True

    stretch = np.maximum.accumulate(np.where(first_of_stretch, np.arange(n), 0))
    filling = FillFromPast(stretch, missing.max_fill if missing.policy == "fill" else 0)
    observed = Observed(n)
    for name in names:
        values = table.read(name)
        _refuse_infinite(rows, name, values)
        there = ~np.isnan(values)
        # An inserted row has a value to go on with, and none that is a target.
        observed.add(there if table.inserted is None else there & ~table.inserted)
        if name not in ahead and not observed.complete(len(observed) - 1):
            filling.see(there)
    usable, missing_notes, kept_from = np.ones(n, dtype=bool), [], rows.offsets[:-1]
    if not all(observed.complete(column) for column in range(len(names))):
        usable = filling.usable
        places = np.append(np.flatnonzero(usable), n)
        kept_from = np.minimum(places[np.searchsorted(places, rows.offsets[:-1])], rows.offsets[1:])
        missing_notes = account_of_missing(
            rows, names, observed, usable, kept_from, missing, inserted=table.inserted, ahead=ahead
        )

    starts = np.flatnonzero(usable & (first_of_stretch | ~np.append(False, usable[:-1])))
    last = usable & np.append((first_of_stretch | ~usable)[1:], True)[:n]
    bounds = np.stack([starts, np.flatnonzero(last) + 1], axis=1)
    return Segments(names, observed, usable, bounds, kept_from, (gap_note, *missing_notes))


def _refuse_infinite(rows: Rows, name: str, values: Float[np.ndarray, " r"]) -> None:
    infinite = np.isinf(values)
    if infinite.any():
        row = int(np.argmax(infinite))
        where = f"{rows.at(row)}{rows.of_series(row)}"
        raise ValueError(f"column {name!r} is infinite at {where}: correct it, or leave it empty")
