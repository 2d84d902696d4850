"""The rows of files as they were read: nothing is interpreted yet, and every row knows where it stood."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Int


@dataclass(frozen=True)
class Opened:
    """One file (or one member of an archive) as its format gives it.

    Attributes:
        frame: its columns, under distinct names without blanks around them; columns of text where the format is text and
            the column may hold anything, else the types of the file. Lazy where columns can be read one at a time.
        rows: how many.
        first_line: the line of the first row in the text, counted from 1; None where the format is no text.
        format: for people, as `CSV` or `Parquet, gzip`.
        notes: sentences about what was odd.
    """

    frame: pl.LazyFrame
    rows: int
    first_line: int | None
    format: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chunk:
    """Where some rows of a `Raw` come from: a file, or the member of an archive that its name tells."""

    path: Path
    name: str
    rows: int
    first_line: int | None
    format: str


@dataclass(frozen=True)
class Raw:
    """The rows of one or more files, one after another; `kept` are the ones that count, None means all."""

    frame: pl.LazyFrame
    chunks: tuple[Chunk, ...]
    notes: tuple[str, ...]
    kept: Int[np.ndarray, " r"] | None = None

    @property
    def types(self) -> dict[str, Any]:
        return dict(self.frame.collect_schema())

    @property
    def names(self) -> list[str]:
        return list(self.types)

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks) if self.kept is None else len(self.kept)

    def column(self, name: str) -> pl.Series:
        """All values of a column."""
        return self.columns([name]).to_series()

    def columns(self, names: Sequence[str]) -> pl.DataFrame:
        """All values of some columns."""
        frame = self._collected(self.frame.select(names))
        return frame if self.kept is None else frame[self.kept]

    def pieces(self, name: str) -> Iterator[pl.Series]:
        """All values of a column, some rows after another; as many as the file holds together."""
        if self.kept is not None:
            yield self.column(name)
            return
        with self._told():
            for piece in self.frame.select(name).collect_batches(maintain_order=True, lazy=True):
                yield piece.to_series()

    def head(self, name: str, rows: int) -> pl.Series:
        """The first values of a column."""
        return self._collected(self.frame.select(name).head(rows)).to_series()

    def top(self, rows: int) -> pl.DataFrame:
        """The first values of all columns."""
        return self._collected(self.frame.head(rows))

    def computed(self, *expressions: pl.Expr) -> pl.DataFrame:
        """What expressions make of all columns, kept rows or not, without holding the columns in memory."""
        with self._told():
            return self.frame.select(*expressions).collect(engine="streaming")

    def _collected(self, frame: pl.LazyFrame) -> pl.DataFrame:
        with self._told():
            return frame.collect()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A file that is read only now may turn out to be damaged."""
        try:
            yield
        except (pl.exceptions.ComputeError, OSError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"data.path: {self.name} cannot be read: {first}") from error

    def keep(self, flags: Bool[np.ndarray, " r"]) -> "Raw":
        """Without the rows that are not flagged."""
        places = np.flatnonzero(flags)
        return replace(self, kept=places if self.kept is None else self.kept[places])

    def where(self, row: int) -> str:
        """The file and place of a row, counted from 1 as a person does, for a message."""
        place = row if self.kept is None else int(self.kept[row])
        for chunk in self.chunks:
            if place < chunk.rows:
                # No quoted field may hold a line break.
                line = "" if chunk.first_line is None else f" (line {chunk.first_line + place:d})"
                return f"{chunk.name}: row {place + 1:d}{line}"
            place -= chunk.rows
        raise IndexError(row)

    @property
    def name(self) -> str:
        """The file, or the first of several, for a message about all of them."""
        names = [chunk.name for chunk in self.chunks]
        return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
