"""Text with separated fields: what it is written in, where its table begins, what its fields are called, its rows.

open_text -> utf8.py (encoding) -> dialect.py (separator, quote, decimal mark) -> headers.py, levels.py, layouts.py (names)
          -> guessed.py (types by a sample) -> delimited.py (all rows), lines.py (which line is broken)
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from statewise.data.files.formats.content import Content
from statewise.data.files.formats.delimited import read_columns
from statewise.data.files.formats.dialect import Dialect, find_dialect
from statewise.data.files.formats.fields import split
from statewise.data.files.formats.guessed import guessed_types
from statewise.data.files.formats.headers import COMMENTS, Header, find_header
from statewise.data.files.formats.layouts import KLINES, known_names
from statewise.data.files.formats.levels import Named, melted, named_fields
from statewise.data.files.formats.lines import Layout
from statewise.data.files.formats.names import distinct_names
from statewise.data.files.formats.numerals import plain
from statewise.data.files.formats.utf8 import NotUtf8, Text, as_text, as_windows_text, is_padded, with_tabs, without_padding
from statewise.data.files.raw import Opened
from statewise.data.files.reading import Reading

_HEAD = 1 << 18
_ROWS = 1000  # lines of the head, at most
_PIECES, _PIECE, _LINES = 8, 1 << 14, 100  # looked at further down for types: evenly spread, the last one at the end
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_SEPARATORS = {"\t": "tabs", " ": "blanks"}


def open_text(content: Content, reading: Reading) -> Opened:
    """A text with one row a line; what it does not say itself is in `reading`.

    Raises:
        ValueError: with one line: it is empty or no table, has no names and no known layout, has lines of the wrong
            number of fields, or `reading` does not fit it.
    """
    text, notes = as_text(content.source(), content.name)
    try:
        return _opened(text, notes, content.name, reading)
    except NotUtf8:
        text, notes = as_windows_text(text)
        return _opened(text, notes, content.name, reading)


def _opened(text: Text, notes: Sequence[str], name: str, reading: Reading) -> Opened:
    notes = list(notes)
    lines = _head(text, _ROWS + (reading.skip or 0))
    said = re.match(r"sep=(.)$", lines[0], re.IGNORECASE) if lines else None  # for Excel
    if said is not None and reading.separator is None:
        reading = replace(reading, separator=said.group(1))
    dialect = find_dialect(_without_remarks(lines), reading)
    header = find_header(lines, dialect, reading.header, reading.skip, name)
    rows = _sampled_rows(text, lines, dialect, header)
    notes += header.notes
    fields, about = _fields(header, rows, dialect, reading, name)
    notes += about
    if dialect.separator != ",":
        notes.append(_about(dialect))
    elif dialect.decimal == "," and reading.decimal is None:
        notes.append("decimal comma")
    if dialect.thousands == "." and reading.thousands is None:
        grouped = next((field for row in rows for field in row if _GROUPED.fullmatch(field.strip())), None)
        notes += [] if grouped is None else [f"points between thousands ({grouped} is read as {grouped.replace('.', '')})"]

    texts = [] if reading.series is None else [reading.series]
    types, markers = guessed_types(rows, fields.names, dialect, texts, reading.null_values)
    if dialect.separator == " ":
        text, dialect = with_tabs(text, dialect.quote), replace(dialect, separator="\t")
    elif any(f" {dialect.quote}" in line and is_padded(line, dialect.separator, dialect.quote) for line in lines[:_ROWS]):
        text = without_padding(text, dialect.separator, dialect.quote)
    needed = max((place + 1 for place, field in enumerate(fields.names) if field), default=header.width)
    layout = Layout(name, header.above, header.width, needed, header.lines)
    declared = reading.decimal is not None or reading.thousands is not None
    frame, about = read_columns(text, layout, dialect, types, markers, reading.null_values, declared)
    notes += about
    frame = _without_blank_end(frame)

    first_line: int | None = header.above + 1
    if fields.series is not None:
        rows_before = frame.height
        frame = melted(frame, fields, name)
        first_line = first_line if frame.height == rows_before else None
    else:
        frame, about = distinct_names(frame, fields.names, name)
        notes += about
        if fields.names == KLINES:
            frame = frame.drop(KLINES[-1])
    short = Path(name).name
    return Opened(frame.lazy(), frame.height, first_line, "CSV", tuple(f"{short}: {note}" for note in notes))


def _head(text: Text, count: int) -> list[str]:
    """The complete lines at the start, `count` where their length allows, and always enough to see a table in."""
    size = _HEAD
    while True:
        piece = text.piece(0, size)
        if len(piece) < size:
            break
        if piece.count(b"\n") > 2 * _PIECES or size > _HEAD << 8:
            piece = piece[: piece.rfind(b"\n") + 1] or piece
            break
        size *= 8
    return _lines(piece.decode("utf-8-sig", errors="replace"))[:count]


def _lines(text: str) -> list[str]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines and not lines[-1] else lines


def _without_remarks(lines: Sequence[str]) -> list[str]:
    kept = [line for line in lines if not line.lstrip().startswith(COMMENTS) and not line.lower().startswith("sep=")]
    return kept or list(lines)


def _sampled_rows(text: Text, lines: Sequence[str], dialect: Dialect, header: Header) -> list[list[str]]:
    """Rows of the head and from pieces all over the text, those of the right number of fields."""
    sample = list(lines[header.above :])
    beyond = sum(len(line.encode()) + 1 for line in lines)
    for index in range(1, _PIECES + 1) if beyond < text.size else ():
        start = max(beyond, text.size * index // _PIECES - _PIECE)
        piece = text.piece(start, _PIECE)
        inside = _lines(piece.decode(errors="replace"))[1:]
        sample += inside[-_LINES:] if index == _PIECES else inside[:-1][:_LINES]
    sample = [line.removeprefix("\ufeff") for line in sample if line.strip() and not line.startswith(COMMENTS)]
    rows = split(sample, dialect.separator, dialect.quote)
    names = {tuple(level) for level in header.levels}
    return [row for row in rows if len(row) == header.width and tuple(field.strip() for field in row) not in names]


def _fields(
    header: Header, rows: Sequence[Sequence[str]], dialect: Dialect, reading: Reading, name: str
) -> tuple[Named, list[str]]:
    """What the fields are called: by the user, by the file, or by what they are."""
    if reading.names is not None:
        if len(reading.names) != header.width:
            raise ValueError(f"data.names has {len(reading.names)} names, and a row of {name} has {header.width} fields")
        return Named(reading.names), []
    if header.levels:
        named = named_fields(header.levels)
        return named, list(named.notes)
    texts = [pl.Series([row[place].strip() for row in rows], dtype=pl.String) for place in range(header.width)]
    columns = [plain(column, dialect) for column in texts]
    known = known_names(list(zip(*columns, strict=True)), header.width)
    if known is None:
        first = ", ".join(field.strip() for field in rows[0][:4]) if rows else "none"
        more = ", ..." if rows and len(rows[0]) > 4 else ""
        raise ValueError(
            f"data.path: {name} has no header and is of no known layout: its first fields are {first}{more}; "
            f"name its {header.width} columns in data.names=[...], or say data.header=1 if its first line holds names"
        )
    names, how = known
    return Named(names), [how]


def _about(dialect: Dialect) -> str:
    between = _SEPARATORS.get(dialect.separator, repr(dialect.separator))
    return f"fields are separated by {between}" + (", decimal comma" if dialect.decimal == "," else "")


def _without_blank_end(frame: pl.DataFrame) -> pl.DataFrame:
    last = frame.select(pl.any_horizontal(pl.all().is_not_null()).arg_true().last()).item()
    return frame.head(0 if last is None else last + 1)
