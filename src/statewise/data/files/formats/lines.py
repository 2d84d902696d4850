"""The lines of a text by their numbers: which of them are broken, and which stand among the values without being any."""

import re
from dataclasses import dataclass
from typing import NoReturn

import polars as pl

from statewise.data.files.formats.dialect import Dialect
from statewise.data.files.formats.headers import COMMENTS
from statewise.data.files.formats.utf8 import NotUtf8, Text

_MARK = "\ufeff".encode()


@dataclass(frozen=True)
class Layout:
    """
    Attributes:
        name: of the file, for messages.
        above: lines before the first row.
        width: fields of a row.
        needed: fields that every row must have; those behind them have no name.
        header: the lines of names, as they stand in the text.
    """

    name: str
    above: int
    width: int
    needed: int
    header: tuple[str, ...] = ()

    def row(self, place: int) -> str:
        return f"row {place + 1:d} (line {self.above + place + 1:d})"


def without_remarks(text: Text, layout: Layout) -> tuple[Text, list[str]]:
    """The text with empty lines where comments or the header once more stand among the rows; and what they were.

    The numbers of the lines stay. Nothing to leave out gives no notes.
    """
    whole = text.whole()
    start = 0
    for _ in range(layout.above):
        start = whole.find(b"\n", start) + 1
        if start == 0:
            return text, []
    body = b"\n" + whole[start:]
    notes: list[str] = []
    for line in dict.fromkeys(layout.header):
        pattern = re.compile(rb"\n(?:%b)?%b[ \t]*(?=\r?\n|\r?$)" % (_MARK, re.escape(line.strip().encode())))
        body = _blanked(body, pattern, "the header stands again", layout, notes)
    for mark in COMMENTS:
        if b"\n" + mark.encode() in body:
            pattern = re.compile(rb"\n%b[^\n]*" % re.escape(mark.encode()))
            body = _blanked(body, pattern, f"comments ({mark}) stand among the rows", layout, notes)
    if body.rstrip(b"\r\n ").endswith(b"\n\x1a"):  # the end of a file under DOS
        body = body.rstrip(b"\r\n \x1a") + b"\n"
        notes.append("the mark at the end of the file left out")
    return (Text(whole[:start] + body[1:]), notes) if notes else (text, [])


def _blanked(body: bytes, pattern: re.Pattern[bytes], what: str, layout: Layout, notes: list[str]) -> bytes:
    first = pattern.search(body)
    if first is None:
        return body
    line = layout.above + body.count(b"\n", 0, first.start()) + 1
    body, count = pattern.subn(b"\n", body)
    notes.append(f"{what} in line {line:d}" + (f" and {count - 1:,} more" if count > 1 else "") + ": left out")
    return body


def refuse_lines(text: Text, layout: Layout, dialect: Dialect, said: str) -> NoReturn:
    """Names the first line that does not fit; `said` is what polars thinks of it."""
    lines = _lines(text, layout)
    counts = _counts(lines, dialect)
    wrong = ((counts > layout.width) | (counts < layout.needed)).arg_true()
    if len(wrong):
        _refuse(int(wrong[0]), int(counts[int(wrong[0])]), layout, len(lines))
    raise ValueError(f"data.path: {layout.name} cannot be read as CSV: {(said.strip() or 'unknown fault').splitlines()[0]}")


def refuse_short_lines(text: Text, layout: Layout, dialect: Dialect, frame: pl.DataFrame) -> None:
    """Raises ValueError where a row has fewer fields than it needs; polars fills these with nulls."""
    last = frame.to_series(layout.needed - 1)
    if last.null_count() == 0:
        return
    suspects = frame.select(pl.nth(layout.needed - 1).is_null() & pl.any_horizontal(pl.all().is_not_null())).to_series()
    places = suspects.arg_true()
    if not len(places):
        return
    if not text.has(dialect.quote.encode() or b"\0") and _are_full(text, layout, dialect, frame):
        return
    counts = _counts(_lines(text, layout).gather(places), dialect)
    short = (counts < layout.needed).arg_true()
    if len(short):
        _refuse(int(places[int(short[0])]), int(counts[int(short[0])]), layout, frame.height)


def _are_full(text: Text, layout: Layout, dialect: Dialect, frame: pl.DataFrame) -> bool:
    """Whether there are as many separators as full rows have: polars has refused rows that have more."""
    if layout.needed < layout.width or frame.select(pl.all_horizontal(pl.all().is_null()).any()).item():
        return False
    start = 0
    for _ in range(layout.above):
        start += len(text.piece(start, 1 << 20).partition(b"\n")[0]) + 1
    return text.count(dialect.separator.encode(), start) == frame.height * (layout.width - 1)


def has_open_quotes(text: Text, layout: Layout, dialect: Dialect, rows: int) -> bool:
    """Whether a quoted field goes on in the next line, so that rows are no lines."""
    return text.has(dialect.quote.encode()) and text.lines() - layout.above != rows


def quotes_mean_nothing(text: Text, layout: Layout, dialect: Dialect) -> bool:
    """Whether there are quotes and none of them opens a field, as in 5" and O'Brien."""
    lines = _lines(text, layout)
    holds = lines.str.contains(dialect.quote, literal=True)
    return bool(holds.any()) and not bool(_opens_quote(lines, dialect).any())


def refuse_quotes(text: Text, layout: Layout, dialect: Dialect) -> None:
    """Raises ValueError with the first line that opens a quote and does not close it, or holds a lone one in a field."""
    lines = _lines(text, layout)
    odd = (lines.str.count_matches(dialect.quote, literal=True) % 2 == 1).fill_null(False)
    opened = (odd & _opens_quote(lines, dialect)).arg_true()
    if len(opened) or bool(odd.any()):
        place = int((opened if len(opened) else odd.arg_true())[0])
        raise ValueError(
            f"data.path: {layout.name}: {layout.row(place)}: a quote ({dialect.quote}) is opened and not closed in its line; "
            "close it, or write the field without quotes and line breaks"
        )


def _opens_quote(lines: pl.Series, dialect: Dialect) -> pl.Series:
    return lines.str.contains(rf"(?:^|{re.escape(dialect.separator)})\s*{re.escape(dialect.quote)}").fill_null(False)


def _lines(text: Text, layout: Layout) -> pl.Series:
    """Each line below the header, null where it is empty."""
    try:
        return pl.read_csv(
            text.source,
            has_header=False,
            schema={"line": pl.String},
            separator="\x01",
            quote_char=None,
            skip_lines=layout.above,
            glob=False,
            truncate_ragged_lines=True,
            raise_if_empty=False,
        ).to_series()
    except pl.exceptions.PolarsError as error:
        raise NotUtf8 from error


def _counts(lines: pl.Series, dialect: Dialect) -> pl.Series:
    """Fields in each line, null where it is empty."""
    quote = re.escape(dialect.quote)
    bare = lines.str.replace_all(rf"{quote}[^{quote}]*{quote}", "") if quote else lines
    blank = lines.str.strip_chars() == ""
    counts = bare.str.count_matches(dialect.separator, literal=True).cast(pl.Int64) + 1
    return counts.set(blank.fill_null(False), None)


def _refuse(place: int, count: int, layout: Layout, rows: int) -> NoReturn:
    other = "the header" if layout.header else "the first row"
    fields = f"{count} field" + ("s" if count > 1 else "")
    cut = "; is the file cut off there?" if place == rows - 1 and place > 0 and count < layout.needed else ": correct that line"
    raise ValueError(f"data.path: {layout.name}: {layout.row(place)} has {fields}, {other} {layout.width}{cut}")
