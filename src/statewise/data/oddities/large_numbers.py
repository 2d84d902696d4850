"""Whole numbers that float64 does not hold exactly: counted by the reader."""

import re
from collections.abc import Iterator

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject

_NOTE = re.compile(r'column "(.*)": ([\d,]+) values? beyond 2\^53, .*')


def large_numbers(subject: Subject) -> Iterator[Oddity]:
    """Once for each column."""
    for note in subject.table.notes:
        if found := _NOTE.fullmatch(note):
            name, count = found.groups()
            message = f"{name}: {count} whole numbers beyond 2^53, rounded to the nearest that float64 holds"
            remedy = f"leave {name} out of data.features if it is an identifier"
            yield Oddity("large-numbers", "warning", int(count.replace(",", "")), (), message, remedy)
