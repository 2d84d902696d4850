"""Times of day, as text of any usual form or as whole numbers such as 93000."""

import polars as pl

from statewise.data.tables.times.calendar import CLOCK, is_clock
from statewise.data.tables.times.moments import Unreadable

# hour, minute, second, fraction, AM or PM
_WITH_COLONS = r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,:](\d{1,9})\d*)?)?\s*(?:([AaPp])\.?[Mm]\.?)?"
_WITH_DOTS = r"(\d{1,2})\.(\d{2})\.(\d{2})(?:[.,](\d{1,9})\d*)?()"
_OF_DIGITS = r"(\d{2})(\d{2})(?:(\d{2})(?:[.,]?(\d{1,9})\d*)?)?()"
_ON_THE_HOUR = r"(\d{1,2})()()()\s*([AaPp])\.?[Mm]\.?"
FORMS = (_WITH_COLONS, _WITH_DOTS, _OF_DIGITS, _ON_THE_HOUR)
_OFFSET = r"(?:UTC|GMT)?\s?[+-]\d{1,2}(?::?\d{2})?"
ZONE = rf"({_OFFSET}|Z|z|(?i:UTC|GMT)|[A-Z]{{2,5}}|[A-Z][A-Za-z]+(?:/[A-Za-z0-9_+-]+)+)"


def split_clock(text: pl.Series) -> pl.DataFrame:
    """Columns of whole numbers as CLOCK, and `zone` as it is written; all null where the text is no time of day."""
    parts = pl.DataFrame(
        {
            **{name: pl.Series([None] * len(text), dtype=pl.Int64) for name in CLOCK},
            "zone": pl.Series([None] * len(text), dtype=pl.String),
        }
    )
    for form in FORMS:
        found = text.str.extract_groups(rf"^{form}(?:\s*{ZONE})?$").struct.unnest()
        found.columns = [*CLOCK, "half", "zone"]
        found = found.select(
            _hour_of_day(pl.col("hour").cast(pl.Int64, strict=False), pl.col("half").str.to_lowercase()).alias("hour"),
            *(pl.col(name).cast(pl.Int64, strict=False).fill_null(0) for name in ("minute", "second")),
            pl.col("fraction").str.pad_end(9, "0").cast(pl.Int64, strict=False).fill_null(0),
            "zone",
        )
        found = found.select(pl.when(pl.col("hour").is_not_null()).then(pl.all()))
        parts = parts.select(pl.coalesce(pl.col(name), found[name]).alias(name) for name in parts.columns)
        if parts["hour"].null_count() == text.null_count():
            break
    return parts


def _hour_of_day(hour: pl.Expr, half: pl.Expr) -> pl.Expr:
    of_twelve = pl.when(hour.is_between(1, 12)).then(hour % 12 + pl.when(half == "p").then(12).otherwise(0))
    return pl.when(half.is_in(["a", "p"]).fill_null(False)).then(of_twelve).otherwise(hour)


def read_clock(column: pl.Series) -> pl.Series | None:
    """Nanoseconds since midnight as Int64, null where a value is none; None where the column holds something else.

    Raises Unreadable where whole numbers may be hours as well as minutes.
    """
    if column.dtype == pl.Time:
        return column.cast(pl.Int64)
    if isinstance(column.dtype, pl.Duration):
        spent = column.cast(pl.Duration("ns")).cast(pl.Int64)
        return pl.select(pl.when((spent >= 0) & (spent <= 86_400 * 10**9)).then(spent)).to_series()
    if column.dtype == pl.String:
        # Digits alone tell by their number whether seconds are meant; without leading zeros they are numbers.
        digits = column.str.len_chars().filter(column.str.contains(r"^\d+$"))
        if len(digits) and len(digits) == column.len() - column.null_count() and digits.min() not in (4, 6):
            return read_clock(column.cast(pl.Int64, strict=False))
        parts = split_clock(column)
        hour, minute, second, fraction = (pl.col(name) for name in CLOCK)
        since = ((hour * 60 + minute) * 60 + second) * 10**9 + fraction
        fits = is_clock(hour, minute, second) & pl.col("zone").is_null()
        return parts.select(pl.when(fits).then(since)).to_series()
    if column.dtype.is_float() or column.dtype.is_decimal():
        whole = column.cast(pl.Int64, strict=False)
        if not bool((whole.cast(pl.Float64) == column.cast(pl.Float64)).all()):
            return None
        column = whole
    return _of_whole_numbers(column.cast(pl.Int64, strict=False)) if column.dtype.is_integer() else None


def _of_whole_numbers(column: pl.Series) -> pl.Series:
    most = int(column.drop_nulls().to_numpy().max(initial=0))
    if most <= 24 and column.n_unique() > 1:
        raise Unreadable(None, "holds numbers that may be hours or minutes: call the column hour, or write 9:30")
    x = pl.Series("x", column).to_frame()
    number = pl.col("x")
    if most > 2400:
        hour, minute, second = number // 10_000, number // 100 % 100, number % 100
    else:
        hour, minute, second = number // 100, number % 100, pl.lit(0)
    since = ((hour * 60 + minute) * 60 + second) * 10**9
    return x.select(pl.when((number >= 0) & is_clock(hour, minute, second)).then(since)).to_series()
