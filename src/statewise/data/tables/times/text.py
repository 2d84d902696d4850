"""Dates and times as text: ISO 8601 and its relatives, numbers in the order of a country, names of months."""

import re

import numpy as np
import polars as pl
from jaxtyping import Int

from statewise.data.tables.times.calendar import CLOCK, DATE, compose
from statewise.data.tables.times.clock import ZONE, split_clock
from statewise.data.tables.times.days import DAY_FIRST, MONTH_FIRST, YEAR_FIRST, choose_order, in_order
from statewise.data.tables.times.moments import NANOSECONDS, Moments, Unreadable
from statewise.data.tables.times.uniform import read_uniform

# The time of day and the zone, or a zone behind the date.
_REST = r"(?:(?:[Tt_]|,?\s+|,)(\S.*)|([Zz]|[+-]\d{2}:\d{2}))?$"
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?\s+)?"
_MONTHS = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6, "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12,
    "mär": 3, "mrz": 3, "mai": 5, "okt": 10, "dez": 12,
}  # fmt: skip
_MONTH = rf"((?:{'|'.join(_MONTHS)})[a-z]*)\.?"
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
# Three groups, then the rest; which of the three is which stands beside it, None where the whole column says.
_FORMS: tuple[tuple[str, tuple[str, str, str] | None], ...] = (
    (rf"^(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){_REST}", YEAR_FIRST),
    (r"^(\d{4})(\d{2})(\d{2})(?:[Tt_ -]\s*(\S.*)|([Zz]))?$", YEAR_FIRST),
    (r"^(\d{4})[-/](\d{1,2})()()()$", YEAR_FIRST),
    (rf"^(\d{{1,2}})[-/.](\d{{1,2}})[-/.](\d{{4}}|\d{{2}}){_REST}", None),
    (rf"(?i)^{_WEEKDAY}{_DAY}[-/. ]*{_MONTH}[-/. ,]*(\d{{4}}|\d{{2}}){_REST}", DAY_FIRST),
    (rf"(?i)^{_WEEKDAY}{_MONTH}[-/. ]*{_DAY}[-/. ,]+(\d{{4}}|\d{{2}}){_REST}", MONTH_FIRST),
    (rf"(?i)^{_WEEKDAY}(\d{{4}})[-/. ]*{_MONTH}[-/. ]*{_DAY}{_REST}", YEAR_FIRST),
)
_KNOWN = ("utc", "gmt", "z")
_CLOCK_ONLY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?(\.\d+)?\s*([AaPp]\.?[Mm]\.?)?")


def read_text(text: pl.Series, day_first: bool | None = None) -> Moments:
    """Reads rows of any of these forms side by side; missing values are null in `text` already.

    Raises Unreadable where a date can be read in two ways, or a zone is no name of one.
    """
    quick = read_uniform(text, day_first)
    if quick is not None:
        return quick
    count = len(text)
    values = np.full(count, np.iinfo(np.int64).min)
    utc, dates = np.zeros(count, dtype=bool), True
    zones: pl.Series | None = None
    left, how = text.is_not_null().to_numpy().nonzero()[0], []
    for form, order in _FORMS:
        if not len(left):
            break
        found = text.gather(left).str.extract_groups(form).struct.unnest()
        found.columns = ["first", "second", "third", "after", "behind"]
        found = found.with_columns(pl.when(pl.col("after", "behind") != "").then(pl.col("after", "behind")))
        here = found["first"].is_not_null()
        rows, found = left[here.to_numpy()], found.filter(here)
        if not len(rows):
            continue
        days, said = _dates(found, text, rows, order, day_first)
        rest = found.select(pl.coalesce("after", "behind")).to_series()
        clock = _clock(rest)
        stamp, aware, named = _moments(days, clock, rest, text, rows)
        read = stamp.is_not_null().to_numpy()
        values[rows[read]] = stamp.drop_nulls().cast(pl.Int64).to_numpy()
        utc[rows] = aware
        if named is not None:
            zones = pl.Series([None] * count, dtype=pl.String) if zones is None else zones
            zones = zones.scatter(rows, named)
        dates = dates and not bool(clock["hour"].is_not_null().any())
        how += [one for one in said if one not in how]
        left = np.setdiff1d(left, rows[read], assume_unique=True)
    moments = pl.select(
        pl.when(pl.Series(values) != np.iinfo(np.int64).min).then(pl.Series(values)).cast(NANOSECONDS)
    ).to_series()
    present = text.is_not_null().to_numpy()
    every = None if count == 0 else True if utc[present].all() else None if utc.any() else False
    kinds = ("dates" if dates else "times") + (" with a zone" if every else ", some with a zone" if every is None else "")
    return Moments(moments.rename(text.name), utc if every is None else every, ", ".join([kinds, *how]), zones, dates)


def fault_of(text: str) -> str:
    """Why this is no time, as the end of a sentence."""
    if _CLOCK_ONLY.fullmatch(text):
        return "which is a time of day without a date: name both columns, as data.time=[date,time]"
    return "which is no time"


