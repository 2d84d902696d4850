"""Which series and which time each row of a table belongs to."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Int, Shaped


@dataclass(frozen=True)
class Rows:
    """Rows sorted by series, then time; their values are in columns of their own (numeric.py)."""

    series: tuple[str, ...]  # one empty name where there is no series column
    offsets: Int[np.ndarray, " g1"]  # series i has the rows offsets[i] to offsets[i + 1]
    times: Shaped[np.ndarray, " r"] | None  # datetime64[ns], UTC

    @classmethod
    def of(cls, times: pl.Series | None, series: pl.Series | None, count: int) -> "Rows":
        """Rows in this order. Raises ValueError where the rows of a series do not stand together."""
        names: tuple[str, ...] = ("",)
        offsets = np.array([0, count])
        if series is not None:
            run = series.rle_id().to_numpy().astype(np.int64)
            offsets = np.append(np.flatnonzero(np.diff(run, prepend=-1)), count)
            names = tuple(str(name) for name in series.gather(offsets[:-1]))
            if len(set(names)) < len(names):
                raise ValueError(f"the rows are not sorted by series: the column {series.name!r} returns to a name")
        return cls(names, offsets, None if times is None else times.to_numpy().astype("datetime64[ns]"))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def codes(self) -> Int[np.ndarray, " r"]:
        """The series of each row, as an index into `series`."""
        if len(self.series) == 1:
            return np.broadcast_to(np.int64(0), (len(self),))
        return np.repeat(np.arange(len(self.series)), np.diff(self.offsets))

    @property
    def clock(self) -> Shaped[np.ndarray, " r"]:
        """Where each row stands on the axis that all series share: its time, else its number in the series."""
        if self.times is not None:
            return self.times
        numbers: np.ndarray = np.arange(len(self))
        if len(self.series) > 1:
            numbers -= np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return numbers

    def codes_of(self, rows: Int[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
        """The series of some rows, as an index into `series`."""
        if len(self.series) == 1:
            return np.broadcast_to(np.int64(0), rows.shape)
        return np.asarray(np.searchsorted(self.offsets, rows, side="right")) - 1

    def clock_of(self, rows: Int[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
        """Where some rows stand on the axis that all series share (`clock`)."""
        if self.times is not None:
            return np.asarray(self.times[rows])
        return np.asarray(rows - self.offsets[self.codes_of(rows)])

    def axis(self, first: Int[np.ndarray, " g"]) -> Shaped[np.ndarray, " n"]:
        """Where the rows stand from row `first` of each series on: each place once, sorted."""
        clock = self.clock
        if len(self.series) == 1:
            places: np.ndarray = clock[int(first[0]) :]
            # A file of one series is in this order already: then nothing is sorted, and nothing copied.
            return places if bool(np.all(places[1:] > places[:-1])) else np.unique(places)
        kept = [clock[start:stop] for start, stop in zip(first.tolist(), self.offsets[1:].tolist(), strict=True)]
        return np.unique(np.concatenate(kept))

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
