"""Several columns that make a time together: date and clock, or year, month, day, hour, minute, second."""

import re
from collections.abc import Mapping, Sequence

import polars as pl

from statewise.data.tables.numbers import absent
from statewise.data.tables.times.calendar import compose
from statewise.data.tables.times.clock import read_clock
from statewise.data.tables.times.column import read_times
from statewise.data.tables.times.moments import DAY, NANOSECONDS, Moments, Unreadable
from statewise.data.tables.times.numbers import exact_parts, read_numbers

_NAMES = {
    "year": ("year", "yr", "yyyy", "yy", "jahr"),
    "month": ("month", "mo", "mon", "mnth", "mm", "monat"),
    "day": ("day", "dd", "dom", "mday", "day_of_month", "tag"),
    "doy": ("doy", "day_of_year", "yday", "julian_day"),
    "hour": ("hour", "hr", "hh", "hours", "hour_of_day", "stunde"),
    "minute": ("minute", "min", "minutes", "mi"),
    "second": ("second", "sec", "seconds", "ss"),
}  # fmt: skip
_RANGES = {
    "year": (1678, 2261), "month": (1, 12), "day": (1, 31), "doy": (1, 366),
    "hour": (0, 24), "minute": (0, 59), "second": (0, 60),
}  # fmt: skip
_DATE_WORDS = re.compile(r"(^|_)(date|datum|dates|day|dteday|dt|yyyymmdd)($|_)")
_CLOCK = r"^\d{1,2}:\d{2}(:\d{2}([.,:]\d{1,9})?)?\s*([AaPp]\.?[Mm]\.?)?$|^\d{1,2}\s*[AaPp]\.?[Mm]\.?$"
_DOTTED_CLOCK = r"^\d{1,2}\.\d{2}\.\d{2}([.,]\d{1,9})?$"
_CLOCK_WORDS = re.compile(r"(^|_)(time|clock|timestamp|hour|hhmm|hhmmss|tod|uhrzeit|zeit|tm)($|_)")


def plain_name(name: str) -> str:
    """In lower case, with one underscore between words: `<DATE>` is date, `Open time` open_time."""
    return re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")


def content(sample: pl.Series, day_first: bool | None = None) -> str | None:
    """What values that are there hold: `full` times, a `date`, a `clock`, small `numbers`, or None.

    Numbers since 1970 are full from 1973 on.
    """
    if not len(sample):
        return None
    if sample.dtype == pl.Time or isinstance(sample.dtype, pl.Duration):
        return "clock"
    if sample.dtype == pl.String and 2 * int(_clock_text(sample).sum()) >= len(sample):
        return "clock"
    try:
        moments = read_times(sample, day_first)
    except Unreadable:
        # Times that need a word of the user are times.
        text = sample.dtype == pl.String
        return ("full" if bool(sample.str.contains(":").any()) else "date") if text else "numbers"
    if 2 * moments.values.null_count() > len(sample):
        return None
    since = moments.values.cast(pl.Int64).drop_nulls()
    if moments.dates or (moments.utc is False and bool((since % DAY == 0).all()) and sample.dtype != pl.String):
        return "date"
    if moments.utc is True and (sample.dtype.is_numeric() or _is_digits(sample)):
        small = sample.cast(pl.Float64, strict=False).abs().min()
        return "full" if isinstance(small, float) and small >= 1e8 else "numbers"
    return "full"


def _is_digits(sample: pl.Series) -> bool:
    return sample.dtype == pl.String and bool(sample.str.contains(r"^[-+\d.eE]+$").all())


def _clock_text(sample: pl.Series) -> pl.Series:
    name = plain_name(sample.name)
    # 02.01.24 is a date or a clock, as the name says.
    dated = _DATE_WORDS.search(name) is not None and _CLOCK_WORDS.search(name) is None
    return sample.str.contains(_CLOCK if dated else rf"{_CLOCK}|{_DOTTED_CLOCK}")


def find_date_and_clock(samples: Mapping[str, pl.Series], kinds: Mapping[str, str | None]) -> dict[str, str] | None:
    """The columns of dates and of times of day that belong together, by name and content, as part -> name."""
    dates = [name for name in samples if kinds[name] == "date" and _DATE_WORDS.search(plain_name(name))]
    dates += [name for name in samples if kinds[name] == "date" and plain_name(name) in ("timestamp", "time") and not dates]
    if not dates:
        return None
    parts = _parts(samples)
    for name, sample in samples.items():
        named = _CLOCK_WORDS.search(plain_name(name)) is not None
        if name not in dates and named and (kinds[name] == "clock" or (_is_clock_number(sample) and parts.get("hour") != name)):
            return {"date": dates[0], "clock": name}
    if "hour" in parts:
        return {"date": dates[0], **{part: parts[part] for part in ("hour", "minute", "second") if part in parts}}
    return None


