"""Look-alikes that write weights outside the optimizer's step, as they should."""

import copy
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, LearningRateFinder, StochasticWeightAveraging
from torch import Tensor

from health_cases.families import Family, Task, overriding
from health_cases.set_up import Run, SetUp, changed, plain, quiet_trainer


def teacher(task: Task) -> None:
    """A frozen average of the model, written in place after each step, gives a second target."""
    task.teacher = copy.deepcopy(task.net).requires_grad_(False)

    def training_step(self: Task, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        prediction = self.predict(x)
        with torch.no_grad():
            average = self.teacher(x)
        loss = self.loss(prediction, y)
        self.log("train/loss", loss)
        return loss + 0.1 * F.mse_loss(prediction, average)

    def on_train_batch_end(self: Task, *args: Any) -> None:
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, 0.05)

    overriding(task, training_step=training_step, on_train_batch_end=on_train_batch_end)


def first_matrix(task: Task) -> torch.nn.Parameter:
    return next(p for p in task.core.parameters() if p.ndim >= 2)


class Clamp(Callback):
    """Keeps a matrix within the range that holds 95 % of its first values: a few entries lie on the bound."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: Task) -> None:
        self.bound = float(first_matrix(pl_module).detach().abs().quantile(0.95))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Task, *args: Any) -> None:
        with torch.no_grad():
            first_matrix(pl_module).clamp_(-self.bound, self.bound)


def with_callback(make: type[Callback], **arguments: Any) -> Any:
    def build(family: Family, seed: int) -> Run:
        run = plain(family, seed)
        run.callbacks = [make(**arguments)]
        return run

    return build


def averaged_late(family: Family, seed: int) -> Run:
    run = plain(family, seed)
    run.trainer = {"max_epochs": 13}
    run.callbacks = [StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=8)]
    return run


def resumed(family: Family, seed: int) -> Run:
    """Goes on from a checkpoint written after 40 steps."""
    folder = tempfile.TemporaryDirectory()
    first = plain(family, seed)
    trainer = quiet_trainer(first, Path(folder.name), 40)
    trainer.fit(first.task, first.batches)
    trainer.save_checkpoint(Path(folder.name) / "middle.ckpt")
    run = plain(family, seed)
    run.checkpoint = Path(folder.name) / "middle.ckpt"
    run.belongings = [folder]
    return run


def sharpness_aware(task: Task) -> None:
    """SAM: the gradient is taken at weights moved uphill, the step at the weights themselves."""
    task.automatic_optimization = False

    def training_step(self: Task, batch: Any, batch_idx: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(self.predict(x), y)
        self.log("train/loss", loss)
        self.manual_backward(loss)
        trainable = [p for p in self.parameters() if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in trainable]).norm() + 1e-12
        kept = [p.detach().clone() for p in trainable]
        with torch.no_grad():
            for p in trainable:
                p.add_(p.grad, alpha=float(0.05 / norm))
        optimizer.zero_grad()
        self.manual_backward(self.loss(self.predict(x), y))
        with torch.no_grad():
            for p, old in zip(trainable, kept, strict=True):
                p.copy_(old)
        optimizer.step()

    overriding(task, training_step=training_step)


SET_UPS = (
    SetUp("T6", "an averaged teacher, written in place", changed(teacher)),
    SetUp("T15", "a clamp that holds a few entries", with_callback(Clamp)),
    SetUp("T16a", "averaged weights, swapped in for validation", with_callback(EMAWeightAveraging, decay=0.9)),
    SetUp(
        "T16b", "the learning rate finder", with_callback(LearningRateFinder, num_training_steps=20, min_lr=1e-5, max_lr=0.1)
    ),
    SetUp("T16c", "goes on from a checkpoint", resumed),
    SetUp("T16d", "sharpness-aware minimisation", changed(sharpness_aware)),
    SetUp("T16e", "stochastic weight averaging", averaged_late),
)
