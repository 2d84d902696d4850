"""Tiny fits under TrainingHealth for what copies of a module are asked."""

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.training_health import TrainingHealth

# The findings of this folder's tests: others are the business of other tests.
OWN = frozenset(
    {
        "mixed-rows", "collapsed-batch", "fixed-batch-size", "leaking-state", "random-in-evaluation", "not-causal",
        "ignored-input", "ignored-target", "summed-loss",
    }
)  # fmt: skip
IGNORED = ("does not have many workers", "LeafSpec", "GPU available", "The number of training batches", "val_dataloader")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for text in IGNORED:
            item.add_marker(pytest.mark.filterwarnings(f"ignore:.*{text}.*"))


class Task(L.LightningModule):
    """Regression of [batch, time, 3] to [batch, 1] by a body per time step and a head on the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encode(x).mean(1))

    def encode(self, x: Tensor) -> Tensor:
        return self.body(x)

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(prediction, target)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return self.loss(self(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def data(rows: int = 44, batch: int = 8, **loader: Any) -> DataLoader:
    """Batches of 8, and a last one of 4."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 6, 3, generator=generator)
    return DataLoader(TensorDataset(x, x.mean((1, 2))[:, None]), batch, **({"shuffle": True} | loader))


Findings = Callable[..., list[dict[str, Any]]]


def watched(module: L.LightningModule, batches: DataLoader | None = None, steps: int = 6, **options: Any) -> TrainingHealth:
    """The callback after a fit. Options: `policy` and `health` for it, the rest for the Trainer."""
    health = TrainingHealth(policy=options.pop("policy", "warn"), **options.pop("health", {}))
    L.Trainer(
        **{"max_steps": steps, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
        | {"enable_progress_bar": False, "enable_model_summary": False} | options,
        callbacks=[health],
    ).fit(module, data() if batches is None else batches)  # fmt: skip
    return health


def own(health: TrainingHealth) -> list[dict[str, Any]]:
    return [finding for finding in health.report()["findings"] if finding["id"] in OWN]


@pytest.fixture
def findings() -> Findings:
    """Findings of this folder's kinds after a fit of a module."""
    return lambda *args, **options: own(watched(*args, **options))


@pytest.fixture
def not_run() -> Callable[..., dict[str, str]]:
    """Checks that did not run, with their reasons, after a fit."""

    def reasons(*args: Any, **options: Any) -> dict[str, str]:
        checks = watched(*args, **options).report()["checks"]
        return {check["name"]: check["why"] for check in checks if not check["ran"]}

    return reasons
