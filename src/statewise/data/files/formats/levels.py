"""From the lines of a header to names of columns; and the tables that hold several series side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from statewise.data.files.formats.headers import is_unit
from statewise.data.files.formats.names import UNNAMED

_SERIES_LABELS = ("ticker", "tickers", "symbol", "symbols")
_VALUE_LABELS = ("price", "prices", "attributes", "attribute")
_LABELS = (*_SERIES_LABELS, *_VALUE_LABELS)
_VALUES = ("open", "high", "low", "close", "volume")
SERIES = "symbol"


@dataclass(frozen=True)
class Named:
    """
    Attributes:
        names: of the fields of a row, "" where the file has none.
        series: for each field the series it belongs to, "" for those that belong to all; None where a row is of one series.
        notes: what was made of more than one line.
    """

    names: tuple[str, ...]
    series: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def named_fields(levels: Sequence[Sequence[str]]) -> Named:
    """Names from one line, or from several: units below names, or one line of values and one of series."""
    rows = [[_bare(text) for text in level] for level in levels]
    if len(rows) == 1:
        return Named(tuple(rows[0]))
    index = [""] * len(rows[0])
    if sum(map(bool, rows[-1])) == 1 and rows[-1][0]:  # the line `Date,,,` that pandas writes below
        index[0] = rows.pop()[0]
    if len(rows) == 1:
        return Named((index[0], *rows[0][1:]))
    found = _side_by_side(rows)
    if found is not None:
        values, series = found
        first = index[0] or next((v for v in (values[0], series[0]) if v and v.lower() not in _LABELS), "Date")
        members = list(dict.fromkeys(series[1:]))
        what = f"{len(members)} series stand side by side" if len(members) > 1 else "the series stands above the names"
        note = f"{what} ({_few(members)}): read as rows of {first} and {SERIES}"
        return Named((first, *values[1:]), ("", *series[1:]), (note,))
    top = rows[0]
    lower = rows[1:]
    units = any(text[:1] in "[(" or is_unit(text) for row in lower for text in row if text)
    if (all(top) and len(set(top)) == len(top)) or (units and len(set(filter(None, top))) == sum(map(bool, top))):
        what = "units" if units else "a second line"
        shown = ", ".join(text for text in lower[0] if text)[:60]
        return Named(tuple(top), None, (f"{what} below the names left out ({shown})",))
    filled = [_to_the_right(top, lower[-1]), *lower]
    names = ["_".join(dict.fromkeys(text for text in parts if text)) for parts in zip(*filled, strict=True)]
    if index[0]:
        names[0] = index[0]
    return Named(tuple(names), None, (f"names of columns joined from {len(rows)} lines, as {names[-1]}",))


def melted(frame: pl.DataFrame, named: Named, file: str) -> pl.DataFrame:
    """One row for each row and series that has any value there (for each row where there is only one series).

    The columns are the shared ones, SERIES, and the values. Raises ValueError with one line where two have the same name.
    """
    assert named.series is not None
    shared = [(p, name or f"{UNNAMED} {p + 1}") for p, name in enumerate(named.names) if not named.series[p]]
    pairs = [(n, s) for n, s in zip(named.names, named.series, strict=True) if s]
    double = next((" of ".join(pair) for pair in pairs if pairs.count(pair) > 1), None)
    taken = [*(name for _, name in shared), SERIES, *{name for name, _ in pairs}]
    double = double or next((name for name in taken if taken.count(name) > 1), None)
    if double is not None:
        raise ValueError(f'data.path: {file} has two columns named "{double}": rename or remove one')
    values = list(dict.fromkeys(name for name, _ in pairs))
    parts = []
    for member in dict.fromkeys(filter(None, named.series)):
        own = {n: p for p, (n, s) in enumerate(zip(named.names, named.series, strict=True)) if s == member}
        part = frame.select(
            *(pl.nth(place).alias(name) for place, name in shared),
            pl.lit(member).alias(SERIES),
            *(pl.nth(own[name]).alias(name) if name in own else pl.lit(None).alias(name) for name in values),
        )
        parts.append(part if len(set(named.series)) == 2 else part.filter(pl.any_horizontal(pl.col(values).is_not_null())))
    return pl.concat(parts, how="vertical_relaxed")


def _side_by_side(rows: list[list[str]]) -> tuple[list[str], list[str]] | None:
    """The line of values and the line of series, where the two are that."""
    if len(rows) != 2 or len(rows[0]) < 2:
        return None
    upper, lower = (row[0].lower() for row in rows)
    first, second = (_to_the_right(rows[0], rows[1]), rows[1])
    if upper in _SERIES_LABELS or lower in _VALUE_LABELS:
        return second, first
    if lower in _SERIES_LABELS or upper in _VALUE_LABELS:
        return first, second
    # Without such a label: every series has every value, and some of these are prices.
    whole = len(set(first[1:])) * len(set(second[1:])) == len(first) - 1 == len(set(zip(first[1:], second[1:], strict=True)))
    prices = [sum(text.lower() in _VALUES for text in set(row)) >= 3 for row in (first, second)]
    if not whole or prices[0] == prices[1]:
        return None
    return (first, second) if prices[0] else (second, first)


def _to_the_right(row: list[str], below: list[str]) -> list[str]:
    """A name that stands above several columns is written once, over the first of them."""
    filled: list[str] = []
    for place, text in enumerate(row):
        filled.append(text if text or place < 2 or not below[place] else filled[-1])
    return filled


def _bare(text: str) -> str:
    """Without the angle brackets of MetaTrader and Stooq."""
    text = text.strip()
    return text[1:-1].strip() if len(text) > 2 and text[0] == "<" and text[-1] == ">" else text


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
