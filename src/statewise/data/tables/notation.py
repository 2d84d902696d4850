"""How a column of text writes its numbers: seen in a sample, or said by the user."""

import polars as pl

from statewise.data.files.reading import Reading
from statewise.data.tables.numbers import CURRENCY, Notation, absent, parse_numbers

_GROUPED = r"^[+-]?\d{1,3}(?:[, ']\d{3})+(?:\.\d+)?$"
_WRITTEN = rf"^[-+(]?\s*{CURRENCY}?\s*-?(?:\d{{1,3}}(?:[,.' ]\d{{3}})+|\d+)(?:[.,]\d+)?\s*(?:[%KMBTkmbt]|{CURRENCY})?\)?$"
_WITH_COMMA = r"^[+-]?\d*,\d+(?:[eE][+-]?\d+)?$"


def said(reading: Reading) -> Notation:
    """What the user says of all columns. Raises ValueError where it contradicts itself."""
    for key, character in (("data.thousands", reading.thousands), ("data.decimal", reading.decimal)):
        if character is not None and (len(character) != 1 or character.isalnum() or character in "+-"):
            raise ValueError(f"{key} must be one character such as a comma, got {character!r}")
    if reading.thousands is not None and reading.thousands == (reading.decimal or "."):
        raise ValueError(
            f"data.thousands and data.decimal are both {reading.thousands!r}: "
            "for 1.234,5 set data.thousands=. together with data.decimal=','"
        )
    return Notation(reading.null_values, reading.thousands, reading.decimal)


def seen(sample: pl.Series, notation: Notation) -> Notation:
    """What every value with a digit shows: percent and currency signs, K and M for powers of ten, a decimal comma."""
    if sample.dtype != pl.String:
        return notation
    text = sample.filter(~absent(sample, notation.null_values) & sample.str.contains(r"\d"))
    if not len(text) or not bool(parse_numbers(text, notation).bad.any()):
        return notation
    signs = Notation(
        notation.null_values,
        notation.thousands,
        notation.decimal,
        percent=bool(text.str.contains(r"\d\s*%$").all()),
        currency=bool((text.str.contains(rf"^[+-]?\s*{CURRENCY}") | text.str.contains(rf"\d\s*{CURRENCY}$")).all()),
        # One value with a letter among numbers is a slip of the pen.
        powers=2 * int(text.str.contains(r"\d\s*[KkMmBbTt]$").sum()) >= len(text),
    )
    found = _with_comma(signs, text) or signs
    return notation if bool(parse_numbers(text, found).bad.any()) else found


def _with_comma(signs: Notation, text: pl.Series) -> Notation | None:
    """With a decimal comma, where all fit, half have one, and one is no 1,234 with a comma between thousands."""
    if signs.thousands is not None or signs.decimal is not None:
        return None
    bare = text.str.replace_all(rf"{CURRENCY}|%|[KkMmBbTt]$|\s", "")
    comma = bare.str.contains(",", literal=True)
    fits = (bare.str.contains(_WITH_COMMA) | ~comma) & ~bare.str.contains(".", literal=True)
    if 2 * int(comma.sum()) >= len(bare) and bool(fits.all()) and not bool(bare.filter(comma).str.contains(_GROUPED).all()):
        return Notation(signs.null_values, None, ",", signs.percent, signs.currency, signs.powers)
    return None


def looks_written(sample: pl.Series) -> bool:
    """Whether at least half of the values are numbers as people write them, even if they cannot be read as they are."""
    return sample.dtype == pl.String and 2 * int(sample.str.contains(_WRITTEN).sum()) >= len(sample)


def sentence(name: str, notation: Notation, declared: Notation) -> str | None:
    """What is done to a column that is not written plainly, for the log."""
    done = []
    if notation.percent:
        done.append("percent signs taken off (3% is read as 3)")
    if notation.currency:
        done.append("currency signs taken off")
    if notation.powers:
        done.append("K, M, B and T read as thousands, millions, billions and trillions")
    if notation.decimal != declared.decimal:
        done.append("the comma is the decimal point")
    if notation.billionths:
        done.append("prices in units of 1e-9, divided by 1e9")
    return f'column "{name}": {"; ".join(done)}' if done else None


def remedy(text: str, notation: Notation) -> str:
    """What to do about a text that is no number."""
    usual = "write plain numbers such as 1234.5, leave missing values empty, or leave the column out of data.features"
    one = pl.Series([text])
    if bool(one.str.contains(_GROUPED).item()) and notation.thousands is None:
        mark = next(c for c in ", '" if c in text)
        quoted = f"'{mark}'" if mark in ", " else f'"{mark}"'
        return f"set data.thousands={quoted} if {mark!r} stands between thousands; else {usual}"
    if bool(one.str.contains(_WITH_COMMA).item()) and notation.decimal is None:
        return f"set data.decimal=',' if the comma is the decimal point; else {usual}"
    if not any(character.isdigit() for character in text) and len(text) <= 12 and text.lower() not in ("true", "false"):
        return f"{usual}; where it means a missing value, data.null_values=['{text}'] says so"
    return usual
