"""Fits in two processes that talk over gloo, for test_training_health_engines.py: `python two_processes.py FOLDER`.

Writes FOLDER/<case>.<rank>.json, what each process knows at the end, and FOLDER/<case>.<rank>.txt where it ended in an error.
The processes are forked, so nothing may differentiate in this one.
"""

import logging
import sys
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.training_health import TrainingHealth
from statewise.health import UnhealthyTraining


class Healthy(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(3, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inp(x)))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.mse_loss(self(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), lr=1e-2)


class Unused(Healthy):
    """One layer is never called, the output of another is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(8, 8)
        self.dropped = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        self.dropped(torch.tanh(self.inp(x)))
        return super().forward(x)


class OneStill(Healthy):
    """A fault in one process only: its learning rate is 0."""

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), lr=0.0 if self.trainer.global_rank == 1 else 1e-2)


class Tells(TrainingHealth):
    """Writes down how the fit ended in each process: a launcher passes on one error only."""

    def __init__(self, policy: str, path: str) -> None:
        super().__init__(policy)
        self.path = path

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_fit_end(trainer, pl_module)
        self.write_report(f"{self.path}.{trainer.global_rank}.json")

    def _act(self, trainer: L.Trainer, *arguments: Any, **settings: Any) -> None:
        try:
            super()._act(trainer, *arguments, **settings)
        except UnhealthyTraining as error:
            Path(f"{self.path}.{trainer.global_rank}.txt").write_text(str(error))
            raise


def run(folder: Path, case: str, module: L.LightningModule, policy: str, find_unused: bool = False) -> None:
    """One fit; what it raises is in the files."""
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
    data = DataLoader(TensorDataset(x, x.sum(-1, keepdim=True)), batch_size=8)
    strategy = DDPStrategy(
        start_method="fork", find_unused_parameters=find_unused, process_group_backend="gloo", timeout=timedelta(seconds=40)
    )
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Tells(policy, str(folder / case))],
    )  # fmt: skip
    # What a process raised comes as text, in an error of torch's own.
    with suppress(Exception):
        trainer.fit(module, data)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    into = Path(sys.argv[1])
    run(into, "healthy", Healthy(), "error")
    run(into, "unused", Unused(), "warn", find_unused=True)
    run(into, "one", OneStill(), "error")
