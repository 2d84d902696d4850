"""The functions of an expression. Each is a polars expression of the values of one series, in the order of time.

The value at a row is made of that row and rows before it, so many rows of the series, whatever time lies between them: a
return over a night is the return from one bar to the next. The first `warm_up` rows of a series have no value (NaN), nor
has a row that would need a missing one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

Compute = Callable[[pl.Expr, int], pl.Expr]

_DAY = 86_400 * 10**9  # ns
_WEEK = 7 * _DAY
_MONDAY = 3 * _DAY  # 1970-01-01 was a Thursday: the week it belongs to had begun three days before


@dataclass(frozen=True)
class Function:
    """What an expression may call.

    Attributes:
        compute: from the values (or, for a function of time, the local time in ns since 1970) and the number of rows.
        parts: the columns that it gives, where it gives more than one.
        of_time: it takes the time of a row instead of a column.
        rows: the number of rows where none is given; None where one must be.
        least: the smallest number of rows; 0 where it takes none.
        warm_up: how many rows at the beginning of a series have no value, from the number of rows.
        positive: its argument must be above 0.
        target: it may be predicted; then the same function of the rows that follow.
        change: it is a change and not a level, so that 0 is the simplest forecast.
    """

    name: str
    signature: str
    meaning: str
    compute: dict[str, Compute]
    of_time: bool = False
    rows: int | None = None
    least: int = 0
    warm_up: Callable[[int], int] = lambda rows: 0
    positive: bool = False
    target: bool = False
    change: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.compute)


def _log_return(x: pl.Expr, rows: int) -> pl.Expr:
    before = x.shift(rows)
    change = x - before
    # A tick of 1e-4 on a price of 1e6 keeps its digits; far from 1 the difference of the logarithms is the exact one.
    return pl.when(change.abs() < 0.5 * before).then((change / before).log1p()).otherwise(x.log() - before.log())


def _centred(x: pl.Expr, rows: int) -> pl.Expr:
    """Values less the median of the first window: sums of squares beside a large level would cancel."""
    return x - x.head(rows).median().fill_null(0.0)


def _std(x: pl.Expr, rows: int) -> pl.Expr:
    return _centred(x, rows).rolling_std(rows)


def _zscore(x: pl.Expr, rows: int) -> pl.Expr:
    centred = _centred(x, rows)
    deviation = centred.rolling_std(rows)
    return pl.when(deviation == 0.0).then(0.0).otherwise((centred - centred.rolling_mean(rows)) / deviation)


def _mean(x: pl.Expr, rows: int) -> pl.Expr:
    centre = x.head(rows).median().fill_null(0.0)
    return (x - centre).rolling_mean(rows) + centre


def _on_a_circle(period: int, origin: int) -> dict[str, Compute]:
    """Sine and cosine of where a moment stands in a period; whole nanoseconds until the angle is formed."""

    def angle(time: pl.Expr) -> pl.Expr:
        return ((time + origin) % period).cast(pl.Float64) * (2.0 * np.pi / period)

    return {"sin": lambda time, rows: angle(time).sin(), "cos": lambda time, rows: angle(time).cos()}


_ALL = (
    Function(
        "log_return", "log_return(column, n=1)", "log of the value over the one n rows before", {"": _log_return},
        rows=1, least=1, warm_up=lambda rows: rows, positive=True, target=True, change=True,
    ),
    Function(
        "difference", "difference(column, n=1)", "the value less the one n rows before",
        {"": lambda x, rows: x - x.shift(rows)}, rows=1, least=1, warm_up=lambda rows: rows, target=True, change=True,
    ),
    Function(
        "mean", "mean(column, n)", "mean of the last n rows", {"": _mean},
        least=1, warm_up=lambda rows: rows - 1,
    ),
    Function(
        "std", "std(column, n)", "standard deviation of the last n rows, divisor n - 1; 0 where they are all equal", {"": _std},
        least=2, warm_up=lambda rows: rows - 1, target=True,
    ),
    Function(
        "zscore", "zscore(column, n)",
        "the value less the mean of the last n rows, over their standard deviation; 0 where they are all equal",
        {"": _zscore}, least=2, warm_up=lambda rows: rows - 1,
    ),
    Function("log", "log(column)", "natural logarithm", {"": lambda x, rows: x.log()}, positive=True),
    Function(
        "lag", "lag(column, n=1)", "the value n rows before", {"": lambda x, rows: x.shift(rows)},
        rows=1, least=1, warm_up=lambda rows: rows,
    ),
    Function(
        "hour", "hour()", "local time of day as two columns, hour().sin and hour().cos: the circle of 24 hours from midnight",
        _on_a_circle(_DAY, 0), of_time=True,
    ),
    Function(
        "weekday", "weekday()",
        "local time of week as two columns, weekday().sin and weekday().cos: the circle of 7 days from Monday, 0:00",
        _on_a_circle(_WEEK, _MONDAY), of_time=True,
    ),
)  # fmt: skip

FUNCTIONS = {function.name: function for function in _ALL}


def function_table() -> str:
    """The functions as a table in Markdown, for the documentation."""
    lines = ["| expression | value at a row | first rows without a value |", "| --- | --- | --- |"]
    for function in _ALL:
        warm = "n - 1" if function.warm_up(9) == 8 else "n" if function.warm_up(9) == 9 else "none"
        lines.append(f"| `{function.signature}` | {function.meaning} | {warm} |")
    return "\n".join(lines) + "\n"