def _dates(
    found: pl.DataFrame,
    text: pl.Series,
    rows: Int[np.ndarray, " r"],
    order: tuple[str, str, str] | None,
    day_first: bool | None,
) -> tuple[pl.Series, list[str]]:
    number = [_number(found[name]) for name in ("first", "second", "third")]
    parts = pl.DataFrame(number).with_columns(pl.col("third").fill_null(1))
    if order is None:
        order = choose_order(parts, text.gather(rows), rows, day_first)
        said = ["year first" if order is YEAR_FIRST else "the day first" if order is DAY_FIRST else "the month first"]
    else:
        said = []
        if order is DAY_FIRST and bool((parts["third"] < 100).any()):
            order = _named_month(parts, text.gather(rows), rows)
    if bool((parts[("first", "second", "third")[order.index("year")]] < 100).any()):
        said.append("years of two digits read as 1969 to 2068")
    return in_order(parts, order), said


def _named_month(parts: pl.DataFrame, text: pl.Series, rows: Int[np.ndarray, " r"]) -> tuple[str, str, str]:
    """02-Jan-24 has the day first unless the column shows that 02 is the year."""
    swapped = parts.select(pl.col("second").alias("first"), pl.col("first").alias("second"), "third")
    back = in_order(parts, YEAR_FIRST)
    if back.has_nulls():
        return DAY_FIRST
    usual = in_order(swapped, MONTH_FIRST)
    if usual.has_nulls():
        return YEAR_FIRST
    # Both exist: the order of rows and the calendar tell, else it is written as nearly everybody writes it.
    ordered = [bool((days.is_sorted() or days.is_sorted(descending=True)) and days.n_unique() > 1) for days in (usual, back)]
    if ordered == [False, True]:
        raise Unreadable(
            int(rows[0]), f'holds "{text[0]}", a year of two digits that no row tells from the day: write four digits'
        )
    return DAY_FIRST


def _number(group: pl.Series) -> pl.Series:
    named = group.str.slice(0, 3).str.to_lowercase().replace_strict(_MONTHS, default=None, return_dtype=pl.Int64)
    return pl.select(pl.coalesce(group.cast(pl.Int64, strict=False), named).alias(group.name)).to_series()


def _clock(rest: pl.Series) -> pl.DataFrame:
    """The time of day, null where none is written, and the zone."""
    parts = split_clock(rest)
    if bool((parts["hour"].is_null() & rest.is_not_null()).any()):
        alone = rest.str.extract(f"^{ZONE}$")
        parts = parts.with_columns(pl.coalesce("zone", alone).alias("zone"))
    return parts


def _moments(
    days: pl.Series, clock: pl.DataFrame, rest: pl.Series, text: pl.Series, rows: Int[np.ndarray, " r"]
) -> tuple[pl.Series, np.ndarray, pl.Series | None]:
    """The moments, which of them are in UTC, and the names of zones that the others are in."""
    zone = clock["zone"]
    understood = rest.is_null() | clock["hour"].is_not_null() | zone.is_not_null()
    calendar = pl.DataFrame({"day": days}).select(
        pl.col("day").dt.year().alias("year"), pl.col("day").dt.month().alias("month"), pl.col("day").dt.day().alias("day")
    )  # fmt: skip
    parts = pl.concat([calendar, clock.select(pl.col(*CLOCK).fill_null(0))], how="horizontal").select(*DATE, *CLOCK)
    stamp = compose(parts)
    stamp = pl.select(pl.when(understood).then(stamp)).to_series()
    if zone.null_count() == len(zone):
        return stamp, np.zeros(len(rows), dtype=bool), None
    offset = zone.str.extract_groups(r"^(?:UTC|GMT)?\s?([+-])(\d{1,2}):?(\d{2})?$").struct.unnest()
    offset.columns = ["sign", "hours", "minutes"]
    # The sign belongs to the minutes too: -03:30 is -210 minutes.
    minutes = pl.col("hours").cast(pl.Int64) * 60 + pl.col("minutes").cast(pl.Int64).fill_null(0)
    shift = offset.select(pl.when(pl.col("sign") == "-").then(-minutes).otherwise(minutes)).to_series()
    known = zone.str.to_lowercase().is_in(_KNOWN)
    named = pl.select(pl.when(shift.is_null() & ~known).then(zone)).to_series()
    _refuse_abbreviations(named, text, rows)
    stamp = pl.select((stamp.cast(pl.Int64) - shift.fill_null(0) * 60 * 10**9).cast(NANOSECONDS)).to_series()
    aware = (zone.is_not_null() & named.is_null()).to_numpy()
    return stamp, aware, named if named.null_count() < len(named) else None


def _refuse_abbreviations(named: pl.Series, text: pl.Series, rows: Int[np.ndarray, " r"]) -> None:
    short = named.str.contains(r"^[A-Z]{2,5}$").fill_null(False)
    if bool(short.any()):
        row = int(short.arg_true()[0])
        raise Unreadable(
            int(rows[row]),
            f'holds "{text[int(rows[row])]}": {named[row]} is short for several zones; write an offset such as -05:00, '
            "or leave it out and set data.timezone, e.g. America/New_York",
        )
