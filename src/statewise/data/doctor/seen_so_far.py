"""As much as can be understood of files whose table cannot be read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statewise.data.datasets import File, launch_folder
from statewise.data.files.read import read_files
from statewise.data.files.search import search
from statewise.data.files.series import FILE
from statewise.data.tables.columns import choose_numbers, choose_series, choose_time
from statewise.data.tables.heads import Heads
from statewise.data.tables.understood import Found


@dataclass(frozen=True)
class SeenSoFar:
    """Formats, rows and columns of the files; the role of a column is `unknown` where it could not be decided."""

    formats: tuple[str, ...] = ()
    rows: int = 0
    columns: tuple[Found, ...] = ()


def see(module: File) -> SeenSoFar:
    """Whatever can be said; nothing is raised."""
    reading = module.reading
    start = launch_folder() if module.folder is None else Path(module.folder)
    raw = _tried(lambda: read_files(search(module.path, start), reading))
    if raw is None:
        return SeenSoFar()
    types = _tried(lambda: raw.types)
    heads = _tried(lambda: Heads(raw, reading.null_values))
    formats = tuple(dict.fromkeys(chunk.format for chunk in raw.chunks))
    if types is None or heads is None:
        return SeenSoFar(formats, raw.rows)
    time = _tried(lambda: choose_time(heads, reading))
    named = None if reading.series == FILE else reading.series
    series, why = _tried(lambda: choose_series(heads, named, time)) or (None, "")
    numbers = _tried(lambda: choose_numbers(heads, None, time, series, reading))
    columns = []
    for name, dtype in types.items():
        if time is not None and name in time.parts.values():
            role, reason = "time", time.why
        elif name == series:
            role, reason = "series", why
        elif numbers is not None and name in numbers.names:
            role, reason = "number", "numeric"
        elif numbers is not None:
            role, reason = "left out", numbers.left_out.get(name, "")
        else:
            role, reason = "unknown", ""
        columns.append(Found(name, role, str(dtype), reason))
    return SeenSoFar(formats, raw.rows, tuple(columns))


def _tried(attempt: Callable[[], Any]) -> Any:
    try:
        return attempt()
    except (ValueError, OSError):
        return None
