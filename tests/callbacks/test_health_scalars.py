"""The numbers of training health that move, read back from the log of a real fit."""

import lightning as L
import polars as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.training_health import TrainingHealth

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class Net(L.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def logged(folder, lr=0.1, freeze=False):
    torch.manual_seed(0)
    net = Net(lr)
    net.model[0].weight.requires_grad_(not freeze)
    x = torch.randn(32, 3)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, log_every_n_steps=2, callbacks=[TrainingHealth(policy="warn")],
        logger=CSVLogger(folder, name="", version="csv"), enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(net, data)
    return pl.read_csv(folder / "csv" / "metrics.csv")


def test_findings_share_and_ratio_of_each_block_stand_beside_the_loss(tmp_path):
    rows = logged(tmp_path)
    frame = rows.drop_nulls("health/findings")
    assert frame["step"].to_list() == rows.drop_nulls("train/loss")["step"].to_list() == [1, 3, 5, 7]
    assert frame["health/findings"].to_list() == [0.0] * 4
    assert frame["health/share_moving"].to_list() == [1.0] * 4
    ratios = [name for name in frame.columns if name.startswith("health/update_ratio/")]
    assert sorted(ratios) == ["health/update_ratio/0", "health/update_ratio/2"]
    assert all(0 < value < 1 for name in ratios for value in frame[name])


def test_the_count_rises_with_a_warning(tmp_path):
    frame = logged(tmp_path, freeze=True).drop_nulls("health/findings")
    assert frame["health/findings"].to_list() == [1.0] * 4
