"""Rows that repeat the series and time of another: counted by the reader, which drops or refuses them."""

import re
from collections.abc import Iterator

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject

_NOTE = re.compile(r"([\d,]+) repeated rows \((.*?)\) dropped by (data\.duplicates=(?:first|last)), first: (.*)", re.DOTALL)


def repeated(subject: Subject) -> Iterator[Oddity]:
    """Once, where the reader dropped such rows."""
    for note in subject.table.notes:
        if found := _NOTE.fullmatch(note):
            count, kinds, key, first = found.groups()
            number = int(count.replace(",", ""))
            message = f"{count} {'row repeats' if number == 1 else 'rows repeat'} a series and time ({kinds}): {first}"
            remedy = f"dropped by {key}; identical copies do no harm, for others decide which of them is right"
            yield Oddity("repeated-rows", "info" if "other values" not in kinds else "warning", number, (), message, remedy)
