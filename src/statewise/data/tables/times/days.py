"""Whether 03/04/2024 is in March or in April: what a whole column says."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from jaxtyping import Int

from statewise.data.tables.times.calendar import compose
from statewise.data.tables.times.moments import DAY, Unreadable

# 02.01.2024: where a date is written with points and ends in its year, the day comes first.
_WITH_POINTS = r"^\s*\d{1,2}\.\s?\d{1,2}\.\s?\d{4}\b"
# The order of year, month and day as they are written.
DAY_FIRST, MONTH_FIRST, YEAR_FIRST = ("day", "month", "year"), ("month", "day", "year"), ("year", "month", "day")


def choose_order(
    parts: pl.DataFrame, text: pl.Series, rows: Int[np.ndarray, " r"], day_first: bool | None
) -> tuple[str, str, str]:
    """Which of three numbers is which.

    A number above 12 can only be a day (or a year of two digits). Where no row has one, the reading counts in which the
    rows are in order, or are successive days, weeks or months, if there is exactly one. Where none of this tells, the day
    comes first in dates with points.

    Args:
        parts: the numbers `first`, `second`, `third`; a `third` of two digits counts from 1969 to 2068.
        text: as it is written; `rows`: where in the column.
        day_first: what the user says.

    Raises:
        Unreadable: nothing tells, or a row contradicts.
    """
    short = bool((parts["third"] < 100).any())
    orders = [DAY_FIRST, MONTH_FIRST] if day_first is None else [DAY_FIRST if day_first else MONTH_FIRST]
    if short and day_first is None:
        orders.append(YEAR_FIRST)
    readings = {order: in_order(parts, order) for order in orders}
    whole = {order: days for order, days in readings.items() if not days.has_nulls()}
    if day_first is not None:
        (order,) = orders
        lost = readings[order].is_null()
        if bool(lost.any()):
            row = int(lost.arg_true()[0])
            said = "true" if day_first else "false"
            raise Unreadable(int(rows[row]), f'holds "{text[row]}", which is no date with data.day_first={said}')
        return order
    if not whole:
        # The reading that loses the fewest rows; those are then named one by one.
        return min(orders, key=lambda order: readings[order].null_count())
    if len(whole) == 1:
        return next(iter(whole))
    same = [order for order in whole if readings[order].equals(next(iter(whole.values())))]
    if len(same) == len(whole):
        return same[0]
    told = _by_sequence(whole)
    if told is not None:
        return told
    if set(whole) == {DAY_FIRST, MONTH_FIRST}:
        if bool(text.str.contains(_WITH_POINTS).all()):
            return DAY_FIRST
        row = int((parts["first"] != parts["second"]).arg_true()[0])
        raise Unreadable(
            int(rows[row]),
            f'holds "{text[row]}", and no row tells whether the day or the month comes first: '
            "set data.day_first=true (day first) or data.day_first=false (month first)",
        )
    raise Unreadable(int(rows[0]), f'holds "{text[0]}", a year of two digits that no row tells from the day: write four digits')


def in_order(parts: pl.DataFrame, order: tuple[str, str, str]) -> pl.Series:
    """The days in this order, null where there is no such day."""
    named = parts.select(pl.col(old).alias(new) for old, new in zip(("first", "second", "third"), order, strict=True))
    year = pl.col("year")
    short = year.is_between(0, 99)
    return compose(
        named.with_columns(pl.when(short).then(year + pl.when(year < 69).then(2000).otherwise(1900)).otherwise(year))
    )


def _by_sequence(readings: Mapping[tuple[str, str, str], pl.Series]) -> tuple[str, str, str] | None:
    for test in (_is_sorted, _is_calendar):
        passed = [order for order, days in readings.items() if test(days.cast(pl.Int64).to_numpy())]
        if len(passed) == 1:
            return passed[0]
    return None


def _is_sorted(days: Int[np.ndarray, " r"]) -> bool:
    step = np.diff(days)
    return bool(np.all(step >= 0) or np.all(step <= 0))


def _is_calendar(days: Int[np.ndarray, " r"]) -> bool:
    """Whether these are successive days, working days, weeks, or the first of successive months."""
    dates = np.unique(days // DAY).astype("datetime64[D]")
    if len(dates) < 3:
        return False
    step = np.diff(dates.astype(np.int64))
    if np.all(step == step[0]) or bool(np.all(np.busday_count(dates[:-1], dates[1:]) == 1) and np.all(np.is_busday(dates))):
        return True
    months = dates.astype("datetime64[M]")
    of_month = (dates - months).astype(np.int64)
    months_apart = np.diff(months.astype(np.int64))
    # Days 1, 2, 3 of a month are likelier than the same day of every month, unless that is the first.
    return bool(np.all(of_month == 0) and np.all(months_apart == months_apart[0]))
