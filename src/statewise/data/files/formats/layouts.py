"""Files without names whose fields show what they are: bars as exchanges and terminals write them."""

import re
from collections.abc import Sequence

from statewise.data.files.formats.fields import is_missing, is_number, is_time

# As Binance names them in the files that have names.
KLINES = (
    "open_time", "open", "high", "low", "close", "volume", "close_time",
    "quote_volume", "count", "taker_buy_volume", "taker_buy_quote_volume", "ignore",
)  # fmt: skip
BARS = ("open", "high", "low", "close")
_EPOCH = re.compile(r"\d{9,10}(\.\d+)?|\d{13}|\d{16}|\d{19}")
_CLOCK_DIGITS = re.compile(r"\d{1,6}")
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")


def known_names(rows: Sequence[Sequence[str]], width: int) -> tuple[tuple[str, ...], str] | None:
    """The names of the fields, and how they were told; None where the rows are of no known layout.

    Args:
        rows: fields with decimal points, each row `width` of them, from all over the file.
    """
    columns = [[row[place].strip() for row in rows] for place in range(width)]
    if width == 0 or not rows:
        return None
    if width == len(KLINES) and _are_klines(columns):
        return KLINES, "no line of names: the fields are Binance's klines, of which the last is never used and left out"
    times = _times(columns)
    if times is None or width < len(times) + 4 or not _are_bars(columns[len(times) : len(times) + 4]):
        return None
    rest = columns[len(times) + 4 :]
    if len(rest) > 2 or not all(all(is_number(f) or is_missing(f) for f in column) for column in rest):
        return None
    if len(rest) == 2 and not all(_WHOLE.fullmatch(f) for f in rest[1]):
        return None
    names = (*times, *BARS, *("volume", "trades")[: len(rest)])
    return names, f"no line of names: the fields are taken as {', '.join(names)} (low <= open, close <= high everywhere)"


def _times(columns: list[list[str]]) -> tuple[str, ...] | None:
    if all(map(_EPOCH.fullmatch, columns[0])):
        return ("time",)
    if not all(map(is_time, columns[0])):
        return None
    if len(columns) > 1 and _are_dates(columns[0]):
        if all(":" in field and is_time(field) for field in columns[1]):
            return ("date", "time")
        # Digits alone may be a clock: 93000; a price of these would be one that never falls within a day.
        if all(map(_CLOCK_DIGITS.fullmatch, columns[1])) and len(columns) > 5 and not _are_bars(columns[1:5]):
            return ("date", "time")
    return ("time",)


def _are_dates(column: list[str]) -> bool:
    return all(":" not in field and len(field) <= 12 for field in column)


def _are_bars(columns: list[list[str]]) -> bool:
    """Whether four columns are open, high, low and close in every row, and in one row not all the same."""
    seen = False
    for fields in zip(*columns, strict=True):
        if all(map(is_missing, fields)):
            continue
        if not all(map(is_number, fields)):
            return False
        first, high, low, last = map(float, fields)
        if not low <= min(first, last) <= max(first, last) <= high:
            return False
        seen = seen or low < high
    return seen


def _are_klines(columns: list[list[str]]) -> bool:
    if not _are_bars(columns[1:5]):
        return False
    for first, last in zip(columns[0], columns[6], strict=True):
        if not (re.fullmatch(r"\d{13}|\d{16}", first) and len(first) == len(last) and last.isdecimal()):
            return False
        if int(last) <= int(first) or (int(last) + 1) % 1000:
            return False
    return all(all(map(is_number, column)) for column in columns[7:])
