"""What the text of a single field looks like: a number, a time, nothing, or words."""

import csv
import re
from collections.abc import Sequence

from statewise.data.files.markers import MISSING

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
# Numbers as people write them: with a currency or a unit of count, grouped, with a decimal comma.
_WRITTEN_NUMBER = re.compile(r"[-+(]*[$€£¥]?[-+]?(\d+|\d{1,3}([.,'’\xa0\u202f]\d{3})+)?([.,]\d*)?([eE][+-]?\d+)?\s?[%KMB]?\)?")
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,:]\d+)?)?\s*([AaPp]\.?[Mm]\.?)?"
_ZONE = r"\s*(Z|[A-Za-z]{2,5}|[+-]\d{2}(:?\d{2})?|[A-Z][a-z]+/[A-Za-z_]+)?"
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mär|mai|okt|dez)[a-zä]*\.?"
_DATE = (
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})|\d{8}"
    rf"|\d{{1,2}}[- .]+{_MONTH}[- ,]*\d{{2,4}}|{_MONTH}[- ]\d{{1,2}},?[- ]+\d{{2,4}}|\d{{4}}[- ]{_MONTH}[- ]\d{{1,2}})"
)
_WRITTEN_CLOCK = rf"({_CLOCK}|\d{{4}}(\d{{2}}([.,]?\d{{1,9}})?)?)"
_TIME = re.compile(rf"({_DATE}([T ,_-]+{_WRITTEN_CLOCK})?|{_CLOCK}){_ZONE}", re.IGNORECASE)


def is_missing(field: str) -> bool:
    return field in MISSING


def is_number(field: str) -> bool:
    """Whether it is a plain number, with a decimal point."""
    return _NUMBER.fullmatch(field) is not None


def is_time(field: str) -> bool:
    """Whether it is a date, a clock or both, however written; digits alone are only where they are eight."""
    return _TIME.fullmatch(field) is not None


def is_value(field: str) -> bool:
    """Whether it is a number in any spelling, or a time: no name of a column."""
    if not any(c.isdigit() for c in field):
        return is_number(field)
    return _WRITTEN_NUMBER.fullmatch(field) is not None or is_number(field) or is_time(field)


def split(lines: Sequence[str], separator: str, quote: str) -> list[list[str]]:
    """The fields of each line, blanks in front of them gone; a blank as separator stands for any run of blanks."""
    if separator == " ":
        quoted = re.escape(quote)
        pattern = re.compile(rf"{quoted}([^{quoted}]*){quoted}|(\S+)")
        return [[inside or whole for inside, whole in pattern.findall(line)] for line in lines]
    rows: list[list[str]] = []
    for line in lines:
        try:
            # One line at a time: an open quote must not swallow those below.
            rows.append(next(csv.reader([line], delimiter=separator, quotechar=quote, skipinitialspace=True), []))
        except csv.Error:
            rows.append(line.split(separator))
    return rows
