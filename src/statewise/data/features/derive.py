"""A table whose columns are computed when they are asked for, series by series, from one column of another table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
from jaxtyping import Float, Int, Shaped

from statewise.data.features.formula import Formula, Step, formulas
from statewise.data.tables.table import Table


def derive(table: Table, names: Sequence[str], *, timezone: str | None = None, key: str = "data.features") -> Table:
    """The table with exactly these columns: names of its own, or expressions (`hour()` stands for two columns).

    Args:
        timezone: of the clock that `hour()` and `weekday()` read; None is UTC, for times that say their zone.
        key: what errors call the names.

    Raises:
        ValueError: a name or an expression that means nothing here. Reading a column raises it for a value that a
            function does not take.
    """
    return computed(table, formulas(names, table.columns, key), timezone=timezone, key=key)


def computed(table: Table, wanted: Iterable[Formula], *, timezone: str | None, key: str) -> Table:
    """The table with the columns of these formulas, each once."""
    by_name = {formula.name: formula for formula in wanted}
    longest = int(np.diff(table.rows.offsets).max(initial=0))
    for name, formula in by_name.items():
        if 0 < longest <= formula.warm_up + formula.ahead:
            needed = formula.warm_up + formula.ahead + 1
            raise ValueError(f"{key}: {name} needs {needed:,} rows for its first value, the longest series has {longest:,}")
        if formula.column is None:
            _check_clock(table, name, timezone, key)
    return replace(table, numeric=Derived(table, by_name, timezone))


class Derived:
    """The columns of formulas over a table, of which nothing is kept."""

    def __init__(self, table: Table, by_name: Mapping[str, Formula], timezone: str | None) -> None:
        self._table, self._by_name, self._timezone = table, dict(by_name), timezone

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def read(self, name: str) -> Float[np.ndarray, " r"]:
        formula = self._by_name[name]
        if not formula.steps:
            return self._table.read(str(formula.column))
        offsets = self._table.rows.offsets.tolist()
        values = self._clock() if formula.column is None else self._table.read(formula.column)
        if formula.column is not None:
            self._refuse(np.isinf(values), f"column {formula.column!r} is infinite", "correct it, or leave it empty")
        # The first step may take whole nanoseconds, which a float does not hold.
        for place, step in enumerate(formula.steps):
            if step.function.positive:
                self._refuse_not_positive(formula, place, values)
            values = self._step(step, values, offsets)
            self._refuse(np.isinf(values), f"{formula.argument(place + 1)} is infinite", "scale or correct the column")
        return values if not formula.ahead else _moved_back(values, formula.ahead, offsets)

    def _step(self, step: Step, values: Shaped[np.ndarray, " r"], offsets: Sequence[int]) -> Float[np.ndarray, " r"]:
        expression = step.function.compute[step.part](pl.col("x"), step.rows)
        result: np.ndarray = np.empty(len(values))
        for start, stop in pairwise(offsets):
            # Null, not NaN, is what a rolling window of polars takes for missing.
            series = pl.Series("x", values[start:stop], nan_to_null=True).to_frame()
            result[start:stop] = series.select(expression.cast(pl.Float64).fill_null(float("nan"))).to_series().to_numpy()
        return result

    def _clock(self) -> Int[np.ndarray, " r"]:
        """The local time of each row, in ns since the beginning of 1970 on the local clock."""
        times = self._table.rows.times
        assert times is not None
        if self._timezone is None:
            return times.astype(np.int64)
        utc = pl.Series(times).dt.replace_time_zone("UTC")
        return utc.dt.convert_time_zone(self._timezone).dt.replace_time_zone(None).cast(pl.Int64).to_numpy()

    def _refuse_not_positive(self, formula: Formula, place: int, values: Float[np.ndarray, " r"]) -> None:
        wrong = values <= 0.0
        if wrong.any():
            row = int(np.argmax(wrong))
            inner, outer = formula.argument(place), formula.argument(place + 1)
            what = f"{outer} needs values above 0, but {inner} is {values[row]:g}"
            self._refuse(wrong, what, f"correct it, leave it empty, or use difference({inner})")

    def _refuse(self, wrong: Shaped[np.ndarray, " r"], what: str, remedy: str) -> None:
        if not wrong.any():
            return
        rows, row, count = self._table.rows, int(np.argmax(wrong)), int(wrong.sum())
        more = f" (and in {count - 1:,} more rows)" if count > 1 else ""
        raise ValueError(f"{what} at {rows.at(row)}{rows.of_series(row)}{more}: {remedy}")


def _moved_back(values: Float[np.ndarray, " r"], ahead: int, offsets: Sequence[int]) -> Float[np.ndarray, " r"]:
    """At each row the value of `ahead` rows later in its series, NaN at the end of one."""
    moved = np.full(len(values), np.nan)
    for start, stop in pairwise(offsets):
        kept = max(stop - ahead, start)
        moved[start:kept] = values[min(start + ahead, stop) : stop]
    return moved


def _check_clock(table: Table, name: str, timezone: str | None, key: str) -> None:
    times = table.rows.times
    if times is None:
        raise ValueError(f"{key}: {name} needs a time column, and there is none: name it in data.time")
    intraday = bool((times.astype("datetime64[D]") != times).any())
    if table.understood is not None and timezone is None and intraday:
        table.understood.needs_zone(f"{name} in {key} reads the local clock")
