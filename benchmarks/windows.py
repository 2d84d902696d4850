"""Windows: how fast they are set up and loaded, W1.

    python benchmarks/windows.py [--quick] [--json FILE]

Loading is compared with a dataset that cuts one window at a time and lets the default collate function stack them, and
with the leanest collate function that can be written. Set-up goes from a scaled table of
1,000,000 x 32 in memory to loaders for all three parts; the first shuffle of all training windows happens when the
first batch is drawn and has a row of its own.
"""

from collections.abc import Iterator
from functools import partial

from measuring import DTYPES, MIB, Row, fastest, main, peak_memory  # before torch

# isort: split
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from statewise.data.windows.batches import Batch, BatchLoader, SequentialBatches, ShuffledBatches, WindowDataset
from statewise.data.windows.parts import make_parts

WINDOW, FEATURES, WINDOWS = 60, 5, 4096  # the default data set's window and channels
SETUP_ROWS, SETUP_FEATURES = 1_000_000, 32


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


def loading(rounds: int) -> Iterator[Row]:
    for name, dtype in DTYPES.items():
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
            seconds = fastest({against: partial(drain, loader) for against, loader in {"": ours, **peers}.items()}, rounds)
            size = f"window={WINDOW} features={FEATURES} batch={batch_size}"
            for against in peers:
                bar = 2.3 if batch_size >= 64 else None
                yield Row("W1", name, size, against, seconds[against] / seconds[""], bar, "higher")


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


def setting_up(rounds: int) -> Iterator[Row]:
    values = torch.zeros(SETUP_ROWS, SETUP_FEATURES, dtype=torch.float64)
    set_up(values[: SETUP_ROWS // 100])
    memory = peak_memory(lambda: set_up(values))
    loaders = set_up(values)
    first_batch = peak_memory(lambda: next(iter(loaders[0])))
    seconds = fastest({"set-up": lambda: set_up(values), "shuffle": lambda: next(iter(loaders[0]))}, rounds)

    def of(what: str, value: float, bar: float | None) -> Row:
        return Row("W1", "float64", f"{SETUP_ROWS:,} x {SETUP_FEATURES}, {what}", "absolute", value, bar, "lower")

    yield of("set-up, ms", 1e3 * seconds["set-up"], 10.0)
    yield of("set-up, extra MiB", memory / MIB, 64.0)
    yield of("first batch with its shuffle, ms", 1e3 * seconds["shuffle"], None)
    yield of("first batch with its shuffle, extra MiB", first_batch / MIB, None)


def drain(loader: DataLoader) -> None:
    for _ in loader:
        pass


def measure(quick: bool) -> list[Row]:
    """All rows."""
    rounds = 10 if quick else 20
    return [*loading(rounds), *setting_up(rounds)]


if __name__ == "__main__":
    main(__doc__, measure)
