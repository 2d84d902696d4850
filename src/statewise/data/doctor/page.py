"""What the doctor found, as tables for a terminal."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from statewise.data.doctor.as_json import plain
from statewise.data.doctor.examination import Column, Examination
from statewise.data.doctor.leaks import Finding
from statewise.data.doctor.losses import PartAccount, WindowAccount
from statewise.data.oddities import Oddity, Place
from statewise.data.tables.table import Table
from statewise.data.tables.times.iso import readable, utc

_COLOURS = {"error": "bold red", "warning": "yellow", "info": "dim"}
_SERIES = 20
_ODDITIES = 40


def print_page(to: Console, found: Examination, leaks: Sequence[Finding] | None = None, *, leak_audit: bool = False) -> None:
    """Files, columns, time, series, what is odd, windows; empty sections are left out."""
    if not found.formats:
        return
    table = found.table
    rows = f"{found.rows:,} rows" if table is None or not table.notes else table.notes[0]
    _line(to, "files", f"{', '.join(found.formats)}: {rows}")
    if table is not None:
        for note in _notes(table):
            _line(to, "", note, "dim")
        _times(to, found, table)
    for grid in _grids(found):
        to.print()
        to.print(grid)
    if table is not None:
        to.print()
        if not found.oddities:
            _line(to, "odd", "nothing", "green")
        if found.windows is not None:
            for sentence in _sentences(found.windows):
                _line(to, "windows", sentence)
    if leaks is None and leak_audit:
        _line(to, "leak audit", "not made: there is nothing to audit where training would refuse")
    for leak in leaks or ():
        _line(to, f"leak: {leak.name}", f"{'ok' if leak.passed else 'LEAK'}  {leak.message}", "" if leak.passed else "bold red")
    verdict = "training would refuse: the last line says why" if found.refused else "training would begin"
    _line(to, "verdict", verdict, "bold red" if found.refused else "green")


def _notes(table: Table) -> Iterator[str]:
    """What was noted while reading and is not told elsewhere on the page; the first one names the files."""
    told = ("numeric columns: ", 'time column "', "series column ", "left out, ", "no time column", "the time is made of ")
    for note in table.notes[1:]:
        if not note.startswith(told) and "repeated rows (" not in note and "beyond 2^53" not in note:
            yield note


def _times(to: Console, found: Examination, table: Table) -> None:
    rows, understood = table.rows, table.understood
    if rows.times is None:
        _line(to, "time", "no time column: rows are taken in the order of the file")
    elif found.first_row is not None and found.last_row is not None:
        how = next((note for note in table.notes if note.startswith(f'time column "{table.time}": ')), "")
        how = how.removeprefix(f'time column "{table.time}": ').split(", zone ")[0]
        zone = "" if understood is None else f", zone: {understood.zone}"
        _line(to, "time", f'"{table.time}"{f", {how}" if how else ""}{zone}')
        first, last = (readable(utc(rows.times[row])) for row in (found.first_row, found.last_row))
        _line(to, "", f"{first} to {last} (UTC)")
        _line(to, "frequency", found.frequency or "not known: no series has two rows")
    if table.series is not None:
        count = len(rows.series)
        names = ", ".join(rows.series[:5]) + (", ..." if count > 5 else "")
        _line(to, "series", f'"{table.series}": {count:,} ({names})')


def _grids(found: Examination) -> Iterator[Grid]:
    if found.columns:
        yield _columns(found.columns)
    table = found.table
    if table is not None and table.series is not None and len(table.rows.series) > 1:
        yield _series(table)
    if found.oddities:
        yield _odd(found.oddities)
    if found.windows is not None:
        yield _windows(found.windows)


def _columns(columns: Sequence[Column]) -> Grid:
    grid = _grid()
    for name in ("column", "role", "type"):
        grid.add_column(name, no_wrap=True)
    for name in ("missing", "min", "max", "first", "last"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("why", overflow="fold")
    for column in columns:
        missing = "" if column.missing is None else f"{column.missing:,}"
        cells = (_cell(column, getattr(column, name)) for name in ("min", "max", "first", "last"))
        style = "dim" if column.role == "left out" else None
        grid.add_row(Text(column.name), column.role, _type(column.type), missing, *cells, Text(column.why), style=style)
    return grid


def _type(name: str) -> str:
    """Without the names of parameters: `Datetime(ns, UTC)`."""
    return re.sub(r"\w+=|'", "", name)


def _cell(column: Column, value: float | None) -> str:
    if value is None:
        return "" if column.missing is None else "missing"
    shown = plain(column, value)
    return f"{shown:,}" if isinstance(shown, int) else f"{value:.10g}"


def _series(table: Table) -> Grid:
    rows = table.rows
    grid = _grid()
    grid.add_column("series", no_wrap=True)
    grid.add_column("rows", justify="right")
    for name in ("first", "last"):
        grid.add_column(name, no_wrap=True)
    lengths = np.diff(rows.offsets).tolist()
    for code, (name, length) in enumerate(zip(rows.series[:_SERIES], lengths, strict=False)):
        first, last = int(rows.offsets[code]), int(rows.offsets[code + 1]) - 1
        grid.add_row(Text(name), f"{length:,}", *(rows.at(row) if length else "" for row in (first, last)))
    if len(rows.series) > _SERIES:
        grid.add_row(f"and {len(rows.series) - _SERIES:,} more", f"{sum(lengths[_SERIES:]):,}", "", "")
    return grid


def _odd(oddities: Sequence[Oddity]) -> Grid:
    grid = _grid()
    for name in ("odd", "what"):
        grid.add_column(name, no_wrap=True)
    grid.add_column("what is true, first places, what to do", overflow="fold")
    for oddity in oddities[:_ODDITIES]:
        text = Text(oddity.message)
        if oddity.first:
            more = ", ..." if oddity.count > len(oddity.first) else ""
            text.append(f"\nfirst: {', '.join(map(_place, oddity.first))}{more}", "dim")
        if oddity.remedy:
            text.append(f"\n{oddity.remedy}")
        grid.add_row(Text(oddity.severity, style=_COLOURS[oddity.severity]), oddity.id, text)
    if len(oddities) > _ODDITIES:
        grid.add_row("", "", f"and {len(oddities) - _ODDITIES:,} more: --json has them all")
    return grid


def _place(place: Place) -> str:
    values = " ".join(f"{name}={'missing' if value is None else f'{value:.10g}'}" for name, value in place.values.items())
    time = readable(place.time)
    inside = ": ".join(part for part in (place.series, values) if part)
    return f"{time} ({inside})" if inside else time


def _windows(account: WindowAccount) -> Grid:
    grid = _grid()
    grid.add_column("windows of", no_wrap=True)
    for name in ("rows", "windows"):
        grid.add_column(name, justify="right")
    for name in ("first target", "last target"):
        grid.add_column(name, no_wrap=True)
    for name in ("purged", "lost to gaps", "lost to missing values"):
        grid.add_column(name, justify="right")
    for name, part in account.parts.items():
        grid.add_row(name, f"{part.rows:,}", f"{part.windows:,}", *_targets(account, part), *_lost(part))
    return grid


def _targets(account: WindowAccount, part: PartAccount) -> tuple[str, str]:
    first, last = ("" if row is None else account.rows.at(row) for row in (part.first, part.last))
    return first, last


def _lost(part: PartAccount) -> tuple[str, ...]:
    return tuple(f"{count:,}" for count in (part.purged, part.lost_to_gaps, part.lost_to_missing))


def _sentences(account: WindowAccount) -> Iterator[str]:
    needed = f"each needs {account.needed:,} rows without a gap"
    lacking = account.needed - account.longest
    if account.runs == 1 and lacking > 0:
        yield f"{needed}; the rows are one run of {account.longest:,}, {lacking:,} too few"
    elif account.short:
        runs = f"{account.short:,} of {account.runs:,} runs of rows {'is' if account.short == 1 else 'are'} shorter and in none"
        yield f"{needed}; {runs}" + (f", the longest lacks {lacking:,} rows" if lacking > 0 else "")
    else:
        runs = "the rows are one run" if account.runs == 1 else f"all {account.runs:,} runs of rows are longer"
        yield f"{needed}; {runs}"


def _grid() -> Grid:
    return Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def _line(to: Console, name: str, text: str, style: str = "") -> None:
    to.print(Text.assemble((f"{name:<18}", "dim"), (text, style)), soft_wrap=True)
