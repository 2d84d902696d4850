"""Which of a text's first lines hold names of columns, and which are remarks, titles or units; names are cleaned here."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from statewise.data.files.formats.dialect import Dialect
from statewise.data.files.formats.fields import is_missing, is_value, split

COMMENTS = ("#", "//", "%")
_MOST_LEVELS = 4  # lines of names one below the other
_LOOKED_AT = 50  # lines that may stand above the table
_UNIT = re.compile(r"[\[(].*[\])]|%|°.*|[a-zA-Zµμ]{1,4}([/·*^²³-][a-zA-Z0-9²³-]+)+")


@dataclass(frozen=True)
class Header:
    """
    Attributes:
        above: lines before the first row of values.
        width: how many fields a row has.
        levels: the fields of each line of names; none where the file has no names.
        lines: what these lines are in the text, for finding them again further down.
        notes: what was passed over.
    """

    above: int
    width: int
    levels: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def find_header(lines: Sequence[str], dialect: Dialect, header: int | None, skip: int | None, name: str) -> Header:
    """Reads the first lines of a text.

    Args:
        lines: from the first one on, each without its line break.
        header: how many lines hold names; None finds out.
        skip: how many lines stand above them; None finds out.

    Raises:
        ValueError: `header` or `skip` ask for more lines than there are.
    """
    notes: list[str] = []
    if skip is not None and not 0 <= skip < len(lines):
        raise ValueError(f"data.skip is {skip}, and {name} has {len(lines)} lines at its start to skip")
    places, remarks = _table_lines(lines, dialect, skip or 0)
    if not places:
        return _only_remarks(lines, remarks, dialect, name)
    rows = [_stripped(r) for r in split([lines[p] for p in places], dialect.separator, dialect.quote)]
    body = rows[max(1, len(rows) // 2) :][-200:] or rows
    width = _width(body, rows[0])
    valued = _valued([row for row in body if len(row) == width], width)

    start = 0 if skip is not None else _start(rows, width, valued)
    if header is None:
        count = _levels(rows[start:], width, valued)
    else:
        count = header
        if not 0 <= header <= len(rows) - start:
            raise ValueError(f"data.header is {header}, and {name} has only {len(rows) - start} lines that can hold names")
    levels = tuple(tuple(row) for row in rows[start : start + count])
    if len(set(map(len, levels))) > 1:
        widths = " and ".join(str(len(level)) for level in levels)
        raise ValueError(
            f"data.header is {header}, and these lines of {name} have {widths} fields: they are not names of the same columns"
        )
    taken = tuple(lines[p] for p in places[start : start + count])
    if start:
        notes.append(f"{_counted(start, 'line')} above the table left out ({_quoted(lines[places[0]])})")
    first = places[start + count] if start + count < len(places) else len(lines)
    passed = [r for r in remarks if r < first]
    if count and not (passed and passed[-1] > places[start + count - 1]):
        first = places[start + count - 1] + 1  # blank lines above the values are rows like those between them
    numbered = count == 1 and _are_numbered(levels[0])
    if (not count or numbered) and header is None and passed:
        # Some programs write the names as the last remark above the values.
        said = _stripped(split([_uncommented(lines[passed[-1]])], dialect.separator, dialect.quote)[0])
        if len(said) == width and all(said) and _is_names(said, valued):
            levels, taken = (tuple(said),), (lines[passed.pop()],)
            notes.append(f"names of columns taken from a comment ({_quoted(taken[0])})")
            first, numbered = places[start], False
    if numbered:
        notes.append(f"the first line, {_quoted(taken[0])}, is taken as names (data.header=0 says that it holds values)")
    if passed:
        notes.append(f"{_counted(len(passed), 'comment line')} above the values left out ({_quoted(lines[passed[0]])})")
    levels, width = _fitted(levels, width, [r for r in body if len(r) == width])
    return Header(first, width, levels, taken, tuple(notes))


def _table_lines(lines: Sequence[str], dialect: Dialect, start: int) -> tuple[list[int], list[int]]:
    """The places of the lines that may belong to the table, and of the remarks above it."""
    places: list[int] = []
    remarks: list[int] = []
    marks = COMMENTS if dialect.separator == ";" else (*COMMENTS, ";")
    for place, line in enumerate(lines):
        text = line.strip()
        if place < start or not text:
            continue
        if re.match(r"sep=.", text, re.IGNORECASE) or text.startswith(marks):
            remarks.append(place)
        else:
            places.append(place)
    return places, remarks


def _only_remarks(lines: Sequence[str], remarks: list[int], dialect: Dialect, name: str) -> Header:
    if not remarks:
        raise ValueError(f"data.path: {name} is empty (0 rows, not even a header)")
    fields = _stripped(split([_uncommented(lines[remarks[-1]])], dialect.separator, dialect.quote)[0])
    if not any(fields):
        raise ValueError(f"data.path: {name} holds a comment and no rows (0 rows)")
    return Header(len(lines), len(fields), (tuple(fields),), (lines[remarks[-1]],))


def _uncommented(line: str) -> str:
    return line.strip().lstrip("#/%;").strip()


def _stripped(fields: Sequence[str]) -> list[str]:
    return [field.strip() for field in fields]


def _width(body: list[list[str]], first: list[str]) -> int:
    counts = Counter(map(len, body))
    most = max(counts.values())
    return len(first) if counts[len(first)] == most else next(n for n, count in counts.items() if count == most)


def _valued(body: list[list[str]], width: int) -> list[bool]:
    """For each column whether what stands in it is mostly numbers or times."""
    columns = [[row[place] for row in body if not is_missing(row[place])] for place in range(width)]
    return [2 * sum(map(is_value, column)) >= len(column) > 0 for column in columns]


def _is_names(fields: Sequence[str], valued: Sequence[bool]) -> bool:
    """Whether these are names above columns of values; some of them may be counted, as 0, 1, 2."""
    filled = [(f, v) for f, v in zip(fields, valued, strict=False) if not is_missing(f)]
    values = [f for f, _ in filled if is_value(f)]
    words_above = sum(v and not is_value(f) for f, v in filled)
    if not values:
        return bool(filled) and (words_above > 0 or not any(valued))
    if _are_counted(values) and words_above and (len(values) > 1 or values[0] in ("0", "1")):
        return True
    return words_above > sum(v and is_value(f) for f, v in filled)


def _are_numbered(fields: Sequence[str]) -> bool:
    """0, 1, 2 ... or 1, 2, 3 ... and nothing else: what programs write where columns have no names."""
    filled = [field for field in fields if field]
    return len(filled) > 1 and filled in ([str(i + first) for i in range(len(filled))] for first in (0, 1))


def _are_counted(fields: Sequence[str]) -> bool:
    """Whole numbers at equal distances, upwards: 0, 1, 2 or 1990, 1991."""
    if not all(field.isdecimal() and len(field) <= 6 for field in fields):
        return False
    steps = {int(b) - int(a) for a, b in pairwise(fields)}
    return len(steps) == 0 or (len(steps) == 1 and min(steps) > 0)


def _start(rows: list[list[str]], width: int, valued: list[bool]) -> int:
    """How many lines stand above the table: lines that do not fit, above one of names or values that does."""
    for place, row in enumerate(rows[:_LOOKED_AT]):
        following = rows[place + 1] if place + 1 < len(rows) else []
        names_follow = len(following) == width and _is_names(following, valued)
        if len(row) == width:
            filled = sum(map(bool, row))
            partly = 2 * filled <= width or (filled < width and any(map(is_value, row)))
            if width > 2 and partly and names_follow and sum(map(bool, following)) > max(filled, 1):
                continue
        elif abs(len(row) - width) > 1 or len(row) < 2 or names_follow or not _is_names(row, valued):
            continue
        if place and not _is_names(row, valued) and len(rows[0]) > 2 and _is_names(rows[0], valued):
            return 0  # names of another number than the values: not a title
        return place
    return 0


def _levels(rows: list[list[str]], width: int, valued: list[bool]) -> int:
    """How many lines of names there are at the start."""
    if not rows or not (_is_names(rows[0], valued) or _are_numbered(rows[0])):
        return 0
    count = 1
    while count < min(_MOST_LEVELS, len(rows)):
        row = rows[count]
        filled = [(f, v) for f, v in zip(row, valued, strict=False) if not is_missing(f)]
        # A row of the table that holds an odd text holds a time or a number beside it.
        if len(row) != width or row == rows[0] or any(is_value(f) for f, _ in filled):
            break
        if not any((v and any(map(str.isalpha, f))) or is_unit(f) for f, v in filled):
            break
        count += 1
    return count


def _fitted(levels: tuple[tuple[str, ...], ...], width: int, body: list[list[str]]) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Names and rows of the same width where one of them ends in a separator, or rows begin with an index without name."""
    if not levels or not body:
        return levels, len(levels[0]) if levels else width
    names = len(levels[0])
    if names == width + 1 and not any(level[-1] for level in levels if len(level) == names):
        return tuple(level[:width] for level in levels), width
    if names == width - 1:
        if not any(row[-1] for row in body):
            return tuple((*level, "") for level in levels), width
        first = [row[0] for row in body]
        if len(set(first)) == len(first) > 1:
            return tuple(("", *level) for level in levels), width
    return levels, names  # rows of another number are refused where they are read


def is_unit(text: str) -> bool:
    """Whether it is a unit of measurement: [V], (mg/m3), %, km/h."""
    return _UNIT.fullmatch(text) is not None


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count > 1 else "")


def _quoted(line: str) -> str:
    text = line.strip()
    return f'"{text[:57]}..."' if len(text) > 60 else f'"{text}"'
