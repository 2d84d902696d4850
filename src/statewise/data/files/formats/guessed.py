"""Which type each field of a text is read as, by what stands in it in a sample of rows."""

import re
from collections.abc import Sequence

import polars as pl

from statewise.data.files.formats.dialect import Dialect
from statewise.data.files.formats.numerals import plain
from statewise.data.files.markers import MISSING

# A code such as 000001 is a name, and loses its zeros as a number.
_CODES = re.compile(r"(^|[^a-z])(symbol|ticker|code|isin|cusip|sedol|figi|series|station)(_?id)?$", re.IGNORECASE)
_EPOCH = 1e8  # larger numbers may be times, whose nanoseconds a float would lose


def guessed_types(
    rows: Sequence[Sequence[str]], names: Sequence[str], dialect: Dialect, texts: Sequence[str], null_values: Sequence[str]
) -> tuple[list[str], list[str]]:
    """For each field `whole`, `real`, `text` or `number as text` (numbers that polars does not read as they stand), and
    the markers of missing values that stand among numbers.

    Args:
        rows: of equal length, fields with the blanks behind them.
        texts: names of columns that are text whatever they hold.
        null_values: what stands for a missing value beside the usual markers.
    """
    types: list[str] = []
    markers: dict[str, None] = {}
    absent = (*MISSING, *null_values)
    for place, name in enumerate(names):
        raw = pl.Series([row[place] for row in rows], dtype=pl.String)
        stripped = raw.str.strip_chars()
        there = ~stripped.is_in(absent)
        kind = _kind(plain(stripped.filter(there), dialect))
        if kind != "text" and (name in texts or _CODES.search(name)):
            kind = "text"
        if kind in ("whole", "real"):
            here = dict.fromkeys(stripped.filter(~there & (stripped != "")).unique(maintain_order=True).to_list())
            padded = not bool((raw == stripped).all())
            # polars takes a decimal comma, but then a point too, and never a mark of thousands.
            marks = r"\." if dialect.decimal == "," else re.escape(dialect.thousands or "\n")
            if padded or bool(stripped.str.contains(marks).any()):
                kind = "number as text"
            else:
                markers |= here
        types.append(kind)
    return types, list(markers)


def _kind(fields: pl.Series) -> str:
    if not len(fields) or bool(fields.str.contains(r"^[+-]?0\d").any()):
        return "text"
    if fields.cast(pl.Int64, strict=False).null_count() == 0:
        return "whole"
    numbers = fields.cast(pl.Float64, strict=False)
    if numbers.null_count() or bool(fields.str.contains(r"^[+-]?\d{19,}$").any()):
        return "text"
    return "text" if bool((numbers.abs() >= _EPOCH).all()) else "real"
