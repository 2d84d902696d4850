"""Separated fields into columns: one pass of polars where the guessed types hold, further ones where they do not."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from statewise.data.files.formats.dialect import Dialect
from statewise.data.files.formats.headers import COMMENTS
from statewise.data.files.formats.lines import (
    Layout,
    has_open_quotes,
    quotes_mean_nothing,
    refuse_lines,
    refuse_quotes,
    refuse_short_lines,
    without_remarks,
)
from statewise.data.files.formats.numerals import as_numbers, plain
from statewise.data.files.formats.utf8 import NotUtf8, Text

_TYPES: dict[str, Any] = {"whole": pl.Int64, "real": pl.Float64}
_FAILED = "number as text"
_FAULTY_FIELD = re.compile(r"column number (\d+)")
_SINGLY = 2  # columns that turn out to be text one at a time, before all are read as text


def read_columns(
    text: Text,
    layout: Layout,
    dialect: Dialect,
    types: Sequence[str],
    markers: Sequence[str] = (),
    null_values: Sequence[str] = (),
    declared: bool = False,
) -> tuple[pl.DataFrame, list[str]]:
    """All rows, the columns called "0", "1", ...; numbers as Int64 or Float64 where every row has one, else stripped text.

    Row k is line `layout.above` + k of the text, counted from 0; lines without a value are rows of nulls.

    Args:
        types: of each field, as `guessed_types` has them.
        markers: what may stand for a missing value in columns of numbers; kept as text elsewhere.
        null_values: what stands for a missing value everywhere.
        declared: whether the notation of numbers was said and not seen; text that is no number then keeps it.

    Raises:
        ValueError: a line has too many or too few fields, or a quote is left open.
        NotUtf8: the text is no UTF-8.
    """
    if dialect.decimal == "," and text.has(b"."):
        # With decimal commas polars takes 1.234 as a number below two: it reads numbers only where there is no point.
        types = [_FAILED if kind == "real" else kind for kind in types]
    types = list(types)
    said = [variant for null in null_values for variant in (null, f" {null}")]  # polars compares before it strips
    notes: list[str] = []
    looked = False
    while True:
        frame, fault = _attempt(text, layout, dialect, types, [*markers, *said])
        if not looked and (frame is None or _has_remarks(frame, layout, dialect)):
            looked = True
            text, notes = without_remarks(text, layout)
            if notes:
                continue
        if dialect.quote and (frame is None or has_open_quotes(text, layout, dialect, frame.height)):
            if quotes_mean_nothing(text, layout, dialect):
                dialect = replace(dialect, quote="")
                continue
            refuse_quotes(text, layout, dialect)
        if frame is not None:
            break
        types = _with_more_text(types, fault)
        if not types:
            refuse_lines(text, layout, dialect, fault)
    types = [_FAILED if kind == "real" and _has_infinite(frame.to_series(i)) else kind for i, kind in enumerate(types)]
    again = _to_read_again(frame, types, bool(markers))
    if again:
        frame = frame.with_columns(_scan(text, layout, dialect, types, said).select(again).collect())
    frame = _finished(frame, dialect, types, null_values, declared)
    refuse_short_lines(text, layout, dialect, frame)
    return frame, notes


def _attempt(
    text: Text, layout: Layout, dialect: Dialect, types: Sequence[str], nulls: Sequence[str]
) -> tuple[pl.DataFrame | None, str]:
    """The rows, or what polars says against these types."""
    try:
        return _scan(text, layout, dialect, types, nulls if any(kind in _TYPES for kind in types) else []).collect(), ""
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # a field of one quote makes it panic
        if "utf-8" in str(error):
            raise NotUtf8 from error
        return None, str(error)


def _scan(text: Text, layout: Layout, dialect: Dialect, types: Sequence[str], nulls: Sequence[str]) -> pl.LazyFrame:
    return pl.scan_csv(
        text.source,
        has_header=False,
        schema={str(index): _TYPES.get(kind, pl.String) for index, kind in enumerate(types)},
        separator=dialect.separator,
        quote_char=dialect.quote or None,
        skip_lines=layout.above,
        null_values=[null for null in nulls if null] or None,
        decimal_comma=dialect.decimal == ",",
        missing_columns="insert",
        glob=False,
        raise_if_empty=False,
    )


def _with_more_text(types: list[str], fault: str) -> list[str]:
    """The types without the number that failed, or without any after some of these; nothing where no number is at fault."""
    found = _FAULTY_FIELD.search(fault)
    place = -1 if found is None else int(found.group(1)) - 1
    if not 0 <= place < len(types) or types[place] not in _TYPES:
        return []
    singly = types.count(_FAILED) < _SINGLY
    return [_FAILED if kind in _TYPES and (index == place or not singly) else kind for index, kind in enumerate(types)]


def _has_remarks(frame: pl.DataFrame, layout: Layout, dialect: Dialect) -> bool:
    """Whether a line looks like a comment, or like the header once more, by its first field."""
    first = frame.to_series(0)
    if first.dtype != pl.String:
        return False
    marked = first.str.starts_with(COMMENTS[0])
    for mark in (*COMMENTS[1:], "\x1a"):
        marked |= first.str.starts_with(mark)
    if frame.width > 1:
        marked &= frame.to_series(frame.width - 1).is_null()
    # Where a number was read in every row, no row holds names.
    named = layout.header and not any(dtype.is_numeric() for dtype in frame.dtypes)
    if named:
        # The first field of the line of names, in quotes or not.
        starts = {line.strip().strip("\"'").split(dialect.separator)[0].strip("\"' ") for line in layout.header}
        marked |= first.str.strip_chars().is_in(list(starts - {""}))
    return bool(marked.any())


def _has_infinite(column: pl.Series) -> bool:
    # One pass where the sum is finite, as it nearly always is; that of finite numbers may overflow.
    if math.isfinite(column.sum()):
        return False
    return any(end in (float("inf"), float("-inf")) for end in (column.min(), column.max()))


def _to_read_again(frame: pl.DataFrame, types: Sequence[str], markers: bool) -> list[str]:
    """The columns whose text is lost: infinite numbers, for the message about them, and what looked like missing numbers.

    A marker is a text like any other where no numbers stand: a bank in Montreal trades as NA.
    """
    numeric = [dtype.is_numeric() for dtype in frame.dtypes]
    again = [name for name, kind, was in zip(frame.columns, types, numeric, strict=True) if was and kind not in _TYPES]
    if not markers or not any(numeric):
        return again
    blank = frame.select(pl.all_horizontal(pl.all().is_null()).sum()).item()
    return again + [n for n, was in zip(frame.columns, numeric, strict=True) if not was and frame[n].null_count() > blank]


def _finished(
    frame: pl.DataFrame, dialect: Dialect, types: Sequence[str], null_values: Sequence[str], declared: bool
) -> pl.DataFrame:
    """Text stripped, null where nothing is left; numbers in another notation as numbers, where all of a column are some.

    What is left as text is in plain notation, unless the user has `declared` another one: that is applied to text later.
    """
    for name, kind in zip(frame.columns, types, strict=True):
        text = frame[name]
        if text.dtype != pl.String:
            continue
        text = text.str.strip_chars()
        absent = text.is_in(["", *null_values])
        if bool(absent.any()):
            text = text.set(absent.fill_null(False), None)
        written = plain(text, dialect)
        column = as_numbers(written) if kind == _FAILED else written
        frame = frame.with_columns((text if declared and column.dtype == pl.String else column).alias(name))
    return frame
