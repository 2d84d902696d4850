"""The time columns of a file as moments in UTC: every fault with its place, every assumption with a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from statewise.data.files.raw import Raw
from statewise.data.files.reading import Reading
from statewise.data.tables.numbers import absent
from statewise.data.tables.times.column import read_times
from statewise.data.tables.times.labels import to_start
from statewise.data.tables.times.moments import Moments, Unreadable
from statewise.data.tables.times.pieces import combine
from statewise.data.tables.times.text import fault_of
from statewise.data.tables.times.zones import check_zone, says_utc, to_utc


@dataclass(frozen=True)
class Stamps:
    """Datetime in ns, UTC without a zone, no null; how they were read and became UTC; whether no zone is known."""

    values: pl.Series
    how: str
    zone: str
    naive: bool
    notes: tuple[str, ...] = ()


def utc_times(raw: Raw, parts: Mapping[str, str], series: pl.Series | None, reading: Reading, name: str) -> Stamps:
    """The times of all rows.

    Args:
        parts: what each column is (`time`, or a part of one as in pieces.py) -> its name.
        series: of each row, to tell hours apart that clocks show twice.
        name: of the times, for messages.

    Raises:
        ValueError: in one line with the place.
    """
    if reading.timezone is not None:
        check_zone(reading.timezone)
    columns = raw.columns(list(dict.fromkeys(parts.values())))
    try:
        if "time" in parts:
            moments = read_times(columns[parts["time"]], reading.day_first, reading.null_values)
        else:
            moments = combine({part: columns[of] for part, of in parts.items()}, reading.day_first, reading.null_values)
        _refuse_lost(raw, moments, columns, reading, name)
        stamps = _in_utc(moments, parts, series, reading)
        if reading.bar_label == "end":
            _refuse_start(raw, name)
            values, note = to_start(stamps.values, series)
            stamps = Stamps(values, stamps.how, stamps.zone, stamps.naive, (*stamps.notes, note))
    except Unreadable as fault:
        where = raw.name if fault.row is None else raw.where(fault.row)
        raise ValueError(f'data.path: {where}: the time column "{name}" {fault.reason}') from fault
    return Stamps(stamps.values.rename(name), stamps.how, stamps.zone, stamps.naive, stamps.notes)


def _in_utc(moments: Moments, parts: Mapping[str, str], series: pl.Series | None, reading: Reading) -> Stamps:
    values, how, zone = moments.values, moments.how, reading.timezone
    if moments.utc is True:
        notes = () if zone is None else (f"data.timezone={zone} is not needed: the times are in UTC already",)
        return Stamps(values, how, "given in the file", False, notes)
    if moments.utc is False and moments.zones is None:
        named = next((name for name in parts.values() if says_utc(name)), None)
        if named is not None:
            notes = () if zone in (None, "UTC") else (f'data.timezone={zone} is not used: the name "{named}" says UTC',)
            return Stamps(values, how, f'UTC, as the name "{named}" says', False, notes)
        if zone is None:
            return Stamps(values, how, "not given, taken as UTC", True)
        return Stamps(to_utc(moments, zone, series), how, f"{zone} (data.timezone)", False)
    names = [] if moments.zones is None else moments.zones.drop_nulls().unique().sort().to_list()
    local = ~moments.flags
    for named in names:
        here = (moments.zones == named).fill_null(False).to_numpy()
        row = int(np.flatnonzero(here)[0])
        try:
            check_zone(named, "the zone")
        except ValueError as error:
            raise Unreadable(row, f"is in no zone that is known: {error}") from error
        values = to_utc(Moments(values, moments.utc, how, dates=moments.dates), named, series, here)
        local &= ~here
    if local.any():
        row = int(np.flatnonzero(local)[0])
        if zone is None and all(says_utc(name) for name in parts.values()):
            zone = "UTC"
        if zone is None:
            count = int(local.sum())
            raise Unreadable(
                row,
                f"has no zone here, while other rows have one ({count:,} without): set data.timezone for those that have none",
            )
        values = to_utc(Moments(values, moments.utc, how, dates=moments.dates), zone, series, local)
        return Stamps(values, how, f"given in the file, else {zone} (data.timezone)", False)
    return Stamps(values, how, f"given in the file ({', '.join(names)})" if names else "given in the file", False)


def _refuse_lost(raw: Raw, moments: Moments, columns: pl.DataFrame, reading: Reading, name: str) -> None:
    lost = moments.values.is_null()
    count = int(lost.sum())
    if not count:
        return
    row = int(lost.arg_true()[0])
    held = {column.name: column[row] for column in columns}
    empty = next((of for of in held if bool(absent(columns[of].slice(row, 1), reading.null_values).item())), None)
    if empty is not None:
        what = "is empty" if len(held) == 1 else f'has no value in "{empty}"'
    else:
        text = " ".join(str(value) for value in held.values())
        what = f'holds "{text}", {fault_of(text)}'
    others = f" ({count:,} such rows)" if count > 1 else ""
    raise ValueError(
        f'data.path: {raw.where(row)}: the time column "{name}" {what}{others}; '
        "write times as 2024-01-02 14:30:00 or as numbers since 1970, or name another column in data.time"
    )


def _refuse_start(raw: Raw, name: str) -> None:
    if name == "ts_event" and {"rtype", "publisher_id"} & set(raw.names):
        raise ValueError(
            f"data.bar_label=end: {raw.name}: ts_event is the start of its bar in Databento's files; leave it at start"
        )
