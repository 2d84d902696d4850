"""A table with the values of some rows changed, to see who notices.

Signs, zeros and missing values stay where they are: logarithms, and the rules for missing values, depend on them.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from statewise.data.tables.numeric import Columns, InMemory
from statewise.data.tables.table import Table

CHANGES = ("times 1000", "permuted", "random")
_HELD = 2**26  # values that are kept in memory, so that a file is read once


def changed(table: Table, rows: Bool[np.ndarray, " r"], change: str, seed: int) -> Table:
    """The table with the flagged rows changed as one of `CHANGES` says, column by column, the same for the same seed."""
    return replace(table, numeric=_Changed(table.numeric, rows, change, seed))


class _Changed:
    """Columns with the values of some rows changed; missing ones stay missing, and no sign turns."""

    def __init__(self, columns: Columns, rows: Bool[np.ndarray, " r"], change: str, seed: int) -> None:
        self._columns, self._rows, self._change, self._seed = columns, rows, change, seed

    @property
    def names(self) -> tuple[str, ...]:
        return self._columns.names

    def read(self, name: str) -> Float[np.ndarray, " r"]:
        values = self._columns.read(name).copy()
        places = np.flatnonzero(self._rows & ~np.isnan(values))
        random = np.random.default_rng((self._seed, self.names.index(name)))
        if self._change == "times 1000":
            values[places] *= 1000.0
        elif self._change == "permuted":
            values[places] = random.permutation(values[places])
        else:
            values[places] *= np.exp(random.normal(size=len(places)))
        return values


def held(table: Table) -> Table:
    """The table with its columns in memory, where they are small enough: a file is parsed once, not for every question."""
    if len(table.rows) * len(table.columns) > _HELD:
        return table
    return replace(table, numeric=InMemory({name: table.read(name) for name in table.columns}))
