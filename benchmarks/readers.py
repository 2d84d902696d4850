"""Reading files: R1 start-up, R2 memory, R3 CSV against polars' own reader, R4 samples per second.

    python benchmarks/readers.py [--quick] [--json FILE]

R1, R2 and R4 are of a Parquet file of 10,000,000 x 32 float64 values and a time column (--quick: 3,000,000 rows), with
one target and a window of 60. Each start is a process of its own with a cache that is empty at first: what is timed is the
data module's `setup`, from a path to windows, without the imports. Memory is resident memory above what it is after the
imports and after a file of 1,000 rows was read (which loads the code), in units of the tensor that the windows are views
of; the row `whole process` has everything in it, training batches too. R3 is processor time on one thread, in turns,
for a CSV file of 1 GB (--quick: 200 MB): of reading its columns (`read_files`) in units of `pl.read_csv`, and of the table
in order with its times understood (`read_table`) in units of `pl.read_csv` with `try_parse_dates`.
"""

import os

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # read once, at the import

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import DTYPES, Row, fastest, main, peak_memory  # before torch

# isort: split
import numpy as np
import polars as pl

from statewise.data.datasets import File
from statewise.data.files.read import read_files
from statewise.data.files.reading import AS_IT_IS
from statewise.data.files.search import search
from statewise.data.tables.table import read_table

COLUMNS, WINDOW, BATCH = 32, 60, 128
ONE_START = "import json, sys, readers; print(json.dumps(readers.start(*sys.argv[1:])))"
GIB = 2**30


def write(path: Path, rows: int, columns: int) -> None:
    """Random walks, once a second."""
    random = np.random.default_rng(0)
    start = np.datetime64("2020-01-01", "ns")
    frame = {"time": start + np.arange(rows) * np.timedelta64(10**9, "ns")}
    frame |= {f"x{i}": random.standard_normal(rows).cumsum() for i in range(columns)}
    table = pl.DataFrame(frame)
    if path.suffix == ".csv":
        table.write_csv(path, float_precision=6)
    else:
        table.write_parquet(path, compression="lz4")


def start(path: str, dtype: str, cache: str, small: str) -> dict[str, float]:
    """One start of a run, in this process."""

    def module(path: str, **how: str) -> File:
        made = File(path=path, targets=["x0"], window=WINDOW, batch_size=BATCH, **how)
        made.dtype = DTYPES[dtype]
        return made

    module(small, cache="off").setup()
    data = module(path, cache="on", cache_folder=cache)
    began = time.perf_counter()
    memory = peak_memory(data.setup)
    seconds = time.perf_counter() - began
    tensor = data.prepared.scaled.nbytes
    batches = iter(data.train_dataloader())
    next(batches)  # shuffles
    samples, began = 0, time.perf_counter()
    while time.perf_counter() - began < 1.0:
        samples += len(next(batches).inputs)
    rate = samples / (time.perf_counter() - began)
    status = Path("/proc/self/status").read_text()
    whole = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    return {"seconds": seconds, "memory": memory / tensor, "whole": whole / GIB, "rate": rate}


def starting(folder: Path, rows: int) -> Iterator[Row]:
    write(file := folder / "table.parquet", rows, COLUMNS)
    write(small := folder / "small.parquet", 1000, COLUMNS)
    for dtype in ("float32", "float64"):
        size = f"{rows:,} x {COLUMNS}"
        for which in ("first start", "second start"):
            command = [sys.executable, "-c", ONE_START, str(file), dtype, str(folder / "cache"), str(small)]
            threads = os.environ | {"POLARS_MAX_THREADS": str(os.cpu_count())}
            here = Path(__file__).parent
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=threads, cwd=here)
            found = json.loads(done.stdout.splitlines()[-1])
            second = which == "second start"
            held = dtype == "float32"

            def row(id: str, what: str, value: float, bar: float | None, better: str = "lower") -> Row:
                return Row(id, dtype, f"{size}, {which}{what}", "absolute", value, bar, better)  # noqa: B023

            yield row("R1", ", s", found["seconds"], 2.0 if second and held else None)
            yield row("R2", ", peak in tensors", found["memory"], 1.3 if held else None)
            yield row("R2", ", whole process, GiB", found["whole"], 4.0 if held else None)
            if second:
                yield row("R4", f", window {WINDOW} batch {BATCH}, samples/s", found["rate"], None, "higher")


def reading_csv(folder: Path, megabytes: int, rounds: int) -> Iterator[Row]:
    write(file := folder / "table.csv", 1000, 16)
    rows = 1000 * 1000**2 * megabytes // file.stat().st_size
    write(file, rows, 16)
    variants = {
        "read_files": lambda: read_files(search(str(file), folder), AS_IT_IS),
        "pl.read_csv": lambda: pl.read_csv(file),
        "read_table": lambda: read_table(str(file), folder=folder),
        "pl.read_csv, times parsed": lambda: pl.read_csv(file, try_parse_dates=True),
    }
    seconds = fastest(variants, rounds)
    size = f"CSV, {file.stat().st_size / 1e6:,.0f} MB, {rows:,} x 17"
    for ours, against in (("read_files", "pl.read_csv"), ("read_table", "pl.read_csv, times parsed")):
        yield Row("R3", None, f"{size}, {ours}", against, seconds[ours] / seconds[against], 1.3, "lower")
    yield Row("R3", None, f"{size}, read_table", "pl.read_csv", seconds["read_table"] / seconds["pl.read_csv"], None, "lower")


def measure(quick: bool) -> list[Row]:
    """All rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = list(starting(folder, 3_000_000 if quick else 10_000_000))
        return [*rows, *reading_csv(folder, 200 if quick else 1000, 1 if quick else 3)]


if __name__ == "__main__":
    main(__doc__, measure)
