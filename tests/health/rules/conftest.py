"""A real, tiny fit, and what training health found in it."""

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.training_health import TrainingHealth

Found = list[dict[str, Any]]


class Regression(L.LightningModule):
    """A net of the test's own under an ordinary task; data are [batch, 6, 3] to [batch, 1]."""

    def __init__(self, net: nn.Module, optimizer: Callable[..., Any] = torch.optim.Adam, **options: Any) -> None:
        super().__init__()
        self.net, self.optimizer, self.options = net, optimizer, {"lr": 1e-2, **options}

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        y = y[0] if isinstance(y, tuple) else y
        return y[:, -1] if y.ndim == 3 else y

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.mse_loss(self(x), y)

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), **self.options)


@pytest.fixture
def regression() -> type[Regression]:
    """The task, to give it a net or to change a step of it."""
    return Regression


@pytest.fixture
def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 6, 3, generator=generator)
    return TensorDataset(x, torch.sin(x.sum((1, 2)))[:, None])


@pytest.fixture
def findings(data: TensorDataset) -> Callable[..., Found]:
    """Fit, and return the findings from a warning up (all of them with `facts=True`)."""

    def run(
        module: L.LightningModule,
        *,
        steps: int = 6,
        loader: Any = None,
        facts: bool = False,
        trainer: dict[str, Any] | None = None,
        callbacks: tuple[L.Callback, ...] = (),
        **health: Any,
    ) -> Found:
        watch = TrainingHealth(policy="warn", **health)
        settings: dict[str, Any] = {
            "max_steps": steps,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        loader = DataLoader(data, batch_size=8) if loader is None else loader
        L.Trainer(**settings | (trainer or {}), callbacks=[watch, *callbacks]).fit(module, loader)
        return [finding for finding in watch.report()["findings"] if facts or finding["severity"] != "info"]

    return run
