"""From year, month, day and a time of day to nanoseconds since 1970."""

import polars as pl

from statewise.data.tables.times.moments import NANOSECONDS

DATE = ("year", "month", "day")
CLOCK = ("hour", "minute", "second", "fraction")  # the fraction in nanoseconds


def is_day(year: pl.Expr, month: pl.Expr, day: pl.Expr) -> pl.Expr:
    """Whether there is such a day."""
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    february = pl.when(leap).then(29).otherwise(28)
    length = pl.when(month == 2).then(february).when(month.is_in([4, 6, 9, 11])).then(30).otherwise(31)
    return month.is_between(1, 12) & (day >= 1) & (day <= length)


def is_clock(hour: pl.Expr, minute: pl.Expr, second: pl.Expr) -> pl.Expr:
    """Whether there is such a time of day; 24:00 is the end of one."""
    usual = hour.is_between(0, 23) & minute.is_between(0, 59) & second.is_between(0, 59)
    return usual | ((hour == 24) & (minute == 0) & (second == 0))


def compose(parts: pl.DataFrame) -> pl.Series:
    """Datetime in ns from columns of whole numbers named as DATE and CLOCK (those absent are 0).

    Null where there is no such moment. 1677-09-21 to 2262-04-11 fit into 64 bits of nanoseconds; whole years inside are enough.
    """
    parts = parts.with_columns(pl.lit(0).alias(name) for name in CLOCK if name not in parts.columns)
    parts = parts.select(pl.col(*DATE, *CLOCK).cast(pl.Int64))
    year, month, day, hour, minute, second, fraction = (pl.col(name) for name in (*DATE, *CLOCK))
    sane = year.is_between(1678, 2261) & is_day(year, month, day) & is_clock(hour, minute, second)
    sane = sane & ((hour < 24) | (fraction == 0))
    midnight = pl.datetime(*(pl.when(sane).then(pl.col(name)) for name in DATE), time_unit="ns").cast(pl.Int64)
    clock = ((hour * 60 + minute) * 60 + second) * 10**9 + fraction
    return parts.select(pl.when(sane).then(midnight + clock).cast(NANOSECONDS).alias("")).to_series()
