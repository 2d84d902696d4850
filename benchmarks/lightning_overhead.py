"""What Lightning's loop costs around a bare PyTorch loop, L1.

    python benchmarks/lightning_overhead.py [--quick] [--json FILE]

Both sides run the same steps on the same batches: the project's loader, the task's own `training_step`, backward,
clipping, the fused optimizer, the schedule. The bare side is a `for` loop. The other is `Trainer.fit` with the project's
trainer settings, logging every 50 steps to TensorBoard and CSV; its time is that of whole epochs of 50 steps, from one
start to the next, the task's sums for the loss of the epoch and the end of the epoch included, validation and
checkpoints not. Epochs and bare rounds alternate inside one fit.

Two whole times differ by more than a per cent from round to round. So the forward and the backward pass, which both
sides call alike, are clocked and taken off on both: the value is what is left around them in an epoch, less what is left
in a bare round, in per cent of a whole bare round; the least of all rounds counts for each of the three.

The bar is for the loop without callbacks; the rows below it, for information, add those that `train.py` always adds and
then those that are on by default. Sizes: the default model on the default data, the original's,
and the original's with the 4 layers that the other benchmarks have.
"""

import tempfile
import time
from collections.abc import Callable
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

from measuring import Row, main  # before torch

# isort: split
import lightning as L
import torch
from hydra import compose, initialize_config_module
from lightning.pytorch.callbacks import Checkpoint
from omegaconf import DictConfig, OmegaConf

from statewise import assembly, schemas
from statewise.callbacks.epoch_lines import EpochLines
from statewise.callbacks.exact_order import ExactOrder
from statewise.callbacks.gradient_norms import GradientNorms
from statewise.callbacks.numerics_guard import NumericsGuard
from statewise.callbacks.spectral_projection import SpectralProjection
from statewise.callbacks.training_health import TrainingHealth
from statewise.optim import parameter_groups
from statewise.task import Forecasting
from statewise.train import quieten_lightning

STEPS = 50
SIZES = {
    "default model": [],
    "original's, 2 layers": ["experiment=origin"],
    "original's, 4 layers": ["experiment=origin", "model.n_layers=4"],
}
PRECISIONS = {"float64": "64-true", "float32": "32-true"}
Callbacks = Callable[[], list[L.Callback]]


def always() -> list[L.Callback]:
    return [NumericsGuard(), ExactOrder(0), EpochLines()]


def default() -> list[L.Callback]:
    return [GradientNorms(), SpectralProjection(), TrainingHealth(), *always()]


class NoCheckpoint(Checkpoint):
    """Lightning adds a checkpoint of its own where it finds none."""


class Clock:
    """Processor seconds spent in the calls that both sides make."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def watch(self, task: Forecasting) -> None:
        """Clock the forward pass with its loss, and the backward pass."""
        task.shared_step = self._clocked(task.shared_step)
        task.backward = self._clocked(task.backward)

    def take(self) -> float:
        taken, self._seconds = self._seconds, 0.0
        return taken

    def _clocked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            result = function(*args, **kwargs)
            self._seconds += time.process_time() - start
            return result

        return clocked


class Rounds(L.Callback):
    """Runs a bare round before each epoch, and takes the time of both."""

    def __init__(self, bare_round: Callable[[int], None], clock: Clock) -> None:
        self.bare_round, self.clock = bare_round, clock
        self.bare: list[float] = []
        self.left_bare: list[float] = []
        self.left_around: list[float] = []
        self._began: float | None = None

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        now = time.process_time()
        if self._began is not None:
            self.left_around.append(now - self._began - self.clock.take())
        self.bare_round(trainer.current_epoch)
        self._began = time.process_time()
        self.bare.append(self._began - now)
        self.left_bare.append(self.bare[-1] - self.clock.take())

    def overhead(self) -> float:
        """Per cent; the first round of either side holds what is done once."""
        bare, left_bare, left_around = (min(times[1:]) for times in (self.bare, self.left_bare, self.left_around))
        milliseconds = (1e3 * time / STEPS for time in (bare, left_bare, left_around))
        print("ms a step: bare {:.2f}; outside forward and backward {:.2f} bare, {:.2f} Lightning".format(*milliseconds))
        return 100 * (left_around - left_bare) / bare


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("statewise.conf", version_base="1.3"):
        return compose("train", overrides=[*overrides, "trainer.limit_val_batches=0", f"trainer.limit_train_batches={STEPS}"])


def bare_loop(config: DictConfig, task: Forecasting) -> Callable[[int], None]:
    """STEPS steps of an epoch in plain PyTorch."""
    loader = assembly.build_data(config).train_dataloader()
    optimizer = task.make_optimizer(parameter_groups(task))
    scheduler = None if task.make_scheduler is None else task.make_scheduler(optimizer, config.trainer.max_epochs * STEPS)

    def run(epoch: int) -> None:
        loader.batch_sampler.set_epoch(epoch)
        for number, batch in enumerate(islice(loader, STEPS)):
            optimizer.zero_grad()
            task.backward(task.training_step(batch, number))
            torch.nn.utils.clip_grad_norm_(task.parameters(), config.trainer.gradient_clip_val)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()

    return run


def overhead(config: DictConfig, callbacks: Callbacks) -> float:
    """Per cent by which a step in Lightning costs more than a bare one."""
    torch.manual_seed(0)
    datamodule = assembly.build_data(config)
    tasks = [assembly.build_task(config, datamodule, assembly.build_model(config, datamodule)) for _ in range(2)]
    tasks[1].load_state_dict(tasks[0].state_dict())
    clock = Clock()
    for task in tasks:
        clock.watch(task)
    rounds = Rounds(bare_loop(config, tasks[1]), clock)
    with tempfile.TemporaryDirectory() as folder:
        trainer = assembly.build_trainer(config, Path(folder), [rounds, *callbacks(), NoCheckpoint()], datamodule)
        trainer.fit(tasks[0], datamodule=datamodule)
    return rounds.overhead()


def measure(quick: bool) -> list[Row]:
    """All rows; quick has those of float64, the default, that have a bar."""
    schemas.register()
    OmegaConf.register_new_resolver("new_folder", str, replace=True)
    quieten_lightning()
    variants: dict[str, Callbacks] = {"no callbacks": list}
    if not quick:
        variants |= {"those always on": always, "all that are on by default": default}
    rows = []
    for size, chosen in SIZES.items():
        for name, precision in list(PRECISIONS.items())[: 1 if quick else None]:
            epochs = 3 if quick else 12
            config = composed(*chosen, f"hardware.precision={precision}", f"trainer.max_epochs={epochs}")
            for what, callbacks in variants.items():
                shape = f"{size}, T={config.data.window} batch={config.data.batch_size}, {what}"
                bar = 5.0 if what == "no callbacks" else None
                rows.append(Row("L1", name, shape, "bare loop, % more", overhead(config, callbacks), bar, "lower"))
    return rows


if __name__ == "__main__":
    main(__doc__, measure)
