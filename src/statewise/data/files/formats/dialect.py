"""How the fields of a text are written: what stands between them and around them, and the mark before decimals."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from statewise.data.files.formats.fields import is_missing, is_value, split
from statewise.data.files.reading import Reading

# The first of equals wins; a blank stands for any run of blanks.
_SEPARATORS = ("\t", ";", "|", ",", " ")
_LOOKED_AT = 200  # lines
_SPELLED = {"\\t": "\t", "tab": "\t", "\\s": " ", "\\s+": " ", "blank": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
_COMMA_DECIMAL = re.compile(r"[-+]?(\d{1,3}([. \xa0\u202f]\d{3})+,\d+|\d*,\d+)([eE][-+]?\d+)?")
_BLANK_THOUSANDS = re.compile(r"[-+]?\d{1,3}([ \xa0\u202f])\d{3}(?:\1\d{3})*(?:,\d*)?")
_COMMA_EITHER = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")  # 1,234: a decimal comma, or thousands
_COMMA_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+\.\d*|[-+]?\d{1,3}(,\d{3}){2,}")
_POINT_DECIMAL = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")
_POINT_EITHER = re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")
_WHOLE = re.compile(r"[-+]?\d+")


@dataclass(frozen=True)
class Dialect:
    """
    Attributes:
        separator: one character; a blank stands for any run of blanks.
        quote: around a field that holds the separator.
        decimal: the mark before decimals, "." or ",".
        thousands: the mark between groups of three digits; None where there is none.
    """

    separator: str
    quote: str = '"'
    decimal: str = "."
    thousands: str | None = None

    @property
    def plain(self) -> bool:
        """Whether numbers are written as a program writes them."""
        return self.decimal == "." and self.thousands is None


def find_dialect(lines: Sequence[str], reading: Reading) -> Dialect:
    """The dialect of a text by its first lines, as far as `reading` does not say it.

    Raises:
        ValueError: `reading` names a separator or a mark that cannot be one.
    """
    lines = [line for line in lines if line.strip()][-_LOOKED_AT:]
    quote = _quote(lines)
    if reading.separator is not None:
        separator = _SPELLED.get(reading.separator, reading.separator)
        if len(separator) != 1 or not separator.isascii() or separator.isalnum() or separator in "\"'\r\n.":
            raise ValueError(f'data.separator must be one character such as "," or ";" (or "tab"), got {reading.separator!r}')
    else:
        separator = _separator(lines, quote)
    decimal = reading.decimal
    if decimal not in (None, ".", ","):
        raise ValueError(f'data.decimal must be "." or ",", got {decimal!r}')
    if reading.thousands is not None and (len(reading.thousands) != 1 or reading.thousands.isalnum()):
        raise ValueError(f'data.thousands must be one character such as "," or ".", got {reading.thousands!r}')
    rows = split(lines, separator, quote)
    if decimal is None:
        if reading.thousands is not None:
            decimal = "," if reading.thousands == "." else "."
        else:
            decimal = "," if _has_decimal_comma(rows, separator) else "."
    thousands = reading.thousands or (_between_thousands(rows) if decimal == "," else None)
    if thousands == decimal:
        raise ValueError(f"data.decimal and data.thousands cannot both be {decimal!r}")
    return Dialect(separator, quote, decimal, thousands)


def _quote(lines: Sequence[str]) -> str:
    """An apostrophe where whole fields stand between two of them and none between double quotes."""
    double = single = 0
    for line in lines:
        double += len(re.findall(r'(?:^|[,;|\t ])"[^"]*"(?=$|[,;|\t ])', line))
        single += len(re.findall(r"(?:^|[,;|\t ])'[^']*'(?=$|[,;|\t ])", line))
    return "'" if single > double else '"'


def _separator(lines: Sequence[str], quote: str) -> str:
    """The one that cuts most lines into equally many fields of which most are numbers or times."""
    best, found = (0.5, 0.0), ","
    for separator in _SEPARATORS:
        if not any(separator in line or (separator == " " and "\t" in line) for line in lines):
            continue
        rows = split(lines, separator, quote)
        width, alike = Counter(map(len, rows)).most_common(1)[0]
        if width < 2:
            continue
        fields = [field.strip() for row in rows if len(row) == width for field in row]
        valued = sum(is_value(field) or is_missing(field) for field in fields) / len(fields)
        share = alike / len(rows)
        # Words only: the more fields, the likelier.
        score = (round(share * (0.1 + valued), 3), width / 1e6 if valued == 0 else 0.0)
        if share >= 0.5 and (best == (0.5, 0.0) or score > best):
            best, found = score, separator
    return found


def _between_thousands(rows: list[list[str]]) -> str:
    """A blank of some kind, where one stands there, else a point; beside decimal commas both are what they seem."""
    found = (_BLANK_THOUSANDS.fullmatch(field.strip()) for row in rows for field in row)
    return next((match.group(1) for match in found if match is not None), ".")


def _has_decimal_comma(rows: list[list[str]], separator: str) -> bool:
    columns: dict[int, list[str]] = {}
    for row in rows:
        for place, field in enumerate(row):
            columns.setdefault(place, []).append(field.strip())
    sure = either = 0
    for fields in columns.values():
        comma = [f for f in fields if _COMMA_DECIMAL.fullmatch(f)]
        if any(_COMMA_THOUSANDS.fullmatch(f) for f in fields):
            return False
        # A column of its own kind, as epochs with a fraction, or one that mixes both: that one stays as it is.
        if any(_POINT_DECIMAL.fullmatch(f) and not _POINT_EITHER.fullmatch(f) for f in fields):
            continue
        unclear = [f for f in comma if _COMMA_EITHER.fullmatch(f)]
        sure += len(comma) - len(unclear)
        if unclear and not any(_WHOLE.fullmatch(f) for f in fields):
            either += len(unclear)
    # With semicolons a comma marks decimals; elsewhere 1,234 is left as it is, so that reading it stops with its place.
    return sure > 0 or (either > 0 and separator == ";")
