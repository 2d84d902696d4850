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

    @property
    def bits(self) -> list[np.ndarray | None]:
        """Of each column its flags, eight in a byte, None where all are set."""
        return self._bits

    @classmethod
    def of(cls, rows: int, bits: Sequence[np.ndarray | None]) -> "Observed":
        """The inverse of `bits`."""
        observed = cls(rows)
        observed._bits = list(bits)
        return observed

    def tensor(self, columns: Sequence[int]) -> Tensor:
        """`[rows, columns]` bool where nothing is missing (a view of a single value), or in a single column.

        Else `[rows, bytes]` uint8: bit k of byte j belongs to column 8 j + k. A flag for each value would take a quarter
        of the memory that the values take.
        """
        if all(self.complete(column) for column in columns):
            return torch.ones((), dtype=torch.bool).expand(self.rows, len(columns))
        if len(columns) == 1:
            return torch.from_numpy(self.column(columns[0]).copy())[:, None]
        packed = np.zeros((self.rows, -(-len(columns) // 8)), dtype=np.uint8)
        for place, column in enumerate(columns):
            packed[:, place // 8] |= self.column(column).view(np.uint8) << np.uint8(place % 8)
        return torch.from_numpy(packed)


def unpacked(observed: Tensor, columns: int) -> Tensor:
    """`[..., columns]` bool for what `Observed.tensor` gives."""
    if observed.dtype == torch.bool:
        return observed
    bits = observed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)
    return (bits & 1).bool().flatten(-2)[..., :columns].contiguous()
