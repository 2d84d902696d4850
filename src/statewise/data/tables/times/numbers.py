"""Times that are numbers: since 1970 in any unit, dates and times of digits such as 20240102, days of a spreadsheet."""

import re

import polars as pl

from statewise.data.tables.times.calendar import compose, is_clock, is_day
from statewise.data.tables.times.moments import DAY, NANOSECONDS, Moments, Unreadable

# Numbers since 1970 tell their unit by their size: below 1e11 seconds, and so on (1e11 s is the year 5138).
_UNITS = (("seconds", 10**11, 10**9), ("milliseconds", 10**14, 10**6), ("microseconds", 10**17, 10**3))
_LIMIT = 2**63 - 1
_DECIMAL = r"^([+-]?)(\d{1,19})(?:\.(\d*))?$"
_ONLY_A_DATE = re.compile(r"(trade|trading|value)?[ _.]*(date|dates|datum|date[ _.]?time)", re.IGNORECASE)
_DIGITS = {8: 1, 12: 10**4, 14: 10**6, 17: 10**9}  # digits of the entire number: what the date in it is multiplied with
# Counts from elsewhere that the rule of sizes would take for moments soon after 1970 or in 1974 and 1990.
_STRANGERS = (
    ("Julian days", 2_415_020, 2_488_128),
    ("ticks of .NET (100 ns since the year 1)", 621_000_000_000_000_000, 650_000_000_000_000_000),
    ("a Windows file time (100 ns since 1601)", 126_000_000_000_000_000, 142_000_000_000_000_000),
)


def is_number(text: pl.Series) -> pl.Series:
    """Which rows of text are plain numbers."""
    return text.str.contains(_DECIMAL) | text.str.contains(r"^[+-]?\d+(\.\d*)?[eE][+-]?\d+$")


def read_numbers(raw: pl.Series, name: str = "") -> Moments:
    """Reads a numeric column, or text of which each row is a number (or null).

    Whole numbers and decimals in text are exact to the nanosecond; a column of floating point to what it can hold.

    Args:
        name: of the column: under `date` the numbers of a spreadsheet are days since 1900.

    Raises:
        Unreadable: the numbers count something else.
    """
    whole, fraction = exact_parts(raw)
    _refuse_strangers(whole)
    if not bool((fraction.fill_null(0) != 0).any()):
        digits = _of_digits(whole)
        if digits is not None:
            return digits
    dated = _ONLY_A_DATE.fullmatch(name.strip("<> ")) is not None
    if (dated or name.lower() == "year") and whole.null_count() < len(whole) and bool(whole.is_between(1800, 2200).all()):
        parts = pl.DataFrame({"year": whole, "month": pl.repeat(1, len(whole), eager=True), "day": 1})
        return Moments(compose(parts).rename(whole.name), False, "years", dates=True)
    if dated and bool(whole.is_between(20_000, 80_000).all()):
        return _of_spreadsheet(whole, fraction)
    return _since_1970(whole, fraction)


