"""Which rows may stand in one window: a segment ends where its series ends, time jumps or data is missing for long."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from statewise.data.gaps import Gap, find_gaps
from statewise.data.missing import Missing, account_of_missing, fill_from_past
from statewise.data.rows import Rows


@dataclass(frozen=True)
class Segments:
    """Rows ready to be cut into windows. Rows outside all segments may still hold NaN and are in no window."""

    filled: Float[np.ndarray, "r c"]
    observed: Bool[np.ndarray, "r c"]  # False: missing, or filled from the past
    bounds: Int[np.ndarray, "k 2"]  # rows [start, stop) of each segment, in order
    kept_from: Int[np.ndarray, " g"]  # first row of each series that is not dropped; the series' end if there is none
    notes: tuple[str, ...]


def cut(rows: Rows, gap: Gap, missing: Missing) -> Segments:
    """Cuts rows into segments and fills what may be filled.

    Raises:
        ValueError: an infinite value, or a gap or a missing value under the policy `error`.
    """
    _refuse_infinite(rows)
    n = len(rows)
    jumps, gap_note = find_gaps(rows, gap)
    first_of_stretch = np.zeros(n, dtype=bool)
    first_of_stretch[rows.offsets[:-1][rows.offsets[:-1] < n]] = True
    first_of_stretch[jumps] = True

    observed = ~np.isnan(rows.values)
    filled, usable, missing_notes = rows.values, np.ones(n, dtype=bool), []
    kept_from = rows.offsets[:-1]
    if not observed.all():
        stretch = np.maximum.accumulate(np.where(first_of_stretch, np.arange(n), 0))
        max_fill = missing.max_fill if missing.policy == "fill" else 0
        filled, usable = fill_from_past(rows.values, observed, stretch, max_fill)
        places = np.append(np.flatnonzero(usable), n)
        kept_from = np.minimum(places[np.searchsorted(places, rows.offsets[:-1])], rows.offsets[1:])
        missing_notes = account_of_missing(rows, observed, usable, kept_from, missing)

    starts = np.flatnonzero(usable & (first_of_stretch | ~np.append(False, usable[:-1])))
    last = usable & np.append((first_of_stretch | ~usable)[1:], True)[:n]
    bounds = np.stack([starts, np.flatnonzero(last) + 1], axis=1)
    return Segments(filled, observed, bounds, kept_from, (gap_note, *missing_notes))


def _refuse_infinite(rows: Rows) -> None:
    infinite = np.isinf(rows.values)
    if infinite.any():
        row, column = (int(i) for i in np.argwhere(infinite)[0])
        where = f"{rows.at(row)}{rows.of_series(row)}"
        raise ValueError(f"column {rows.columns[column]!r} is infinite at {where}: correct it, or leave it empty")
