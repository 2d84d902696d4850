"""What each column of a file is for: time, series, number, or left out and why.

Names decide first (vendors agree on a few), contents where no name says anything. A role that the user names is taken
as it is: then a value that does not fit is an error and not a reason to look elsewhere.
"""

import re
from collections.abc import Sequence

import polars as pl

from statewise.choices import did_you_mean
from statewise.data.formats.names import is_unnamed
from statewise.data.parsing import Numbers, looks_like_epoch, missing, parse_numbers, parse_times
from statewise.data.raw import Raw

# In order of preference: the start of a bar before a moment of receipt, full times before dates.
TIME_NAMES = (
    "ts_event", "window_start", "open_time", "timestamp", "datetime", "date_time", "time", "date", "ts", "ds",
    "start_time", "event_time", "time_utc", "timestamp_utc", "utc", "local_time",
)  # fmt: skip
SERIES_NAMES = (
    "symbol", "ticker", "series", "series_id", "unique_id", "instrument", "instrument_id", "item_id", "asset",
    "asset_id", "sensor_id", "station", "station_id", "id",
)  # fmt: skip
_TIME_WORDS = re.compile(r"(^|[_ ])(ts|time|date|datetime|timestamp|epoch)($|[_ ])|timestamp|datetime")
_SAMPLE = 200  # values looked at to see whether a column holds times at all


def choose_time(raw: Raw, named: str | None) -> tuple[str | None, list[str]]:
    """The time column, and sentences for the log. `named` is taken unseen; None means find it."""
    if named is not None:
        check_column(raw, named, "data.time")
        return named, []
    by_name = {name.lower(): name for name in reversed(raw.names)}
    candidates = [by_name[name] for name in TIME_NAMES if name in by_name]
    for name in candidates:
        if _holds_times(raw.column(name)):
            return name, []
    for name in raw.names:
        column = raw.column(name)
        if column.dtype.is_temporal() or column.dtype == pl.String:
            worded = _TIME_WORDS.search(name.lower()) is not None
            # Numbers are times only where the name hints at it as well: a volume may have the size of an epoch.
            if _holds_times(column) and (worded or not parse_numbers(_sample(column)).mostly_numeric):
                return name, [f'time column found by its contents: "{name}"']
        if _is_worded_epoch(name, column):
            return name, [f'time column found by its name and contents: "{name}"']
    return None, ["no time column found: rows are taken in the order of the file"]


def choose_series(raw: Raw, named: str | None, time: str | None) -> tuple[str | None, list[str]]:
    """The column that tells several series apart, if there is one, and sentences for the log."""
    if named is not None:
        check_column(raw, named, "data.series")
        if named == time:
            raise ValueError(f'data.series: "{named}" is the time column; name another one, or none')
        return named, []
    by_name = {name.lower(): name for name in reversed(raw.names)}
    for name in (by_name[name] for name in SERIES_NAMES if name in by_name):
        if name != time and _tells_series_apart(raw.column(name)):
            return name, []
    return None, []


def choose_numbers(raw: Raw, named: Sequence[str] | None, time: str | None, series: str | None) -> tuple[list[str], list[str]]:
    """The numeric columns in file order, and sentences about those left out.

    `named` columns must be numeric; without names a column is numeric where at least half of its values are, so that a
    few odd cells in a column of numbers stop with an error later instead of making the column text.
    """
    if named is not None:
        for name in named:
            check_column(raw, name, "data.features or data.targets")
            if name in (time, series):
                role = "time" if name == time else "series"
                raise ValueError(f'data.features or data.targets: "{name}" is the {role} column and no input')
        for name in set(named):
            parsed = parse_numbers(raw.column(name))
            if not bool(parsed.values.is_not_nan().any()) and not bool(parsed.bad.any()):
                raise ValueError(f'data.path: {raw.name}: column "{name}" holds no value at all')
        return [name for name in raw.names if name in set(named)], []
    numbers: list[str] = []
    left_out: dict[str, list[str]] = {}
    for name in raw.names:
        if name in (time, series):
            continue
        column = raw.column(name)
        parsed = parse_numbers(column)
        if is_unnamed(name):
            left_out.setdefault("has no name in the header", []).append(name)
        elif bool(missing(column).all()):
            left_out.setdefault("empty", []).append(name)
        elif column.dtype == pl.Boolean or not parsed.mostly_numeric:
            left_out.setdefault("not numeric", []).append(name)
        elif series is not None and name.lower() in SERIES_NAMES and not column.dtype.is_float() and _whole(parsed):
            left_out.setdefault(f'an identifier beside "{series}"', []).append(name)
        elif time is not None and _is_worded_epoch(name, column):
            left_out.setdefault(f'a time beside "{time}"', []).append(name)
        else:
            numbers.append(name)
    notes = [f"left out, {reason}: {', '.join(names)}" for reason, names in left_out.items()]
    if not numbers:
        raise ValueError(f"data.path: {raw.name} has no numeric column; {'; '.join(notes) or 'only a time column'}")
    return numbers, notes


def check_column(raw: Raw, name: str, key: str) -> None:
    """Raises ValueError with the nearest name where the file has no such column."""
    names = raw.names
    if name not in names:
        raise ValueError(f'{key}: {raw.name} has no column "{name}"{did_you_mean(name, names)}; it has {_listed(names)}')


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _sample(column: pl.Series) -> pl.Series:
    return column.filter(~missing(column)).head(_SAMPLE)


def _holds_times(column: pl.Series) -> bool:
    sample = _sample(column)
    return len(sample) > 0 and 2 * int(parse_times(sample).values.is_not_null().sum()) >= len(sample)


def _is_worded_epoch(name: str, column: pl.Series) -> bool:
    return _TIME_WORDS.search(name.lower()) is not None and looks_like_epoch(_sample(column))


def _tells_series_apart(column: pl.Series) -> bool:
    """Text that is no number, or whole numbers; a value of its own in every row numbers the rows and no series."""
    parsed = parse_numbers(column)
    if column.dtype.is_float() or (parsed.mostly_numeric and not _whole(parsed)):
        return False
    if not parsed.mostly_numeric and column.name.lower() != "id":
        return True
    return column.n_unique() < len(column) or len(column) == 1


def _whole(parsed: Numbers) -> bool:
    values = parsed.values.filter(parsed.values.is_not_nan())
    return bool((values == values.floor()).all())
