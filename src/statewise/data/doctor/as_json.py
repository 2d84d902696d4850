"""What the doctor found, for programs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from statewise.data.doctor.examination import Column, Examination
from statewise.data.doctor.leaks import Finding
from statewise.data.oddities import Oddity
from statewise.data.oddities.windows_lost import windows_lost
from statewise.data.tables.table import Table
from statewise.data.tables.times.iso import utc
from statewise.data.windows.splits import PARTS


def as_json(found: Examination, leaks: Sequence[Finding] | None = None) -> dict[str, Any]:
    """Plain values: times as ISO text in UTC that ends with Z, null for what is missing or not known."""
    table = found.table
    first, last = (None if table is None else _row(found, table, row) for row in (found.first_row, found.last_row))
    times = (None if table is None else _time(table, row) for row in (found.first_row, found.last_row))
    first_time, last_time = times
    page: dict[str, Any] = {
        "format": ", ".join(found.formats) or None,
        "columns": [_column(found, column) for column in found.columns],
        "series": [] if table is None or table.series is None else list(table.rows.series),
        "first_time": first_time,
        "last_time": last_time,
        "rows": found.rows,
        "first_row": first,
        "last_row": last,
        "frequency": found.frequency,
        "zone": None if table is None or table.understood is None else table.understood.zone or None,
        "findings": [_oddity(oddity) for oddity in (*found.oddities, *windows_lost(found.windows))],
        "windows": {name: None if found.windows is None else found.windows.parts[name].windows for name in PARTS},
        "refused": found.refused,
    }
    if leaks is not None:
        page["leak_audit"] = [{"name": leak.name, "passed": leak.passed, "message": leak.message} for leak in leaks]
    return page


def _time(table: Table, row: int | None) -> str | None:
    return None if row is None or table.rows.times is None else utc(table.rows.times[row])


def _row(found: Examination, table: Table, row: int | None) -> dict[str, Any] | None:
    """Time and series by the names of their columns, then the numeric columns."""
    if row is None:
        return None
    values: dict[str, Any] = {}
    if table.time is not None:
        values[table.time] = _time(table, row)
    if table.series is not None:
        values[table.series] = table.rows.series[table.rows.series_of(row)]
    for column in found.columns:
        if column.role == "number":
            values[column.name] = plain(column, column.first if row == found.first_row else column.last)
    return values


def plain(column: Column, value: float | None) -> float | int | None:
    """A whole number where the file holds whole numbers, which may still count parts of a price."""
    if value is None or not np.isfinite(value):
        return None
    figures = [figure for figure in (column.min, column.max, column.first, column.last) if figure is not None]
    whole = column.type.startswith(("Int", "UInt")) and all(figure == np.floor(figure) for figure in figures)
    return int(value) if whole else value


def _column(found: Examination, column: Column) -> dict[str, Any]:
    about: dict[str, Any] = {"name": column.name, "role": column.role, "type": column.type, "why": column.why}
    if column.role == "number" and column.missing is not None:
        figures = {name: plain(column, getattr(column, name)) for name in ("min", "max", "first", "last")}
        about |= {"missing": column.missing, **figures}
    return about


def _oddity(oddity: Oddity) -> dict[str, Any]:
    return {
        "id": oddity.id,
        "severity": oddity.severity,
        "count": oddity.count,
        "first": [{"time": place.time, "series": place.series, "values": dict(place.values)} for place in oddity.first],
        "message": oddity.message,
        "remedy": oddity.remedy,
    }
