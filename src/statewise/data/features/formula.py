"""The meaning of an expression: which column of the file it is made of, and which functions follow one another."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from statewise.choices import SHOWN, did_you_mean, one_of
from statewise.data.features.expression import Expression, parse, quoted
from statewise.data.features.functions import FUNCTIONS, Function

SIGNATURES = ", ".join(function.signature for function in FUNCTIONS.values())
_ROWS = re.compile(r"(?:n\s*=\s*)?([+-]?[0-9]+)")


@dataclass(frozen=True)
class Step:
    """One function, its number of rows (0 where it takes none), and which of its columns where it gives several."""

    function: Function
    rows: int = 0
    part: str = ""

    @property
    def warm_up(self) -> int:
        return self.function.warm_up(self.rows)

    def of(self, inner: str) -> str:
        """The expression of this function of something."""
        given = [inner] if inner else []
        given += [str(self.rows)] if self.rows and self.rows != self.function.rows else []
        return f"{self.function.name}({', '.join(given)})" + (f".{self.part}" if self.part else "")


@dataclass(frozen=True)
class Formula:
    """A column of the file (None: the time of a row) and the functions that are applied to it, the inner one first.

    Attributes:
        ahead: its value at a row is that of so many rows later, which only a target may be.
    """

    column: str | None
    steps: tuple[Step, ...] = ()
    ahead: int = 0

    @property
    def name(self) -> str:
        """What its column is called: the expression, the same for every spelling of it."""
        text = self.argument(len(self.steps)) if self.steps else str(self.column)
        return f"next {text}" if self.ahead else text

    def argument(self, step: int) -> str:
        """The expression that the function of a step is applied to."""
        text = "" if self.column is None else quoted(self.column)
        for done in self.steps[:step]:
            text = done.of(text)
        return text

    @property
    def warm_up(self) -> int:
        """Rows at the beginning of a series that have no value."""
        return sum(step.warm_up for step in self.steps)


def formulas(texts: Iterable[str], columns: Sequence[str], key: str) -> list[Formula]:
    """What names and expressions mean, of a table with these columns; `hour()` is two formulas.

    Args:
        key: the configuration key that the texts come from.

    Raises:
        ValueError: one line with the key, the text, what is wrong with it and the nearest thing that is right.
    """
    return [formula for text in texts for formula in _Meaning(text, key, columns).formulas()]


def base_columns(texts: Iterable[str], columns: Sequence[str] = (), key: str = "data.features") -> list[str]:
    """The columns of a file that names and expressions need, each once, whether the file has them or not.

    Args:
        columns: those the file has: an expression that is the name of one is that column.

    Raises:
        ValueError: as `formulas`, but for a column that the file does not have.
    """
    found = [formula.column for text in texts for formula in _Meaning(text, key, columns, any_column=True).formulas()]
    return list(dict.fromkeys(name for name in found if name is not None))


class _Meaning:
    """One text of a key, understood or refused."""

    def __init__(self, text: str, key: str, columns: Sequence[str], *, any_column: bool = False) -> None:
        self._text, self._key, self._columns, self._any_column = text, key, columns, any_column

    def formulas(self) -> list[Formula]:
        if self._text in self._columns:
            return [Formula(self._text)]
        if self._text in FUNCTIONS:
            raise ValueError(f"{self._key}: {self._text} is a function: write {FUNCTIONS[self._text].signature}")
        if "(" not in self._text:
            return [Formula(self._text if self._any_column else one_of(self._key, self._text, self._columns))]
        try:
            expression = parse(self._text, self._columns)
        except ValueError as error:
            raise ValueError(f"{self._key}: {error}") from None
        return self._of(expression)

    def _of(self, expression: Expression) -> list[Formula]:
        if expression.arguments is None:
            return [Formula(self._column(expression.name))]
        function = self._function(expression.name)
        inner, rows = self._arguments(expression, function)
        parts = function.parts
        if expression.part:
            if function.parts == ("",):
                raise self._wrong(f"{function.name} gives one column, and none that is called {expression.part!r}")
            parts = (one_of(f"{self._key}: the part of {function.name}()", expression.part, parts),)
        return [Formula(inner.column, (*inner.steps, Step(function, rows, part))) for part in parts]

    def _column(self, name: str) -> str:
        if not self._any_column and name not in self._columns:
            listed = ", ".join(self._columns[:SHOWN])
            raise self._wrong(f"there is no numeric column {name!r}{did_you_mean(name, self._columns)}; there are {listed}")
        return name

    def _function(self, name: str) -> Function:
        if name not in FUNCTIONS:
            near = did_you_mean(self._text, self._columns) or did_you_mean(name, FUNCTIONS)
            raise self._wrong(f"there is no function {name!r}{near}; there are {SIGNATURES}")
        return FUNCTIONS[name]

    def _arguments(self, expression: Expression, function: Function) -> tuple[Formula, int]:
        given = list(expression.arguments or ())
        wanted = 0 if function.of_time else 1 + bool(function.least)
        optional = function.rows is not None
        if not wanted - optional <= len(given) <= wanted:
            raise self._wrong(f"{function.signature} does not take {len(given)} argument" + "s" * (len(given) != 1))
        if function.of_time:
            return Formula(None), 0
        inner = self._of(given[0])
        if len(inner) > 1:
            choose = " or ".join(formula.name for formula in inner)
            raise self._wrong(f"{given[0]} is {len(inner)} columns: choose {choose}")
        if not function.least:
            return inner[0], 0
        return inner[0], self._rows(given[1], function) if len(given) > 1 else int(function.rows or 0)

    def _rows(self, given: Expression, function: Function) -> int:
        number = _ROWS.fullmatch(given.name) if given.arguments is None else None
        if number is None:
            raise self._wrong(f"n in {function.signature} must be a whole number of rows, got {str(given)!r}")
        rows = int(number[1])
        if rows < function.least:
            raise self._wrong(f"n in {function.signature} must be at least {function.least}, got {rows}")
        return rows

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{self._key}: {self._text!r}: {what}")
