"""Absent rows of a regular grid, inserted: each carries the last row's values forward and is never a target.

    in the file   10:00   10:01           10:03   10:04                     12:00
    on the grid   10:00   10:01  (10:02)  10:03   10:04     a gap           12:00

Everything here is causal: an inserted row holds what was known before it. That it was inserted is known only when the next
row comes; a model that runs on a stream sees the same rows a little later, never others.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int

from statewise.data.segments.gaps import Gap, differences, length_of, usual_step
from statewise.data.tables.numeric import Columns
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table


class CarriedOver:
    """The columns of a table with rows inserted, each with the values of the row before it.

    Attributes:
        origin: for each row, the row of the table that its values come from.
    """

    def __init__(self, columns: Columns, origin: Int[np.ndarray, " r"]) -> None:
        self._columns, self.origin = columns, origin

    @property
    def names(self) -> tuple[str, ...]:
        return self._columns.names

    def read(self, name: str) -> Float[np.ndarray, " r"]:
        values: np.ndarray = self._columns.read(name)[self.origin]
        return values


def on_grid(table: Table, gap: Gap) -> tuple[Table, Int[np.ndarray, " r"] | None]:
    """The table with the absent rows of gaps of at most gap.max_fill rows, under the policy `forward_fill`; else as it is.

    A table that has been here before is handed back as it is.

    Returns:
        the table, whose `inserted` flags the new rows, and for each row the row that its values come from; None where
        nothing is inserted.

    Raises:
        ValueError: times that are no regular grid, whose absent rows nobody can name.
    """
    rows = table.rows
    if gap.policy != "forward_fill" or rows.times is None or table.inserted is not None:
        return table, None
    difference, within = differences(rows)
    if not within.any():
        return table, None
    step = usual_step(difference[within], gap)
    odd = np.flatnonzero(within & (difference % step != 0))
    if len(odd):
        row = int(odd[0])
        raise ValueError(
            f"data.gap.policy=forward_fill needs times on a regular grid, but from {rows.at(row)} to {rows.at(row + 1)}"
            f"{rows.of_series(row)} are {length_of(int(difference[row]))}, no multiple of the step {length_of(step)} "
            f"({len(odd):,} such differences): set data.gap.step, or data.gap.policy=segment"
        )
    absent = np.where(within, difference // step - 1, 0)
    absent[absent > gap.max_fill] = 0
    count = int(absent.sum())
    if not count:
        return table, None
    # The rows after each row, itself included; the last row of all has none but itself.
    repeats = np.append(absent + 1, 1)
    origin = np.repeat(np.arange(len(rows)), repeats)
    first = np.append(0, np.cumsum(repeats))  # the new place of each row, and the end
    behind = np.arange(len(origin)) - first[origin]
    times = rows.times[origin] + (behind * step).astype("timedelta64[ns]")
    grid = Rows(rows.series, first[rows.offsets], times)
    places = int((absent > 0).sum())
    note = (
        f"{count:,} absent rows inserted in {places:,} gap(s) of at most {gap.max_fill:,} (data.gap.policy=forward_fill), with "
        "the values before them; none is a target"
    )
    inserted: Bool[np.ndarray, " r"] = behind > 0
    filled = CarriedOver(table.numeric, origin)
    return replace(table, rows=grid, numeric=filled, inserted=inserted, notes=(*table.notes, note)), origin
