"""One column of any type as times."""

import polars as pl

from statewise.data.tables.numbers import absent
from statewise.data.tables.times.moments import NANOSECONDS, Moments
from statewise.data.tables.times.numbers import is_number, read_numbers
from statewise.data.tables.times.text import read_text


def read_times(raw: pl.Series, day_first: bool | None = None, null_values: tuple[str, ...] = ()) -> Moments:
    """Reads dates and times in text, numbers since 1970, dates of digits, and temporal types.

    Rows that hold no time are null. Raises Unreadable where the column as a whole can be read in two ways.
    """
    name, dtype = raw.name, raw.dtype
    if dtype == pl.Date:
        return Moments(raw.cast(NANOSECONDS), False, "dates", dates=True)
    if isinstance(dtype, pl.Datetime):
        zone = dtype.time_zone
        if zone is not None:
            raw = raw.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return Moments(raw.cast(NANOSECONDS), zone is not None, f"times in {zone}" if zone else "times")
    if dtype.is_numeric():
        return read_numbers(raw, name)
    if dtype != pl.String:
        return Moments(pl.Series(name, [None] * len(raw), dtype=NANOSECONDS), False, "nothing that is a time")
    text = pl.select(pl.when(~absent(raw, null_values)).then(raw).alias(name)).to_series()
    numbers = is_number(text)
    count = int(numbers.sum())
    if count == len(text) - text.null_count() and count:
        return read_numbers(text, name)
    if not count:
        return read_text(text, day_first)
    rest = read_text(pl.select(pl.when(~numbers).then(text).alias(name)).to_series(), day_first)
    since = read_numbers(pl.select(pl.when(numbers).then(text).alias(name)).to_series())
    values = pl.select(pl.coalesce(rest.values, since.values).alias(name)).to_series()
    utc = rest.flags | (since.flags & numbers.fill_null(False).to_numpy())
    return Moments(values, utc, f"{rest.how} and {since.how}", rest.zones, rest.dates and since.dates)
