"""What is odd in files that are refused for it."""

import re

from statewise.data.oddities.oddity import Oddity

_LINE = re.compile(r"data\.path: (.*) \(([\d,]+) repeated rows in all\); (.*)", re.DOTALL)


def repeated_rows(line: str) -> Oddity | None:
    """Rows of the same series and time, where this is the line that refuses them."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    first, count, remedy = found.groups()
    number = int(count.replace(",", ""))
    which = "row repeats" if number == 1 else "rows repeat"
    return Oddity("repeated-rows", "error", number, (), f"{count} {which} a series and time: {first}", remedy)
