"""From raw columns to times and numbers, a whole column at a time.

Both functions answer with nulls where a value cannot be read and leave it to the caller to name the place: nothing
that is not on the short list of missing markers ever becomes NaN.
"""

from dataclasses import dataclass

import polars as pl

# Any other text is a value. Listed in the cases that files hold: to compare is far cheaper than to lower every field.
MISSING = [
    *("", "NA", "na", "Na", "NaN", "nan", "NAN", "Nan", "null", "NULL", "Null", "None", "none", "NONE"),
    *("N/A", "n/a", "NaT"),
]
UNDEFINED_PRICE = 9223372036854775807  # Databento's marker for a price that does not exist: the largest int64

_ISO = (
    r"^(\d{4})[-/](\d{1,2})[-/](\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9})\d*)?)?)?"
    r"\s*(?:Z|z|UTC|GMT|([+-]\d{2}(?::?\d{2})?))?$"
)
_NANOSECONDS = pl.Datetime("ns")
# Numbers since 1970 tell their unit by their size: below 1e11 seconds, and so on (1e11 s is the year 5138).
_UNITS = (("seconds", 10**11, 10**9), ("milliseconds", 10**14, 10**6), ("microseconds", 10**17, 10**3))
_LIMIT = 2**63 - 1


@dataclass(frozen=True)
class Numbers:
    """A column as Float64 (missing is NaN), the rows that hold something else, and the count of undefined prices."""

    values: pl.Series
    bad: pl.Series  # bool
    undefined: int

    @property
    def mostly_numeric(self) -> bool:
        """Whether at least half of what is there, and at least one value, reads as a number."""
        good, bad = int(self.values.is_not_nan().sum()), int(self.bad.sum())
        return good > 0 and good >= bad


def missing(raw: pl.Series) -> pl.Series:
    """Which values are absent: null, or one of the markers MISSING."""
    if raw.dtype == pl.String:
        return raw.is_null() | raw.is_in(MISSING).fill_null(True)
    return raw.is_null()


def parse_numbers(raw: pl.Series) -> Numbers:
    """Reads a column of text or of any numeric type. 1e400 reads as infinite; thousands separators do not read."""
    if not (raw.dtype == pl.String or raw.dtype.is_numeric() or raw.dtype == pl.Boolean or raw.dtype == pl.Null):
        return Numbers(pl.repeat(float("nan"), len(raw), eager=True, dtype=pl.Float64), raw.is_not_null(), 0)
    text = raw.dtype == pl.String
    undefined = pl.repeat(False, len(raw), eager=True)
    if text:
        undefined = (raw == str(UNDEFINED_PRICE)).fill_null(False)
    elif raw.dtype.is_integer():
        undefined = (raw == UNDEFINED_PRICE).fill_null(False)
    values = raw.cast(pl.Float64, strict=False)
    bad = values.is_null() & raw.is_not_null()
    if bool(bad.any()):
        bad = bad & ~missing(raw)
    values = values.fill_null(float("nan"))
    count = int(undefined.sum())
    if count:
        values = pl.select(pl.when(undefined).then(float("nan")).otherwise(values)).to_series()
    return Numbers(values.rename(raw.name), bad, count)


@dataclass(frozen=True)
class Times:
    """A column as Datetime in ns, UTC without a zone, null where it cannot be read, and how it was read."""

    values: pl.Series
    how: str


def parse_times(raw: pl.Series) -> Times:
    """Reads ISO 8601 text (with or without an offset), dates, 8-digit dates, numbers since 1970, temporal types."""
    name, dtype = raw.name, raw.dtype
    if dtype == pl.Date:
        return Times(raw.cast(_NANOSECONDS).rename(name), "dates")
    if isinstance(dtype, pl.Datetime):
        zone = dtype.time_zone
        if zone is not None:
            raw = raw.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return Times(raw.cast(_NANOSECONDS).rename(name), f"times in {zone}, converted to UTC" if zone else "times")
    if dtype.is_numeric():
        return _from_numbers(raw)
    if dtype != pl.String:
        return Times(pl.Series(name, [None] * len(raw), dtype=_NANOSECONDS), "nothing that is a time")
    text = pl.select(pl.when(~missing(raw)).then(raw).alias(name)).to_series()
    whole = text.cast(pl.Int64, strict=False)
    if whole.null_count() == text.null_count():
        return _from_numbers(whole)
    real = text.cast(pl.Float64, strict=False)
    if real.null_count() == text.null_count():
        return _from_numbers(real)
    iso = _from_iso(text)
    if int(real.is_not_null().sum()):
        mixed = pl.select(pl.coalesce(iso.values, _from_numbers(real).values).alias(name)).to_series()
        return Times(mixed, f"{iso.how} and numbers since 1970")
    return iso


