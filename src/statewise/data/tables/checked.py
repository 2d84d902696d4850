"""The numeric columns of raw rows: read one at a time, every fault with its place."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from statewise.data.files.raw import Raw
from statewise.data.files.reading import Reading
from statewise.data.tables.columns import counts_billionths
from statewise.data.tables.heads import Heads
from statewise.data.tables.notation import remedy, said, seen, sentence
from statewise.data.tables.numbers import UNDEFINED_PRICE, Notation, Numbers, parse_numbers

_EXACT = 2**53


class RawColumns:
    """The numeric columns of raw rows, in the order of the table.

    Args:
        notations: how each column writes its numbers.
        order: the place in `raw` of each row; None where nothing moves.
    """

    def __init__(self, raw: Raw, notations: Mapping[str, Notation], order: Int[np.ndarray, " r"] | None) -> None:
        self._raw, self._notations, self._order = raw, notations, order

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._notations)

    def read(self, name: str) -> Float[np.ndarray, " r"]:
        """Float64, finite, NaN where missing. Raises ValueError with the place of a value that is no such number."""
        values: np.ndarray = np.empty(self._raw.rows)
        first = 0
        # Piece by piece: the raw values of a column would stand in memory beside its numbers.
        for piece in self._raw.pieces(name):
            parsed = parse_numbers(piece, self._notations[name])
            if bool(parsed.bad.any()) or _infinite(parsed):
                read_checked(self._raw, name, self._notations[name])  # raises, and says how many there are in all
            values[first : first + len(piece)] = parsed.values.to_numpy()
            first += len(piece)
        return values if self._order is None else values[self._order]


def read_checked(raw: Raw, name: str, notation: Notation) -> Numbers:
    """A column of which every value is missing or a finite number. Raises ValueError with the place of the first other."""
    column = raw.column(name)
    parsed = parse_numbers(column, notation)
    if bool(parsed.bad.any()):
        index = int(parsed.bad.arg_true()[0])
        count = int(parsed.bad.sum())
        others = f"; {count:,} such values in this column" if count > 1 else ""
        raise ValueError(
            f'data.path: {raw.where(index)}, column "{name}": "{column[index]}" is not a number{others}; '
            f"{remedy(str(column[index]), notation)}"
        )
    if _infinite(parsed):
        index = int(parsed.values.is_infinite().arg_true()[0])
        raise ValueError(
            f'data.path: {raw.where(index)}, column "{name}": "{column[index]}" is infinite; correct it or leave it empty'
        )
    return parsed


def _infinite(parsed: Numbers) -> bool:
    return any(isinstance(end, float) and np.isinf(end) for end in (parsed.values.min(), parsed.values.max()))


def notations(raw: Raw, heads: Heads, names: tuple[str, ...], reading: Reading) -> tuple[dict[str, Notation], list[str]]:
    """How each of these columns writes its numbers, and sentences about what is not plain or not exact.

    Columns of text are read to the end, so that a value that is no number is found here; others when they are asked for.
    """
    declared = said(reading)
    found: dict[str, Notation] = {}
    undefined: dict[str, int] = {}
    inexact: dict[str, int] = {}
    notes = []
    types = raw.types
    for name in names:
        notation = seen(heads[name], declared)
        if counts_billionths(raw.names, name, heads[name]):
            notation = Notation(notation.null_values, notation.thousands, notation.decimal, billionths=True)
        found[name] = notation
        if (note := sentence(name, notation, declared)) is not None:
            notes.append(note)
        if types[name] == pl.String:
            parsed = read_checked(raw, name, notation)
            undefined[name], inexact[name] = parsed.undefined, parsed.inexact
    whole = [name for name in names if types[name] in (pl.Int64, pl.UInt64, pl.Int128)]
    if whole:
        counts = raw.computed(
            *(_is_undefined(name).sum().alias(f"{i} undefined") for i, name in enumerate(whole)),
            *(_is_inexact(name).sum().alias(f"{i} inexact") for i, name in enumerate(whole)),
        )
        undefined |= {name: counts[f"{i} undefined"][0] for i, name in enumerate(whole)}
        inexact |= {name: counts[f"{i} inexact"][0] for i, name in enumerate(whole)}
    for name in names:
        if count := undefined.get(name, 0):
            times = f"{count:,} time" + ("s" if count > 1 else "")
            notes.append(f'column "{name}": {UNDEFINED_PRICE} read as missing, an undefined price, {times}')
        if count := inexact.get(name, 0):
            values = f"{count:,} value" + ("s" if count > 1 else "")
            notes.append(f'column "{name}": {values} beyond 2^53, rounded to the nearest number that float64 holds')
    return found, notes


def _is_undefined(name: str) -> pl.Expr:
    return (pl.col(name) == UNDEFINED_PRICE).cast(pl.Int64)


def _is_inexact(name: str) -> pl.Expr:
    column = pl.col(name)
    large = ((column >= _EXACT) | (column <= -_EXACT)) & (column != UNDEFINED_PRICE)
    rounded = column.cast(pl.Float64).cast(pl.Int128, strict=False) != column.cast(pl.Int128)
    return (large & rounded).cast(pl.Int64)
