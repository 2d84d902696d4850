"""Which values are there: one bit for each value, and none for a column without a gap."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor


class Observed:
    """Columns of flags over the same rows, added one after another."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._bits: list[np.ndarray | None] = []

    def add(self, flags: Bool[np.ndarray, " r"]) -> None:
        self._bits.append(None if flags.all() else np.packbits(flags))

    def __len__(self) -> int:
        return len(self._bits)

    def complete(self, column: int) -> bool:
        return self._bits[column] is None

    def column(self, column: int) -> Bool[np.ndarray, " r"]:
        bits = self._bits[column]
        if bits is None:
            return np.broadcast_to(np.True_, (self.rows,))
        return np.unpackbits(bits, count=self.rows).view(bool)

    def tensor(self, columns: Sequence[int]) -> Tensor:
        """`[rows, columns]` bool; where nothing is missing a view of a single value."""
        if all(self.complete(column) for column in columns):
            return torch.ones((), dtype=torch.bool).expand(self.rows, len(columns))
        flags = np.empty((self.rows, len(columns)), dtype=bool)
        for place, column in enumerate(columns):
            flags[:, place] = self.column(column)
        return torch.from_numpy(flags)
