"""What the callbacks cost in a training step, C1.

    python benchmarks/callbacks.py [--quick] [--json FILE]

A real `Trainer.fit` of the dense model (d_model 256, expand 4, N 16, 4 layers, batch 8, T 60, loss on the last step,
logs every 50 steps to TensorBoard and CSV) runs with the callbacks in it, and every method of theirs is clocked where
it is called, with the caches as the step left them. Rounds of 100 steps (two logs and one transient growth in each)
alternate with rounds of the bare step (forward, backward, clipping, fused Adam, no Lightning), so that both sides see
the same machine; the least of ten rounds counts on either side. A difference of two whole runs could not show one per
cent: such ratios hold to ten.
"""

import inspect
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import pairwise
from typing import Any

from measuring import DTYPES, Row, main  # before torch

# isort: split
import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.numerics_guard import NumericsGuard
from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.callbacks.training_health import TrainingHealth
from statewise.models.dense_ssm import DenseSSM
from statewise.models.forecaster import Forecaster
from statewise.train import quieten_lightning

BATCH, T, D_MODEL, EXPAND, D_STATE, LAYERS = 8, 60, 256, 4, 16, 4
STEPS, BARE_STEPS = 100, 10
BARS = {"float64": 1.5, "float32": 3.0}


class Clock:
    """CPU seconds spent in the methods of each object it watches; a method called by a watched one counts once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._depth = 0
        # Where system calls are slow, reading the clock is dearer than a small method: taken off for each call.
        reads = [time.process_time() for _ in range(1000)]
        self._reading = min(later - earlier for earlier, later in pairwise(reads))

    def watch(self, watched: L.Callback) -> L.Callback:
        name = type(watched).__name__
        self.seconds[name] = 0.0
        for method, function in inspect.getmembers(watched, inspect.ismethod):
            overridden = getattr(type(watched), method, None) is not getattr(L.Callback, method, None)
            if not method.startswith("__") and overridden:
                setattr(watched, method, self._clocked(function, name))
        return watched

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return taken

    def _clocked(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            # Reading the clock costs as much as a small method: only the outermost call is worth it.
            if self._depth:
                return function(*args, **kwargs)
            self._depth += 1
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.process_time() - start - self._reading
                self._depth -= 1

        return clocked


def model() -> Forecaster:
    layers = [DenseSSM(d_model=D_MODEL, expand=EXPAND, d_state=D_STATE) for _ in range(LAYERS)]
    return Forecaster(layers, n_features=D_MODEL, n_outputs=1, residual=False, activation="none", glu=False)


class Task(L.LightningModule):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model().to(dtype)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, target = batch
        return F.mse_loss(self.model(x, last_only=True)[0], target)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


class Batches(IterableDataset):
    """A few batches in turn: loading is not what is measured here, nor what a loader that repeats one batch would start."""

    def __init__(self, dtype: torch.dtype) -> None:
        shapes = (BATCH, T, D_MODEL), (BATCH, 1, 1)
        self.batches = [[torch.randn(shape, dtype=dtype) for shape in shapes] for _ in range(8)]

    def __iter__(self) -> Iterator[list[Tensor]]:
        return itertools.cycle(self.batches)


class Rounds(L.Callback):
    """Between two epochs of STEPS steps times the bare step and puts the seconds of the epoch aside."""

    def __init__(self, clock: Clock, dtype: torch.dtype) -> None:
        self.clock = clock
        self.bare_step = bare_step(dtype)
        self.bare: list[float] = []
        self.spent: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        taken = self.clock.take()
        start = time.process_time()
        for _ in range(BARE_STEPS):
            self.bare_step()
        self.bare.append((time.process_time() - start) / BARE_STEPS)
        # The first epoch holds what is done once.
        if trainer.current_epoch > 0:
            self.spent.append({name: seconds / STEPS for name, seconds in taken.items()})


def bare_step(dtype: torch.dtype) -> Callable[[], None]:
    task = Task(dtype)
    optimizer = task.configure_optimizers()
    batch = Batches(dtype).batches[0]

    def run() -> None:
        optimizer.zero_grad()
        task.training_step(batch, 0).backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()

    run()
    return run


def cost(dtype: torch.dtype, callbacks: list[L.Callback], count: int) -> tuple[dict[str, float], float]:
    """(per cent of the bare step by callback, seconds of the bare step)."""
    clock = Clock()
    watched = [clock.watch(callback) for callback in callbacks]
    rounds = Rounds(clock, dtype)
    with tempfile.TemporaryDirectory() as folder:
        L.Trainer(
            accelerator="cpu",
            precision="64-true" if dtype == torch.float64 else "32-true",
            max_epochs=count + 1,
            limit_train_batches=STEPS,
            gradient_clip_val=1.0,
            log_every_n_steps=50,
            logger=[TensorBoardLogger(folder), CSVLogger(folder)],
            callbacks=[*watched, rounds],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Task(dtype), DataLoader(Batches(dtype), batch_size=None))
    bare = min(rounds.bare)
    return {name: 100 * min(spent[name] for spent in rounds.spent) / bare for name in rounds.spent[0]}, bare


def three() -> list[L.Callback]:
    """The callbacks of the bar, as `conf/callbacks/default.yaml` has them."""
    return [GradientNorms(), SpectralProjection(), TrainingHealth()]


def rows(name: str, quick: bool) -> list[Row]:
    """The three together, the share of each, and the four with the guard, which is always on and shares its norms."""
    dtype, rounds = DTYPES[name], 3 if quick else 10
    spent, bare = cost(dtype, three(), rounds)
    size = f"T={T} N={D_STATE} d_model={D_MODEL} layers={LAYERS} batch={BATCH}"

    def of(what: str, value: float, bar: float | None) -> Row:
        return Row("C1", name, f"{size}, {what}", "the bare step, %", value, bar, "lower")

    found = [of("all three", sum(spent.values()), BARS[name])]
    found += [of(f"{which} of it", value, None) for which, value in spent.items()]
    if not quick:
        guarded, _ = cost(dtype, [NumericsGuard(), *three()], rounds)
        found.append(of("with NumericsGuard", sum(guarded.values()), None))
    print(f"{name}: the bare step takes {1000 * bare:.1f} ms")
    return found


def measure(quick: bool) -> list[Row]:
    """All rows; quick has three rounds and leaves the guard out."""
    quieten_lightning()
    return [row for name in DTYPES for row in rows(name, quick)]


if __name__ == "__main__":
    main(__doc__, measure)