def exact_parts(raw: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The whole part (towards minus infinity) as Int64, and the fraction in units of 1e-9, both exact where the type is."""
    if raw.dtype == pl.String:
        whole = raw.cast(pl.Int64, strict=False)
        if whole.null_count() == raw.null_count():
            return whole, pl.repeat(0, len(raw), eager=True, dtype=pl.Int64)
        parts = raw.str.extract_groups(_DECIMAL).struct.unnest()
        parts.columns = ["sign", "whole", "fraction"]
        minus = pl.col("sign") == "-"
        size = pl.col("whole").cast(pl.Int64, strict=False)
        # Digits after the ninth are cut off.
        nano = pl.col("fraction").fill_null("").str.slice(0, 9).str.pad_end(9, "0").cast(pl.Int64, strict=False)
        below = minus & (nano > 0)
        parts = parts.select(
            pl.when(below).then(-size - 1).when(minus).then(-size).otherwise(size).alias("whole"),
            pl.when(below).then(10**9 - nano).otherwise(nano).alias("fraction"),
        )
        powers = raw.is_not_null() & parts["whole"].is_null()
        if not bool(powers.any()):
            return parts["whole"], parts["fraction"]
        other = _split_float(raw.cast(pl.Float64, strict=False))
        both = [pl.coalesce(parts[n], o).alias(n) for n, o in zip(parts.columns, other, strict=True)]
        parts = pl.select(*both)
        return parts["whole"], parts["fraction"]
    if raw.dtype.is_decimal():
        return exact_parts(raw.cast(pl.String))
    if raw.dtype.is_float():
        return _split_float(raw.cast(pl.Float64))
    return raw.cast(pl.Int64, strict=False), pl.repeat(0, len(raw), eager=True, dtype=pl.Int64)


def _split_float(raw: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Near today's date a float64 of seconds resolves 2e-7 s, of nanoseconds 256: what is below a microsecond is noise."""
    x = pl.col("x")
    floor = x.floor()
    frame = pl.DataFrame({"x": pl.Series(raw).fill_nan(None)})
    size = x.abs()
    factor = pl.when(size < 1e11).then(1e9).when(size < 1e14).then(1e6).when(size < 1e17).then(1e3).otherwise(1.0)
    grain = pl.when(size * factor > 1e15).then(1000.0).otherwise(1.0) / factor
    rounded = ((x - floor) / grain).round() * grain
    whole = floor.cast(pl.Int64, strict=False)
    # Nanoseconds as floats: to the nearest microsecond.
    whole = pl.when(size >= 1e17).then((whole + 500) // 1000 * 1000).otherwise(whole)
    parts = frame.select(whole.alias("whole"), (rounded * 1e9).round().cast(pl.Int64, strict=False).alias("fraction"))
    return parts["whole"], parts["fraction"]


def _refuse_strangers(whole: pl.Series) -> None:
    low, high = whole.min(), whole.max()
    for what, first, last in _STRANGERS:
        if isinstance(low, int) and isinstance(high, int) and first <= low and high <= last:
            row = int(whole.is_not_null().arg_max() or 0)
            raise Unreadable(
                row,
                f"holds {whole[row]}: these look like {what}; write times as 2024-01-02 14:30:00 or as numbers since 1970",
            )


def _of_digits(whole: pl.Series) -> Moments | None:
    """20240102, 202401020930, 20240102093000 or with milliseconds, where every row is such a date."""
    present = whole.drop_nulls()
    lengths = {len(str(end)) for end in (present.min(), present.max())}
    if len(lengths) != 1 or not len(present):
        return None
    factor = _DIGITS.get(lengths.pop())
    if factor is None:
        return None
    x = pl.col("x")
    date, rest = x // factor, x % factor
    year, month, day = date // 10_000, date // 100 % 100, date % 100
    clock = rest * 100 if factor == 10**4 else rest if factor == 10**6 else rest // 1000 if factor == 10**9 else pl.lit(0)
    hour, minute, second = clock // 10_000, clock // 100 % 100, clock % 100
    fraction = rest % 1000 * 10**6 if factor == 10**9 else pl.lit(0)
    frame = whole.to_frame("x")
    # Four digits of a year; so no milliseconds of 1976 with a date in them by chance.
    fits = year.is_between(1800, 2200) & is_day(year, month, day) & is_clock(hour, minute, second)
    if not frame.select(fits.all()).item():
        return None
    parts = frame.select(
        year=year, month=month, day=day, hour=hour, minute=minute, second=second, fraction=fraction
    )  # fmt: skip
    return Moments(compose(parts).rename(whole.name), False, f"dates of {len(str(present[0]))} digits", dates=factor == 1)


def _of_spreadsheet(whole: pl.Series, fraction: pl.Series) -> Moments:
    # A float64 of days resolves about a microsecond: to the millisecond.
    milliseconds = ((fraction.cast(pl.Float64) * 0.0864).round()).cast(pl.Int64)
    stamps = (whole - 25_569) * DAY + milliseconds * 10**6
    dates = not bool((milliseconds != 0).any())
    return Moments(
        stamps.cast(NANOSECONDS).rename(whole.name), False, "days of a spreadsheet, counted from 1899-12-30", dates=dates
    )


def _since_1970(whole: pl.Series, fraction: pl.Series) -> Moments:
    frame = pl.DataFrame({"x": whole, "f": fraction})
    x, f = pl.col("x"), pl.col("f")
    size = x.abs()
    result: pl.Expr = pl.when(size >= 10**17).then(x)
    found, below = [], 0
    for unit, limit, factor in _UNITS:
        inside = (size >= below) & (size < limit)
        # The fraction counts units of 1e-9.
        stamp = x * factor + f // (10**9 // factor)
        result = pl.when(inside & (size <= _LIMIT // factor - 1)).then(stamp).otherwise(result)
        if frame.select(inside.any()).item():
            found.append(unit)
        below = limit
    if frame.select((size >= below).any()).item():
        found.append("nanoseconds")
    values = frame.select(result.cast(NANOSECONDS).alias(whole.name)).to_series()
    return Moments(values, True, f"{' and '.join(found) or 'numbers'} since 1970 (the unit follows from the size)")
