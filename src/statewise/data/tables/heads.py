"""The first values of each column, by which its part is decided without reading the column."""

import polars as pl

from statewise.data.files.raw import Raw
from statewise.data.tables.numbers import absent

_ROWS = 1000
_VALUES = 200


class Heads:
    """Up to 200 values that are there, of each column; empty where the entire column is.

    Args:
        null_values: texts that stand for a missing value, beside the usual ones.
    """

    def __init__(self, raw: Raw, null_values: tuple[str, ...] = ()) -> None:
        self.raw, self.names = raw, raw.names
        head = raw.top(_ROWS)
        self.samples: dict[str, pl.Series] = {}
        for column in head:
            present = _present(column, null_values)
            if not len(present) and raw.rows > len(head):
                present = _present(raw.column(column.name), null_values)
            self.samples[column.name] = present

    def __getitem__(self, name: str) -> pl.Series:
        return self.samples[name]


def _present(column: pl.Series, null_values: tuple[str, ...]) -> pl.Series:
    present = column.filter(~absent(column, null_values))
    if present.dtype.is_float():
        present = present.filter(present.is_not_nan())
    return present.head(_VALUES)
