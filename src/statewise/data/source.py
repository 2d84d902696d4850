"""What a data set hands to the data module."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from statewise.data.generators.synthetic import LinearSystem
from statewise.data.tables.table import Table


@dataclass(frozen=True)
class Source:
    """A table, and what is known about it.

    Attributes:
        targets_are_levels: False for returns, whose simplest forecast is zero instead of the last value.
        reach: rows after a target's own row that its value is made of: 4 for the return over the next 5 rows. The most of
            any target.
        reaches: of each target; empty where it is `reach` for all.
        optimal: the best possible prediction of each row's targets from the rows before it, NaN where it is not known.
        system: the linear system that made the data.
        planted_ic: the information coefficient of the planted signal.
    """

    table: Table
    features: tuple[str, ...]
    targets: tuple[str, ...]
    targets_are_levels: bool = True
    reach: int = 0
    reaches: tuple[int, ...] = ()
    optimal: Float[np.ndarray, "r m"] | None = None
    system: LinearSystem | None = None
    planted_ic: float | None = None

    def rows_of(self, target: int) -> int:
        """How many rows, beginning with its own, a target's value is made of."""
        return 1 + (self.reaches[target] if self.reaches else self.reach)
