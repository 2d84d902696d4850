"""What all benchmarks share: rows with their bars, times, peak memory, and the command line.

Import it before torch: OpenMP reads its number of threads once. Times are processor time in one process on one thread;
variants take turns in rounds and the least of all rounds counts, so that a ratio holds to 10 or 15 % on a busy machine.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import ctypes
import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

DTYPES = {"float64": torch.float64, "float32": torch.float32}
MIB = 2**20
COLUMNS = ("id", "dtype", "size", "against", "value", "bar", "ok")


@dataclass(frozen=True)
class Row:
    """One measured value: of what (id, dtype, size), against what, and the bar that it is held to.

    A row without a bar is information; `ok` is None then. The bar itself still passes.
    """

    id: str
    dtype: str | None
    size: str
    against: str
    value: float
    bar: float | None
    better: str

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            raise ValueError(f"better must be higher or lower, got {self.better}")

    @property
    def ok(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar

    @property
    def margin(self) -> float | None:
        """How many times better than its bar the value is: below 1 it falls short."""
        if self.bar is None:
            return None
        if self.better == "higher":
            return self.value / self.bar
        return self.bar / self.value if self.value else float("inf")

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of COLUMNS."""
        sign = ">=" if self.better == "higher" else "<="
        bar = "-" if self.bar is None else f"{sign} {self.bar:g}"
        ok = "-" if self.ok is None else "yes" if self.ok else "NO"
        return (self.id, self.dtype or "-", self.size, self.against, readable(self.value), bar, ok)


def readable(value: float) -> str:
    """Three significant digits, without an exponent where a number is of everyday size."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.3g}"


def fastest(variants: Mapping[str, Callable[[], object]], rounds: int = 10, repeats: int = 1) -> dict[str, float]:
    """Processor seconds of one call of each variant: the least of the rounds, in each the mean of the repeats."""
    least = dict.fromkeys(variants, float("inf"))
    for run in variants.values():
        run()
    for _ in range(rounds):
        for name, run in variants.items():
            start = time.process_time()
            for _ in range(repeats):
                run()
            least[name] = min(least[name], (time.process_time() - start) / repeats)
    return least


def peak_memory(run: Callable[[], object]) -> int:
    """Bytes by which resident memory at its highest exceeds what is resident before.

    Call run once before, to warm up, and let it drop what it made (gradients) at its end: else that is there before. What
    earlier calls freed is given back to the system first: the allocator would serve from it, unseen. Where
    the system cannot restart its high-water mark, only a rise above everything before is seen.
    """
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    status, restart = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        kept = run()
        risen = unit * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        del kept
        return risen

    def resident(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return 1024 * int(line.split()[1])

    restart.write_text("5")
    before = resident("VmRSS")
    kept = run()
    risen = resident("VmHWM") - before
    del kept
    return risen


def table(rows: Iterable[Row], title: str | None = None) -> Table:
    """The rows as they are printed."""
    printed = Table(title=title)
    for name in COLUMNS:
        printed.add_column(name, justify="right" if name in ("value", "bar") else "left", overflow="fold")
    for row in rows:
        printed.add_row(*row.cells())
    return printed


def to_json(rows: Iterable[Row]) -> str:
    """A list with one object for each row, `ok` included."""
    entries: list[dict[str, Any]] = [{**asdict(row), "ok": row.ok} for row in rows]
    return json.dumps(entries, indent=1) + "\n"


def from_json(text: str) -> list[Row]:
    """The rows that `to_json` wrote."""
    return [Row(**{key: value for key, value in entry.items() if key != "ok"}) for entry in json.loads(text)]


def main(description: str, measure: Callable[[bool], list[Row]], argv: list[str] | None = None) -> None:
    """Run one benchmark from the command line: measure(quick) gives the rows, whether they meet their bars or not."""
    first = next((line for line in description.splitlines() if line.strip()), "")
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats, below a minute")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = measure(arguments.quick)
    Console(width=None if sys.stdout.isatty() else 160).print(table(rows, first))
    if arguments.json is not None:
        arguments.json.write_text(to_json(rows), encoding="utf-8")
