"""Rows by what they came to and by what they were asked for: `test_mse<0.03`, `model=gru`, `optimizer.lr>=1e-3`."""

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from statewise.choices import did_you_mean
from statewise.sweeps import composed
from statewise.sweeps.rows import Row, key_of
from statewise.sweeps.table import typed

COLUMNS = tuple(field.name for field in fields(Row))
NUMBERS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_FILTER = re.compile(r"\s*([^\s<>=!]+)\s*(<=|>=|==|!=|=|<|>)\s*(.*?)\s*")
TEXTS = ("overrides", "status", "folder", "model", "data", "best_baseline", "health", "message")
GROUPS = ("model", "data")  # columns that are configuration groups as well
_NOTHING = {"null", "none", ""}


@dataclass(frozen=True)
class Filter:
    """One comparison. A value that is not there is equal to null, and neither above nor below anything."""

    name: str
    sign: str
    value: str

    def passes(self, row: Row) -> bool:
        found = value_of(row, self.name)
        if self.sign in NUMBERS:
            number = _number(found)
            return number is not None and NUMBERS[self.sign](number, float(self.value))
        return self._equal(found) is not (self.sign == "!=")

    def _equal(self, found: Any) -> bool:
        if found is None:
            return self.value.lower() in _NOTHING
        number, wanted = _number(found), _number(self.value)
        if number is not None and wanted is not None:
            return number == wanted
        text = str(found).lower() if isinstance(found, bool) else str(found)
        return fnmatch.fnmatchcase(text, self.value) or text == self.value


def read_filter(text: str) -> Filter:
    """The comparison that `text` says.

    Raises: ValueError where it is none.
    """
    match = _FILTER.fullmatch(text)
    if match is None:
        raise ValueError(f"--where {text!r} is no comparison; write NAME=VALUE, or one of != < <= > >= instead of =")
    name, sign, value = match.groups()
    if sign in NUMBERS and name in TEXTS:
        raise ValueError(f"--where {text!r}: {name} is text, which is compared by = and !=")
    if sign in NUMBERS and _number(value) is None:
        raise ValueError(f"--where {text!r}: {sign} compares numbers, and {value!r} is none; text is compared by = and !=")
    return Filter(name, sign, value)


def known(name: str, rows: Sequence[Row], option: str) -> str:
    """The name itself, of a column or of a configuration key that a run of these has.

    Raises: ValueError, with the nearest names, where it is neither.
    """
    if name in COLUMNS or any(_lookup(row, name)[0] for row in rows):
        return name
    keys = {key for row in rows[:1] for key in composed.settings(row.folder)}
    near = did_you_mean(name, [*COLUMNS, *sorted(keys)], 3)
    raise ValueError(f"{option}: there is no column and no configuration key {name!r}{near} (columns: {', '.join(COLUMNS)})")


def ordered(rows: Iterable[Row], by: str | None) -> list[Row]:
    """Sorted by a name, by ``-name`` from large to small, rows without a value last; numbers before text.

    By default the ok ones by their objective, each data set on its own, then the others.
    """
    if by is None:
        return sorted(rows, key=lambda row: (row.status != "ok", row.data, *_rank(row.objective)))
    name, sign = by.removeprefix("-"), -1 if by.startswith("-") else 1
    found = [(value_of(row, name), row) for row in rows]
    present = sorted((entry for entry in found if entry[0] is not None), key=lambda entry: _rank(entry[0]), reverse=sign < 0)
    return [row for _, row in present] + [row for value, row in found if value is None]


def value_of(row: Row, name: str) -> Any:
    """What a row has under the name of a column, a configuration key or a configuration group; None where it has nothing."""
    value = _lookup(row, name)[1]
    return typed(value) if isinstance(value, tuple) else value


def objective_name(rows: Sequence[Row]) -> str:
    """The metric that all of them minimise, for a heading."""
    names = {composed.settings(row.folder).get("objective") for row in rows} - {None}
    return str(names.pop()) if len(names) == 1 else "objective"


def _lookup(row: Row, name: str) -> tuple[bool, Any]:
    """(whether the run knows the name, its value)."""
    if name in COLUMNS and (name not in GROUPS or getattr(row, name)):
        return True, getattr(row, name)
    # A run that was refused has no summary, but it was told which model.
    entered = [entry.partition("=")[2] for entry in row.overrides if key_of(entry) == name]
    if entered:
        return True, entered[-1]
    keys = composed.settings(row.folder)
    if name in keys:
        return True, keys[name]
    choices = composed.choices(row.folder)
    return name in choices, choices.get(name)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _rank(value: Any) -> tuple[int, float, str]:
    """Numbers in their order, then text in its order, then nothing."""
    number = _number(value)
    if number is not None:
        return 0, number, ""
    return (1, 0.0, str(value)) if value is not None else (2, 0.0, "")
