"""Progress while much data is read: a bar in a terminal, else a line in the log at the start and one at the end."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

log = logging.getLogger(__name__)

# Bytes from which on reading takes long enough to be watched.
LARGE = 64 * 2**20


@contextmanager
def progress(what: str, total: int, unit: str, size: int) -> Iterator[Callable[[str], None]]:
    """Shows how far a loop is; what it yields is called after each step, with the name of what is done.

    Args:
        what: is done, such as `reading bars.csv`.
        total, unit: how many steps of what: 32, `columns`.
        size: bytes in all; below LARGE nothing is said.
    """
    if size < LARGE:
        yield lambda name: None
        return
    start = time.monotonic()
    if sys.stderr.isatty():
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[last]}")
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"{what}, {readable(size)}, {unit}", total=total, last="")
            yield lambda name: bar.update(task, advance=1, last=name)
    else:
        log.info("%s: %s %s, %s", what, f"{total:,}", unit, readable(size))
        yield lambda name: None
    log.info("%s: done in %.1f s", what, time.monotonic() - start)


def readable(size: int) -> str:
    """Bytes for a person."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size:,} bytes"
