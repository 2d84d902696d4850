"""Four small models with a task each, written as any user would write them: nothing here knows of training health.

A case changes one of these tasks as a user would, in its own code: by hooks, or by methods of its own (`overriding`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from statewise.models.dense_ssm import DenseSSM
from statewise.models.forecaster import Forecaster, Layer

BATCH = 16
# No multiple of the batch: every epoch ends with a partial batch, as ordinary data do.
ROWS = 250
WIDTH = 12
CLASSES = 5
TIME = 10
VOCABULARY = 12

Batch = tuple[Tensor, Tensor]
Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Places:
    """Names within `task.net` of the blocks that a case changes: the first one, an inner one, the last one."""

    inp: str
    core: str
    head: str


class Task(L.LightningModule):
    """A model, its loss and its optimizer."""

    def __init__(self, net: nn.Module, criterion: Criterion, places: Places, lr: float = 1e-2) -> None:
        super().__init__()
        self.net, self.criterion, self.places, self.lr = net, criterion, places, lr

    @property
    def inp(self) -> nn.Module:
        return self.net.get_submodule(self.places.inp)

    @property
    def core(self) -> nn.Module:
        return self.net.get_submodule(self.places.core)

    @property
    def head(self) -> nn.Module:
        return self.net.get_submodule(self.places.head)

    def predict(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self.criterion(prediction, target)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        loss = self.loss(self.predict(x), y)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        loss = self.loss(self.predict(x), y)
        self.log("val/loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def overriding(task: L.LightningModule, **methods: Callable[..., Any]) -> None:
    """Give the task methods of its own, `self` first, as a subclass in the user's code would.

    `super(type(task), task)` would recurse in a second change of the same method: call the parent's by name.
    """
    task.__class__ = type(type(task).__name__, (type(task),), methods)


@dataclass(frozen=True)
class Family:
    """A kind of model: how to build one with its task, and its data."""

    name: str
    build: Callable[[int], Task]
    data: Callable[[int], TensorDataset]


def loader(data: TensorDataset, seed: int, batch: int = BATCH) -> DataLoader:
    """Shuffled training batches, the same in every run with this seed."""
    return DataLoader(data, batch_size=batch, shuffle=True, generator=torch.Generator().manual_seed(seed))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws inside are those of the seed; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class MLP(nn.Module):
    """Linear layers, a layer norm, dropout: regression."""

    def __init__(self, features: int = 8, outputs: int = 1) -> None:
        super().__init__()
        self.inp = nn.Linear(features, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.core = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.core(self.norm(torch.tanh(self.inp(x))))  # (b d)
        return self.head(self.drop(h))  # (b 1)


class ConvNet(nn.Module):
    """Convolutions with batch norm: classification of small pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Conv2d(2, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.core = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.core(torch.relu(self.norm(self.inp(x))))  # (b d 6 6)
        return self.head(h.mean((2, 3)))  # (b classes)


class Attention(nn.Module):
    """An embedding, self-attention with a residual, layer norms: a class for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(TIME, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.core = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x) + self.position  # (b t d)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(self.drop(self.core(self.norm(h))))  # (b t classes)


class LastStep(nn.Module):
    """A forecaster that answers with its prediction after the last step only, [b, m]."""

    def __init__(self, forecaster: Forecaster) -> None:
        super().__init__()
        self.forecaster = forecaster

    def forward(self, x: Tensor) -> Tensor:
        return self.forecaster(x)[0][:, -1]


def token_cross_entropy(prediction: Tensor, target: Tensor) -> Tensor:
    """The mean over all tokens: prediction [b, t, classes], target [b, t]."""
    return F.cross_entropy(prediction.flatten(0, -2), target.flatten())


INNER = Places("inp", "core", "head")


def mlp(seed: int) -> Task:
    with seeded(seed):
        return Task(MLP(), F.mse_loss, INNER)


def mlp_data(seed: int) -> TensorDataset:
    with seeded(1000 + seed):
        x = torch.randn(ROWS, 8)
        return TensorDataset(x, torch.sin(x @ torch.randn(8, 1)) + 0.1 * torch.randn(ROWS, 1))


def conv(seed: int) -> Task:
    with seeded(seed):
        return Task(ConvNet(), F.cross_entropy, INNER)


def conv_data(seed: int) -> TensorDataset:
    with seeded(1000 + seed):
        y = torch.randint(CLASSES, (ROWS,))
        patterns = torch.randn(CLASSES, 2, 6, 6)
        return TensorDataset(patterns[y] + torch.randn(ROWS, 2, 6, 6), y)


def attention(seed: int) -> Task:
    with seeded(seed):
        return Task(Attention(), token_cross_entropy, INNER)


def attention_data(seed: int) -> TensorDataset:
    with seeded(1000 + seed):
        x = torch.randint(VOCABULARY, (ROWS, TIME))
        return TensorDataset(x, (x + x[:, :1]) % CLASSES)


def dense_layer() -> Layer:
    return DenseSSM(d_model=WIDTH // 2, expand=2, d_state=4)


def ssm(seed: int, layer: Callable[[], Layer] = dense_layer) -> Task:
    """Two layers of one kind in our forecaster, without residual sums, as the original model was."""
    with seeded(seed):
        net = LastStep(Forecaster([layer() for _ in range(2)], n_features=3, n_outputs=1, residual=False))
    return Task(net, F.mse_loss, Places("forecaster.input_proj", "forecaster.ssm_0", "forecaster.output_proj"))


def ssm_data(seed: int) -> TensorDataset:
    with seeded(1000 + seed):
        x = torch.randn(ROWS, TIME, 3)
        memory = (x * 0.7 ** torch.arange(TIME).flip(0)[:, None]).sum(1)  # (b 3)
        return TensorDataset(x, memory @ torch.randn(3, 1) + 0.1 * torch.randn(ROWS, 1))


FAMILIES = {
    family.name: family
    for family in (
        Family("mlp", mlp, mlp_data),
        Family("conv", conv, conv_data),
        Family("attention", attention, attention_data),
        Family("ssm", ssm, ssm_data),
    )
}
