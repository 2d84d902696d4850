"""W1: how fast windows are set up and loaded.

    python benchmarks/windows.py [--json FILE] [--rounds N]

Loading is compared with a dataset that cuts one window at a time and lets the default collate function stack them: both
in this process, on one thread, in processor time, in alternating rounds, the least of all rounds. Set-up goes from a
scaled table of 1,000,000 x 32 in memory to loaders for all three parts; the first shuffle of all training windows
happens when the first batch is drawn and has a row of its own.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from statewise.data.batches import Batch, BatchLoader, SequentialBatches, ShuffledBatches, WindowDataset
from statewise.data.windows import make_parts

WINDOW, FEATURES, WINDOWS = 60, 5, 4096  # the default data set's window and channels
SETUP_ROWS, SETUP_FEATURES = 1_000_000, 32
MIB = 2**20


class OneByOne(Dataset[Batch]):
    """The ordinary way: a window is cut out for each item, a batch is stacked from them."""

    def __init__(self, values: Tensor, observed: Tensor) -> None:
        self.values, self.observed = values, observed

    def __len__(self) -> int:
        return len(self.values) - WINDOW

    def __getitem__(self, index: int) -> Batch:
        after = slice(index + WINDOW, index + WINDOW + 1)
        return Batch(self.values[index : index + WINDOW], self.values[None, after], self.observed[None, after])


def stacked(items: list[Batch]) -> Batch:
    """The cheapest collate function for items: one stack for each field, no question asked."""
    return Batch(*(torch.stack(field) for field in zip(*items, strict=True)))


def loading(rounds: int) -> Iterator[dict[str, Any]]:
    for dtype in (torch.float64, torch.float32):
        values = torch.randn(WINDOWS + WINDOW, FEATURES, dtype=dtype)
        observed = torch.ones_like(values, dtype=torch.bool)
        windows = WindowDataset(values, values, observed, torch.arange(WINDOWS), window=WINDOW, horizon=1)
        for batch_size in (8, 64, 256):
            order = ShuffledBatches(WINDOWS, batch_size, seed=0)
            ours = BatchLoader(windows, order)
            lists = [batch.tolist() for batch in order]
            items = OneByOne(values, observed)
            peers = {
                "per-item loading": DataLoader(items, batch_sampler=lists),
                "per-item loading, lean collate": DataLoader(items, batch_sampler=lists, collate_fn=stacked),
            }
            for peer in peers.values():
                for mine, other in zip(ours, peer, strict=True):
                    if not all(torch.equal(a, b) for a, b in zip(mine, other, strict=True)):
                        raise RuntimeError("the loaders do not give the same batches: nothing to compare")
            fast, *slow = least_times([partial(drain, loader) for loader in (ours, *peers.values())], rounds)
            for against, seconds in zip(peers, slow, strict=True):
                yield row(
                    size=f"window={WINDOW} features={FEATURES} batch={batch_size}",
                    against=against,
                    value=seconds / fast,
                    bar=2.3 if batch_size >= 64 else None,
                    better="higher",
                    dtype=str(dtype).removeprefix("torch."),
                )


def set_up(values: Tensor) -> list[BatchLoader]:
    """What the data module does with a scaled table without gaps or missing values."""
    rows = len(values)
    borders = np.array([[0, rows * 7 // 10, rows * 8 // 10, rows]])
    parts = make_parts(np.array([[0, rows]]), borders, np.array([0, rows]), window=WINDOW, horizon=1)
    observed = torch.ones(1, 1, dtype=torch.bool).expand(values.shape)
    loaders = []
    for name, part in parts.items():
        windows = WindowDataset(values, values, observed, torch.from_numpy(part.starts), window=WINDOW, horizon=1)
        in_order = SequentialBatches(len(windows), 128)
        loaders.append(BatchLoader(windows, ShuffledBatches(len(windows), 128, seed=0) if name == "train" else in_order))
    return loaders


def setting_up(rounds: int) -> Iterator[dict[str, Any]]:
    values = torch.zeros(SETUP_ROWS, SETUP_FEATURES, dtype=torch.float64)
    size = f"{SETUP_ROWS:,} x {SETUP_FEATURES}"
    set_up(values[: SETUP_ROWS // 100])
    memory, loaders = extra_memory(lambda: set_up(values))
    first_batch, _ = extra_memory(lambda: next(iter(loaders[0])))
    (seconds,) = least_times([lambda: set_up(values)], rounds)
    (shuffle,) = least_times([lambda: next(iter(loaders[0]))], rounds)

    def of(what: str, value: float, bar: float | None) -> dict[str, Any]:
        return row(f"{size}, {what}", "absolute", value, bar, "lower", "float64")

    yield of("set-up, ms", 1e3 * seconds, 10.0)
    yield of("set-up, extra MiB", memory / MIB, 64.0)
    yield of("first batch with its shuffle, ms", 1e3 * shuffle, None)
    yield of("first batch with its shuffle, extra MiB", first_batch / MIB, None)


def row(size: str, against: str, value: float, bar: float | None, better: str, dtype: str | None = None) -> dict[str, Any]:
    value = round(value, 3)
    ok = bar is None or (value >= bar if better == "higher" else value < bar)
    return {
        "id": "W1",
        "dtype": dtype,
        "size": size,
        "against": against,
        "value": value,
        "bar": bar,
        "better": better,
        "ok": ok,
    }


def drain(loader: DataLoader) -> None:
    for _ in loader:
        pass


def least_times(variants: list[Callable[[], Any]], rounds: int) -> list[float]:
    """The least processor time of each variant, over rounds in which they take turns."""
    least = [float("inf")] * len(variants)
    for _ in range(rounds):
        for place, variant in enumerate(variants):
            begin = time.process_time()
            variant()
            least[place] = min(least[place], time.process_time() - begin)
    return least


def extra_memory(action: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes by which the peak of resident memory rises above what is resident before, and what the action returns."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = action()
        return unit * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before), result

    def kibibytes(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1])

    reset.write_text("5")  # the peak starts again from what is resident now
    before = kibibytes("VmRSS")
    result = action()
    return 1024 * (kibibytes("VmHWM") - before), result


def main() -> int:
    parser = argparse.ArgumentParser(description="W1: set-up and loading of windows")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--rounds", type=int, default=12, help="the least time of so many rounds counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    rows = [*loading(arguments.rounds), *setting_up(arguments.rounds)]
    table = Table(title="Windows")
    for name in ("id", "dtype", "size", "against", "value", "bar", "ok"):
        table.add_column(name, justify="right" if name in ("value", "bar") else "left", no_wrap=True)
    for entry in rows:
        sign = ">=" if entry["better"] == "higher" else "<"
        bar = "-" if entry["bar"] is None else f"{sign} {entry['bar']:g}"
        shown = (entry["id"], str(entry["dtype"]), entry["size"], entry["against"], f"{entry['value']:.2f}", bar)
        table.add_row(*shown, "yes" if entry["ok"] else "NO")
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(entry["ok"] for entry in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
