"""What each column of a file is for: time, series, number, or left out and why.

Names decide first (vendors agree on a few), contents where no name says anything; of the contents the first rows are
looked at. A role that the user names is taken as it is: then a value that does not fit is an error and not a reason to
look elsewhere.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from statewise.choices import did_you_mean
from statewise.data.files.formats.names import is_unnamed
from statewise.data.files.reading import AS_IT_IS, Reading
from statewise.data.tables.heads import Heads
from statewise.data.tables.notation import looks_written, said, seen
from statewise.data.tables.numbers import UNDEFINED_PRICE, parse_numbers
from statewise.data.tables.times.pieces import assign, content, find_calendar, find_date_and_clock, plain_name

# In order of preference: the start of a bar before a moment of receipt.
TIME_NAMES = (
    "ts_event", "window_start", "open_time", "timestamp", "datetime", "date_time", "time", "date", "ts", "ds",
    "start_time", "event_time", "time_utc", "timestamp_utc", "utc", "utc_time", "gmt_time", "local_time", "trade_date",
    "trading_date", "period_start", "begin", "unix", "unix_timestamp", "epoch",
)  # fmt: skip
SERIES_NAMES = (
    "symbol", "ticker", "series", "series_id", "unique_id", "instrument", "instrument_id", "item_id", "asset",
    "asset_id", "contract", "pair", "isin", "ric", "secid", "permno", "sensor_id", "station", "station_id", "id",
)  # fmt: skip
_TIME_WORDS = re.compile(r"(^|_)(ts|time|date|datetime|timestamp|epoch|unix)($|_)|timestamp|datetime")
IDENTIFIERS = ("rtype", "publisher_id")  # numbers that count nothing
_FIXED_POINT = re.compile(r"open|high|low|close|price|(bid|ask)_px_\d\d")


@dataclass(frozen=True)
class TimeColumns:
    """The parts of the time (`time`, or as in times/pieces.py) -> their columns, what they are called together, and why."""

    parts: Mapping[str, str]
    why: str
    note: str | None = None

    @property
    def name(self) -> str:
        return " ".join(self.parts.values())


def choose_time(heads: Heads, reading: Reading) -> TimeColumns | None:
    """The columns of times; None where there are none.

    Raises ValueError where data.time names no such columns, or there are times of day without a date.
    """
    if reading.time is not None:
        return _named_time(heads, reading)
    kinds = {name: content(heads[name], reading.day_first) if _may_be_time(name, heads[name]) else None for name in heads.names}
    by_name = {plain_name(name): name for name in reversed(heads.names)}
    candidates = [by_name[name] for name in TIME_NAMES if name in by_name]
    for name in candidates:
        if kinds[name] == "full":
            return TimeColumns({"time": name}, "by its name")
    for found in (find_date_and_clock(heads.samples, kinds), find_calendar(heads.samples)):
        if found is not None:
            names = ", ".join(f'"{name}"' for name in found.values())
            return TimeColumns(found, "by name and contents", f"the time is made of {names}")
    for kind in ("date", "numbers"):
        for name in candidates:
            if kinds[name] == kind:
                return TimeColumns({"time": name}, "by its name")
    for name in heads.names:
        if kinds[name] not in ("full", "date"):
            continue
        column, worded = heads[name], _TIME_WORDS.search(plain_name(name)) is not None
        # Numbers are times only where the name hints at it as well: a volume may have the size of an epoch.
        if not parse_numbers(column).mostly_numeric:
            return TimeColumns({"time": name}, "by its contents", f'time column found by its contents: "{name}"')
        if worded:
            return TimeColumns({"time": name}, "by name and contents", f'time column found by its name and contents: "{name}"')
    _refuse_unreadable(heads, candidates, kinds)
    return None


def _refuse_unreadable(heads: Heads, candidates: Sequence[str], kinds: Mapping[str, str | None]) -> None:
    """A column that is called a time and cannot be read as one is not passed over where there is no other."""
    clock = next((name for name in candidates if kinds[name] == "clock"), None)
    if clock is not None:
        raise ValueError(
            f'data.path: {heads.raw.name}: "{clock}" holds times of day and no column holds dates: '
            "add a column of dates, or name it in data.time=[date,time]"
        )
    for name in candidates:
        sample = heads[name]
        if kinds[name] is None and sample.dtype == pl.String and len(sample) and bool(sample.str.contains(r"\d").all()):
            raise ValueError(
                f'data.path: {heads.raw.name}: "{name}" holds "{sample[0]}", which is no time that can be read; '
                "write times as 2024-01-02 14:30:00 or as numbers since 1970, or rename the column if it holds no times"
            )


def _named_time(heads: Heads, reading: Reading) -> TimeColumns:
    names = [reading.time] if isinstance(reading.time, str) else list(reading.time or ())
    for name in names:
        check_column(heads.names, heads.raw.name, name, "data.time")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"data.time={names} must name one column, or several different ones")
    if len(names) == 1:
        return TimeColumns({"time": names[0]}, "named in data.time")
    samples = {name: heads[name] for name in names}
    parts = assign(names, samples, {name: content(heads[name], reading.day_first) for name in names})
    return TimeColumns(parts, "named in data.time")


def _may_be_time(name: str, sample: pl.Series) -> bool:
    """Cheap to say of most columns: floating point under a name that says nothing of time."""
    plain = plain_name(name)
    return not sample.dtype.is_float() or plain in TIME_NAMES or _TIME_WORDS.search(plain) is not None


def choose_series(heads: Heads, named: str | None, time: TimeColumns | None) -> tuple[str | None, str]:
    """The column that tells several series apart, if there is one, and why."""
    of_time = () if time is None else tuple(time.parts.values())
    if named is not None:
        check_column(heads.names, heads.raw.name, named, "data.series")
        if named in of_time:
            raise ValueError(f'data.series: "{named}" is the time column; name another one, or none')
        return named, "named in data.series"
    by_name = {plain_name(name): name for name in reversed(heads.names)}
    candidates = [by_name[name] for name in SERIES_NAMES if name in by_name and by_name[name] not in of_time]
    found = [name for name in candidates if _tells_series_apart(heads, name)]
    for name in found:
        # A vendor may know the number of an instrument and not its symbol.
        if len(found) == 1 or not heads.raw.column(name).has_nulls():
            return name, "by its name"
    return (found[0], "by its name") if found else (None, "")


@dataclass(frozen=True)
class NumberColumns:
    """The numeric columns in the order of the file, and why the others are left out."""

    names: tuple[str, ...]
    left_out: Mapping[str, str]

    @property
    def notes(self) -> list[str]:
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            if reason != NOT_ASKED:
                reasons.setdefault(reason, []).append(name)
        return [f"left out, {reason}: {', '.join(names)}" for reason, names in reasons.items()]


NOT_ASKED = "not asked for"


def choose_numbers(
    heads: Heads, named: Sequence[str] | None, time: TimeColumns | None, series: str | None, reading: Reading = AS_IT_IS
) -> NumberColumns:
    """The numeric columns.

    `named` columns must be numeric; without names a column is numeric where at least half of its first values are, so
    that a few odd cells in a column of numbers stop with an error later instead of making the column text.
    """
    of_time = () if time is None else tuple(time.parts.values())
    others = [name for name in heads.names if name not in of_time and name != series]
    if named is not None:
        for name in named:
            check_column(heads.names, heads.raw.name, name, "data.features or data.targets")
            if name not in others:
                role = "series" if name == series else "time"
                raise ValueError(f'data.features or data.targets: "{name}" is the {role} column and no input')
            if not len(heads[name]):
                raise ValueError(f'data.path: {heads.raw.name}: column "{name}" holds no value at all')
        kept = tuple(name for name in heads.names if name in set(named))
        return NumberColumns(kept, {name: NOT_ASKED for name in others if name not in kept})
    left_out = {name: reason for name in others if (reason := _reason(heads, name, time, series, reading)) is not None}
    found = NumberColumns(tuple(name for name in others if name not in left_out), left_out)
    if not found.names:
        why = "; ".join(found.notes) or "only a time column"
        raise ValueError(f"data.path: {heads.raw.name} has no numeric column; {why}")
    return found


def _reason(heads: Heads, name: str, time: TimeColumns | None, series: str | None, reading: Reading) -> str | None:
    """Why a column is no number that a model may see."""
    sample = heads[name]
    if is_unnamed(name):
        return "has no name in the header"
    if not len(sample):
        return "empty"
    # A price such as 4,742.83 must stop with what to do about it, and not be left out.
    parsed = parse_numbers(sample, seen(sample, said(reading)))
    if bool(parsed.bad.any()) and not parsed.mostly_numeric and not looks_written(sample):
        return "not numeric"
    if series is not None and plain_name(name) in SERIES_NAMES and _is_whole(sample):
        return f'an identifier beside "{series}"'
    if plain_name(name) in IDENTIFIERS and _is_whole(sample):
        return "an identifier of the vendor"
    if (
        time is not None
        and _TIME_WORDS.search(plain_name(name))
        and content(sample, reading.day_first) == "full"
        and _is_recent(sample)
    ):
        return f'a time beside "{time.name}"'
    return None


def check_column(names: Sequence[str], file: str, name: str, key: str) -> None:
    """Raises ValueError with the nearest name where the file has no such column."""
    if name not in names:
        listed = ", ".join(names[:30]) + (", ..." if len(names) > 30 else "")
        raise ValueError(f'{key}: {file} has no column "{name}"{did_you_mean(name, names)}; it has {listed}')


def counts_billionths(names: Sequence[str], name: str, sample: pl.Series) -> bool:
    """Whether a column counts 1e-9 of a price: large whole numbers in Databento's own columns."""
    if "ts_event" not in names or not {"rtype", "publisher_id"} & set(names) or _FIXED_POINT.fullmatch(name) is None:
        return False
    whole = sample.cast(pl.Int64, strict=False) if sample.dtype == pl.String else sample
    if not whole.dtype.is_integer() or whole.has_nulls():
        return False
    largest = whole.filter(whole != UNDEFINED_PRICE).cast(pl.Int64, strict=False).abs().max()
    # A price of a thousandth; whole numbers below are no prices in this unit.
    return largest is None or (isinstance(largest, int) and largest >= 10**6)


def _tells_series_apart(heads: Heads, name: str) -> bool:
    """Text that is no number, or whole numbers; a value of its own in every row numbers the rows and no series."""
    sample = heads[name]
    if not len(sample) or sample.dtype.is_float() or sample.dtype.is_nested():
        return False
    numeric = parse_numbers(sample).mostly_numeric
    if numeric and not _is_whole(sample):
        return False
    if not numeric and plain_name(name) != "id":
        return True
    column = heads.raw.column(name)
    return column.n_unique() < len(column) or len(column) == 1


def _is_whole(sample: pl.Series) -> bool:
    if sample.dtype.is_float():
        return False
    values = parse_numbers(sample).values
    values = values.filter(values.is_not_nan())
    return bool((values == values.floor()).all())


def _is_recent(sample: pl.Series) -> bool:
    """Whether numbers are, by their size, moments between 1973 and 2100."""
    values = parse_numbers(sample).values.abs()
    ranges = [(1e8 * 1000**k, 4.1e9 * 1000**k) for k in range(4)]
    return bool(all(any(low <= bound <= high for low, high in ranges) for bound in (values.min(), values.max())))