def _from_iso(text: pl.Series) -> Times:
    """Text by one regular expression, so that rows of different precision may stand in one column."""
    parts = text.str.extract_groups(_ISO).struct.unnest()
    parts.columns = ["year", "month", "day", "hour", "minute", "second", "fraction", "offset"]
    number = pl.col("year", "month", "day", "hour", "minute", "second").cast(pl.Int32)
    parts = parts.with_columns(
        number,
        pl.col("fraction").str.pad_end(9, "0").cast(pl.Int64).fill_null(0),
        pl.col("offset").str.replace(":", ""),
    ).with_columns(pl.col("hour", "minute", "second").fill_null(0))
    year, month, day = pl.col("year"), pl.col("month"), pl.col("day")
    # The offset's sign belongs to its minutes too: -03:30 is -210 minutes.
    shift = pl.col("offset").str.slice(1, 2).cast(pl.Int64).fill_null(0) * 60
    shift = shift + pl.col("offset").str.slice(3, 2).replace("", "0").cast(pl.Int64).fill_null(0)
    shift = pl.when(pl.col("offset").str.starts_with("-")).then(-shift).otherwise(shift)
    # 1677-09-21 .. 2262-04-11 fit into 64 bits of nanoseconds; whole years inside are enough.
    sane = year.is_between(1678, 2261) & _is_day(year, month, day) & (pl.col("hour") <= 23)
    sane = sane & (pl.col("minute") <= 59) & (pl.col("second") <= 59)
    fields = [pl.when(sane).then(pl.col(c)) for c in ("year", "month", "day", "hour", "minute", "second")]
    stamp = pl.datetime(*fields, time_unit="ns") + pl.duration(nanoseconds="fraction", time_unit="ns")
    stamp = stamp - pl.duration(minutes=shift, time_unit="ns")
    values = parts.select(stamp.cast(_NANOSECONDS).alias(text.name)).to_series()
    zoned = int(parts["offset"].is_not_null().sum())
    how = "times with an offset, converted to UTC" if zoned else "times, taken as UTC where no zone is written"
    if text.str.len_bytes().max() in range(8, 11):
        how = "dates"
    return Times(values, how)


def _is_day(year: pl.Expr, month: pl.Expr, day: pl.Expr) -> pl.Expr:
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    february = pl.when(leap).then(29).otherwise(28)
    length = pl.when(month == 2).then(february).when(month.is_in([4, 6, 9, 11])).then(30).otherwise(31)
    return month.is_between(1, 12) & (day >= 1) & (day <= length)


def _from_numbers(raw: pl.Series) -> Times:
    name = raw.name
    real = raw.dtype.is_float() or raw.dtype.is_decimal()
    frame = pl.DataFrame({"x": raw.cast(pl.Float64) if real else raw.cast(pl.Int64, strict=False)})
    if not real:
        year, month, day = pl.col("x") // 10000, pl.col("x") // 100 % 100, pl.col("x") % 100
        if frame.select((year.is_between(1800, 2200) & _is_day(year, month, day)).all()).item() and len(raw):
            dates = frame.select(pl.datetime(year, month, day, time_unit="ns").cast(_NANOSECONDS).alias(name))
            return Times(dates.to_series(), "dates of eight digits")
    size = pl.col("x").abs()
    result: pl.Expr = pl.when(size >= 10**17).then(_scaled(1, real))
    found = []
    below = 0
    for unit, limit, factor in _UNITS:
        inside = (size >= below) & (size < limit)
        result = pl.when(inside & (size <= _LIMIT // factor)).then(_scaled(factor, real)).otherwise(result)
        if frame.select(inside.any()).item():
            found.append(unit)
        below = limit
    if frame.select((size >= below).any()).item():
        found.append("nanoseconds")
    values = frame.select(result.cast(_NANOSECONDS).alias(name)).to_series()
    return Times(values, f"{' and '.join(found) or 'numbers'} since 1970 (the unit follows from the size)")


def _scaled(factor: int, real: bool) -> pl.Expr:
    """x times factor as whole nanoseconds; the whole part exactly, the fraction as far as float64 carries it."""
    x = pl.col("x")
    if not real:
        return x.cast(pl.Int64) * factor
    whole = x.floor()
    # Near today's date a float64 of seconds resolves 2e-7 s: what is below a microsecond is noise.
    grain = pl.when(x.abs() * factor > 1e15).then(1000.0).otherwise(1.0)
    fraction = (((x - whole) * factor) / grain).round() * grain
    return whole.cast(pl.Int64, strict=False) * factor + fraction.cast(pl.Int64, strict=False)


def looks_like_epoch(raw: pl.Series) -> bool:
    """Whether every value is a number that, by its size, is a moment between 1973 and 2100."""
    numbers = parse_numbers(raw)
    if bool(numbers.bad.any()) or not bool(numbers.values.is_not_nan().any()):
        return False
    size = numbers.values.filter(numbers.values.is_not_nan())
    ranges = [(1e8 * 1000**k, 4.1e9 * 1000**k) for k in range(4)]
    return bool(all(any(low <= bound <= high for low, high in ranges) for bound in (size.min(), size.max())))
