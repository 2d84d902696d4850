"""Numeric columns that are read one at a time, when they are asked for."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
import polars as pl
from jaxtyping import Float


@runtime_checkable
class Columns(Protocol):
    """Columns of numbers in the order of a table's rows."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def read(self, name: str) -> Float[np.ndarray, " r"]:
        """Float64, finite, NaN where missing. Raises ValueError with the place of a value that is no such number."""
        ...


class InMemory:
    """The columns of a frame that is there already."""

    def __init__(self, frame: pl.DataFrame | Mapping[str, np.ndarray]) -> None:
        self._frame = frame if isinstance(frame, pl.DataFrame) else pl.DataFrame(dict(frame))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._frame.columns)

    def read(self, name: str) -> Float[np.ndarray, " r"]:
        return self._frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
