"""What training health costs in a training step, H1, and with the other callbacks, C1.

    python benchmarks/health_overhead.py [--quick] [--json FILE]

H1 is a real `Trainer.fit` of 68 linear layers (136 tensors; 0.95 million weights in the long step, 0.07 in the short one;
fused Adam) under TrainingHealth alone. Every method of it is clocked where it is called, as in callbacks.py. After its
forward pass the training step repeats single layers until the whole step, Lightning and optimizer included, will have taken
50 or 5 ms without health: what it did take is in the row. So caches are as a step leaves them. The value is the mean over
all steps but the first 150. Those are watched closely, and the run pays for them once: their mean has a row of its own,
without a bar. Then bursts of steps are watched, as many as the time of a step pays for, so a mean over a long run is what
counts; the run is planned far longer than it is, because a short one is watched throughout. The milliseconds of one watched
and of one unwatched step stand below, for information. Preflight is all that is done once, up to the first update, for 300
tensors: inventory, trials on a copy, the walk through the graph.
C1 is measured as callbacks.py says.
"""

import time
from collections.abc import Iterator
from typing import Any

from measuring import Row, main  # before torch

# isort: split
import lightning as L
import torch
from callbacks import DTYPES, Clock
from callbacks import rows as callback_rows
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from statewise.callbacks.training_health import TrainingHealth
from statewise.train import quieten_lightning

LAYERS, BATCH = 68, 8
# Milliseconds of a step: the width of a layer, and the milliseconds that health may take of it.
STEPS_MS = {50.0: (118, 0.5), 5.0: (32, 0.25)}
PREFLIGHT_TENSORS, PREFLIGHT_MS = 300, 150.0
# Watched throughout; not part of the mean.
BEGINNING = 150
PLANNED = 100_000


class Deep(L.LightningModule):
    """A stack of linear layers whose step takes as long as it is told."""

    def __init__(self, layers: int, width: int, milliseconds: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.seconds = milliseconds / 1000
        # What is repeated, adjusted until a whole step takes as long as it should.
        self.filling = 0.0

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        until = time.process_time() + self.filling
        layers = list(self.layers)
        while time.process_time() < until:
            layer = layers[batch_idx % len(layers)]
            torch.autograd.grad(torch.tanh(layer(batch)).sum(), list(layer.parameters()))
            batch_idx += 1
        return loss

    def loss(self, batch: Tensor) -> Tensor:
        h = batch
        for layer in self.layers:
            h = torch.add(h, layer(h), alpha=0.1)
        return h.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


class Batches(IterableDataset):
    """New numbers in every batch."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield torch.randn(BATCH, self.width, generator=generator)


class Rounds(L.Callback):
    """Puts aside what each step cost, and whether it was watched; ends the run after `count` steps."""

    def __init__(self, clock: Clock, health: TrainingHealth, count: int) -> None:
        self.clock, self.health, self.count = clock, health, count
        self.spent: list[float] = []
        self.watched: list[bool] = []
        # Milliseconds of each step without what health took.
        self.bare: list[float] = []
        self._last = time.process_time()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *rest: Any) -> None:
        self.spent.append(1000 * sum(self.clock.take().values()))
        now = time.process_time()
        self.bare.append(1000 * (now - self._last) - self.spent[-1])
        self._last = now
        pl_module.filling = max(pl_module.filling + 0.2 * (pl_module.seconds - self.bare[-1] / 1000), 0.0)
        # By now it is decided for the step that comes.
        self.watched.append(self.health.monitor.duty.watching)
        trainer.should_stop = len(self.spent) >= self.count


def fitted(layers: int, width: int, milliseconds: float, steps: int) -> Rounds:
    clock, health = Clock(), TrainingHealth(policy="warn")
    clock.watch(health)
    rounds = Rounds(clock, health, steps)
    L.Trainer(
        accelerator="cpu",
        max_steps=PLANNED,
        callbacks=[health, rounds],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Deep(layers, width, milliseconds), DataLoader(Batches(width), batch_size=None))
    return rounds


def step_rows(milliseconds: float, width: int, bar: float, steps: int) -> list[Row]:
    """The mean, and the two kinds of steps that it is made of."""
    rounds = fitted(LAYERS, width, milliseconds, BEGINNING + steps)
    spent, watched = rounds.spent[BEGINNING:], rounds.watched[BEGINNING - 1 : -1]
    bare = sorted(rounds.bare[BEGINNING:])[len(spent) // 2]
    size = f"136 tensors, a step of {milliseconds:g} ms"
    beginning = rounds.spent[1:BEGINNING]
    kinds = {
        f"watched ({sum(watched) / len(watched):.0%} of the steps)": [s for s, w in zip(spent, watched, strict=True) if w],
        "unwatched": [s for s, w in zip(spent, watched, strict=True) if not w],
    }
    rows = [Row("H1", "float32", f"{size} ({bare:.1f} bare)", "ms a step", sum(spent) / len(spent), bar, "lower")]
    first = f"{size}, the first {BEGINNING}"
    rows.append(Row("H1", "float32", first, "ms a step", sum(beginning) / len(beginning), None, "lower"))
    for kind, values in kinds.items():
        if values:
            middle = sorted(values)[len(values) // 2]
            rows.append(Row("H1", "float32", f"{size}, {kind}", "ms a step, median", middle, None, "lower"))
    return rows


def preflight_row() -> Row:
    """All that is done once, up to the first update."""
    once = min(fitted(PREFLIGHT_TENSORS // 2, 64, 0.0, 1).spent[0] for _ in range(3))
    return Row("H1", "float32", f"{PREFLIGHT_TENSORS} tensors, preflight", "ms", once, PREFLIGHT_MS, "lower")


def measure(quick: bool) -> list[Row]:
    """All rows; quick has fewer steps and one type in C1."""
    quieten_lightning()
    rows = [
        row
        for milliseconds, (width, bar) in STEPS_MS.items()
        for row in step_rows(milliseconds, width, bar, int((15_000 if quick else 40_000) / milliseconds))
    ]
    rows.append(preflight_row())
    return rows + [row for name in list(DTYPES)[: 1 if quick else None] for row in callback_rows(name, quick)]


if __name__ == "__main__":
    main(__doc__, measure)
