"""Numbers as text, brought to the plain form with a decimal point; any other text stays as it is."""

import re

import polars as pl

from statewise.data.files.formats.dialect import Dialect
from statewise.data.files.markers import MISSING


def plain(column: pl.Series, dialect: Dialect) -> pl.Series:
    """Decimal commas and thousands separators replaced, in the fields that are numbers in that spelling.

    A column whose numbers have decimal points although the file has decimal commas keeps them; one that has both keeps
    its commas, so that it is refused with the place of one.
    """
    if dialect.plain or column.dtype != pl.String:
        return column
    decimal = re.escape(dialect.decimal)
    digits = r"\d+"
    if dialect.thousands is not None:
        digits = rf"(?:\d{{1,3}}(?:{re.escape(dialect.thousands)}\d{{3}})+|\d+)"
    if dialect.decimal == "," and bool(_has_point(column).any()):
        return column
    pattern = rf"^[+-]?(?:{digits}(?:{decimal}\d*)?|{decimal}\d+)(?:[eE][+-]?\d+)?$"
    written = column.str.contains(pattern).fill_null(False)
    if not bool(written.any()):
        return column
    changed = column
    if dialect.thousands is not None:
        changed = changed.str.replace_all(dialect.thousands, "", literal=True)
    if dialect.decimal != ".":
        changed = changed.str.replace(dialect.decimal, ".", literal=True)
    return column.zip_with(~written, changed)


def _has_point(column: pl.Series) -> pl.Series:
    """Which fields are numbers with a decimal point, so that no point in the column marks thousands."""
    numbers = column.str.contains(r"^[+-]?\d*\.\d+(?:[eE][+-]?\d+)?$")
    return numbers & ~column.str.contains(r"^[+-]?[1-9]\d{0,2}\.\d{3}$")


def as_numbers(column: pl.Series) -> pl.Series:
    """Int64 or Float64 where every text that is not a marker of a missing value is such a number, else the column."""
    absent = column.is_null() | column.is_in(MISSING).fill_null(True)
    count = int(absent.sum())
    if count == len(column):
        return column
    for dtype in (pl.Int64, pl.Float64):
        numbers = column.cast(dtype, strict=False)
        if int((numbers.is_null() | absent).sum()) == count and not bool(numbers.is_infinite().any()):
            return numbers
    return column
