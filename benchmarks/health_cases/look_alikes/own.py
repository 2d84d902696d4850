"""What the further look-alikes (X) are made of: a task with one loss for training and validation, and rows to train on."""

from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from health_cases.families import BATCH, ROWS, Family, loader, seeded
from health_cases.set_up import VALIDATED_ROWS, Run, SetUp

ONE_MODEL = dict.fromkeys(("conv", "attention", "ssm"), "the set-up has a model of its own")


class Own(L.LightningModule):
    """Subclasses say what the loss of a batch is."""

    lr = 1e-2

    def loss_of(self, batch: Any) -> Tensor:
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of(batch)
        self.log("train/loss", loss, batch_size=BATCH)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of(batch)
        self.log("val/loss", loss, batch_size=BATCH)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def numbers() -> tuple[Tensor, ...]:
    """x [b, 8] and a smooth function of it, [b, 1]."""
    x = torch.randn(ROWS, 8)
    return x, torch.sin(x @ torch.randn(8, 1)) + 0.1 * torch.randn(ROWS, 1)


def classes() -> tuple[Tensor, ...]:
    """x [b, 8] and one of five classes."""
    x = torch.randn(ROWS, 8)
    return x, (x @ torch.randn(8, 5)).argmax(-1)


def sequences() -> tuple[Tensor, ...]:
    """x [b, 10, 3] and a value that its past explains, [b, 1]."""
    x = torch.randn(ROWS, 10, 3)
    return x, x.cumsum(1)[:, -1, :1]


def tokens() -> tuple[Tensor, ...]:
    """Periodic sequences of twelve tokens, [b, 10], with some noise."""
    start = torch.randint(12, (ROWS, 1))
    noise = torch.randint(12, (ROWS, 10)) * (torch.rand(ROWS, 10) < 0.1)
    return ((start + 5 * torch.arange(10) + noise) % 12,)


def network(inputs: int, outputs: int, width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, outputs))


def own(
    id: str,
    title: str,
    task: Callable[[], L.LightningModule],
    rows: Callable[[], Sequence[Tensor]] = numbers,
    change: Callable[[Run], None] | None = None,
    validated: bool = True,
) -> SetUp:
    """A set-up with a model and data of its own; `change` has the last word on the run."""

    def build(family: Family, seed: int) -> Run:
        with seeded(1000 + seed):
            data = TensorDataset(*rows())
        with seeded(seed):
            held_out = DataLoader(Subset(data, range(min(VALIDATED_ROWS, len(data)))), batch_size=BATCH)
            run = Run(task(), loader(data, seed), held_out if validated else None)
            if change is not None:
                change(run)
        return run

    return SetUp(id, title, build, ONE_MODEL)
