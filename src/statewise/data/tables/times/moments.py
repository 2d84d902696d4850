"""What is known of a column of times once it has been read, and the fault of one that cannot be."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Bool

NANOSECONDS = pl.Datetime("ns")
DAY = 86_400 * 10**9


class Unreadable(Exception):
    """A time that cannot be used.

    Attributes:
        row: where, counted from 0; None for the whole column.
        reason: a part of a sentence, without the place.
    """

    def __init__(self, row: int | None, reason: str) -> None:
        super().__init__(reason)
        self.row, self.reason = row, reason


@dataclass(frozen=True)
class Moments:
    """A column of times.

    Attributes:
        values: Datetime in ns without a zone, null where nothing can be read.
        utc: the rows whose value is in UTC; the others are the wall clock of a place. True or False speaks for all rows.
        zones: the names of zones that the rows give themselves, null elsewhere; None where no row does.
        dates: whether no row has a time of day.
        how: for people, in a few words.
    """

    values: pl.Series
    utc: bool | Bool[np.ndarray, " r"]
    how: str
    zones: pl.Series | None = None
    dates: bool = False

    @property
    def flags(self) -> Bool[np.ndarray, " r"]:
        """`utc` row by row."""
        return np.full(len(self.values), self.utc) if isinstance(self.utc, bool) else self.utc
