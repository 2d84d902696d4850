"""A checked table as arrays: values, series codes, and the place of each row on the time axis."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped

from statewise.data.tables import Table


@dataclass(frozen=True)
class Rows:
    """Rows sorted by series, then time."""

    values: Float[np.ndarray, "r c"]  # NaN where missing
    columns: tuple[str, ...]
    series: tuple[str, ...]  # one empty name where the table has no series column
    offsets: Int[np.ndarray, " g1"]  # series i has the rows offsets[i] to offsets[i + 1]
    times: Shaped[np.ndarray, " r"] | None  # datetime64[ns]

    @classmethod
    def of(cls, table: Table, columns: Sequence[str]) -> "Rows":
        """The named numeric columns of a table."""
        frame = table.frame
        rows = len(frame)
        series: tuple[str, ...] = ("",)
        offsets = np.array([0, rows])
        if table.series is not None:
            run = frame[table.series].rle_id().to_numpy().astype(np.int64)
            offsets = np.append(np.flatnonzero(np.diff(run, prepend=-1)), rows)
            series = tuple(str(name) for name in frame[table.series].gather(offsets[:-1]))
            if len(set(series)) < len(series):
                raise ValueError(f"the rows are not sorted by series: the column {table.series!r} returns to a name")
        times = None if table.time is None else frame[table.time].to_numpy().astype("datetime64[ns]")
        values = np.empty((rows, len(columns)))
        for index, column in enumerate(columns):
            values[:, index] = frame[column].to_numpy()
        return cls(values, tuple(columns), series, offsets, times)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def codes(self) -> Int[np.ndarray, " r"]:
        """The series of each row, as an index into `series`."""
        return np.repeat(np.arange(len(self.series)), np.diff(self.offsets))

    @property
    def clock(self) -> Shaped[np.ndarray, " r"]:
        """Where each row stands on the axis that all series share: its time, else its number in the series."""
        if self.times is not None:
            return self.times
        numbers: np.ndarray = np.arange(len(self)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return numbers

    def series_of(self, row: int) -> int:
        return int(np.searchsorted(self.offsets, row, side="right")) - 1

    def at(self, row: int) -> str:
        """A row's name for a person: its time, else its number in the series, counted from 0."""
        if self.times is not None:
            return str(self.times[row].astype("datetime64[s]")).replace("T", " ")
        return f"row {row - self.offsets[self.series_of(row)]}"

    def of_series(self, row: int) -> str:
        """` of series X` where there are several series, else nothing."""
        return f" of series {self.series[self.series_of(row)]}" if len(self.series) > 1 else ""