def find_calendar(samples: Mapping[str, pl.Series]) -> dict[str, str] | None:
    """Year, month and day (or day of the year) and what there is of hour, minute and second, as part -> name."""
    parts = _parts(samples)
    if "year" not in parts:
        return None
    date = ("year", "doy") if "doy" in parts and "day" not in parts else ("year", "month", "day")
    if any(part not in parts for part in date[1:]):
        return None
    clock: list[str] = []
    for part in ("hour", "minute", "second"):
        if part not in parts:
            break
        clock.append(part)
    return {part: parts[part] for part in (*date, *clock)}


def assign(names: Sequence[str], samples: Mapping[str, pl.Series], kinds: Mapping[str, str | None]) -> dict[str, str]:
    """Which part each of the columns named in data.time is. Raises ValueError where that cannot be seen."""
    calendar = _parts({name: samples[name] for name in names})
    of_calendar = {name: part for part, name in calendar.items()}
    found: dict[str, str] = {}
    for name in names:
        kind = kinds[name]
        part = of_calendar.get(name) or {"clock": "clock", "date": "date"}.get(kind or "")
        if part is None and _is_clock_number(samples[name]):
            part = "clock"
        if part is None or part in found:
            what = (
                "holds full times"
                if kind == "full"
                else f"is a second {part}"
                if part
                else "is no part of a time that is known"
            )
            raise ValueError(
                f'data.time: "{name}" {what}; name one column of times, a date and a clock, or year, month, day, hour, ...'
            )
        found[part] = name
    if "date" not in found and not ({"year", "month"} <= set(found) or {"year", "doy"} <= set(found)):
        raise ValueError(f"data.time={list(names)} has no date: name the column of dates too, or year, month and day")
    return found


def _parts(samples: Mapping[str, pl.Series]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, sample in samples.items():
        plain = plain_name(name)
        part = next((part for part, names in _NAMES.items() if plain in names), None)
        if name == "mm" and "MM" in samples:
            part = "minute"
        if part is not None and part not in found and _fits(sample, part):
            found[part] = name
    return found


def _fits(sample: pl.Series, part: str) -> bool:
    if not len(sample) or not (sample.dtype == pl.String or sample.dtype.is_numeric()):
        return False
    values = sample.cast(pl.Float64, strict=False)
    low, high = _RANGES[part]
    inside = values.is_between(low, high)
    whole = values == values.floor() if part != "second" else inside
    return bool((inside & whole).fill_null(False).all())


def _is_clock_number(sample: pl.Series) -> bool:
    """Whole numbers such as 930 or 93000, or text of such digits."""
    if not len(sample) or (sample.dtype == pl.String and not bool(sample.str.contains(r"^\d{1,6}$").all())):
        return False
    if not (sample.dtype == pl.String or sample.dtype.is_numeric()):
        return False
    try:
        clock = read_clock(sample)
    except Unreadable:
        return True
    return clock is not None and not clock.has_nulls()


def combine(parts: Mapping[str, pl.Series], day_first: bool | None, null_values: tuple[str, ...] = ()) -> Moments:
    """The moments that columns make together, null where any of them holds nothing that fits.

    Raises Unreadable as `read_times` does.
    """
    parts = {
        part: pl.select(pl.when(~absent(column, null_values)).then(column).alias(column.name)).to_series()
        for part, column in parts.items()
    }
    how = f"made of {', '.join(column.name for column in parts.values())}"
    numbers = {part: exact_parts(column) for part, column in parts.items() if part not in ("date", "clock")}
    whole = {part: pl.select(pl.when(fraction == 0).then(number)).to_series() for part, (number, fraction) in numbers.items()}
    if "second" in numbers:
        whole["second"], whole["fraction"] = numbers["second"]
    if "date" in parts:
        date = read_numbers(parts["date"]) if parts["date"].dtype.is_numeric() else read_times(parts["date"], day_first)
        midnight = date.values.cast(pl.Int64)
        if bool((midnight % DAY != 0).any()):
            raise Unreadable(None, f'has a time of day in "{parts["date"].name}" already: name one of the columns in data.time')
        how = f"{how} ({date.how})"
    else:
        month, day = (whole.get(part, pl.repeat(1, len(whole["year"]), eager=True)) for part in ("month", "day"))
        midnight = compose(pl.DataFrame({"year": whole["year"], "month": month, "day": day})).cast(pl.Int64)
        if "doy" in whole:
            inside = whole["doy"].is_between(1, 366)
            midnight = pl.select(pl.when(inside).then(midnight + (whole["doy"] - 1) * DAY)).to_series()
    if "clock" in parts:
        since = read_clock(parts["clock"])
        if since is None:
            raise Unreadable(None, f'needs times of day such as 09:30:00 in "{parts["clock"].name}"')
    else:
        fields = {part: whole[part] for part in ("hour", "minute", "second", "fraction") if part in whole}
        first = pl.DataFrame({"year": pl.repeat(1970, len(midnight), eager=True), "month": 1, "day": 1})
        since = compose(first.with_columns(**fields)).cast(pl.Int64)
    stamps = (midnight + since).cast(NANOSECONDS)
    dates = "clock" not in parts and "hour" not in parts
    return Moments(stamps, False, how, dates=dates)
