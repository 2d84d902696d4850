"""One line per epoch, through a real fit, with what a reader of a log wants to know."""

import logging
import re
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from statewise.callbacks.epoch_lines import EpochLines, _batch_size

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]

LINE = re.compile(
    r"epoch (\d+)/3  step (\d+)  train/loss (\S+)  val/loss (\S+)  val/mse (\S+)  lr 0\.1  [\d,]+ samples/s"
    r"(?:  (\d+:\d\d:\d\d) left)?"
)


class Constant(L.LightningModule):
    """Logs values that the test knows: the mean of the batches it trained on, and two constants."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.log("train/loss", float(batch_idx), on_step=True, on_epoch=True)
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("val/loss", 0.125)
        self.log("val/mse", 0.0625)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(**settings: Any) -> None:
    batches = DataLoader(TensorDataset(torch.ones(12, 1)), batch_size=4)
    arguments = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [EpochLines()],
        **settings,
    }
    with_validation = settings.get("limit_val_batches", 1.0) > 0
    L.Trainer(**arguments).fit(Constant(), batches, batches if with_validation else None)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, logger="statewise")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("statewise")]


def test_every_epoch_has_one_line_with_its_own_errors(lines: Any) -> None:
    fit(max_epochs=3)
    matches = [LINE.fullmatch(line) for line in lines()]
    assert all(matches), lines()
    found = [match.groups() for match in matches if match]
    assert [groups[:2] for groups in found] == [("1", "3"), ("2", "6"), ("3", "9")]
    assert [groups[2:5] for groups in found] == [("1", "0.125", "0.0625")] * 3
    assert [groups[5] is not None for groups in found] == [True, True, False]


def test_what_is_not_known_is_left_out(lines: Any) -> None:
    fit(max_epochs=-1, max_steps=3, limit_val_batches=0)
    (line,) = lines()
    assert re.fullmatch(r"epoch 1  step 3  train/loss 1  lr 0\.1  [\d,]+ samples/s", line)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(3, 2), 3),
        ((torch.zeros(5, 1), torch.zeros(2)), 5),
        ({"x": torch.zeros(4)}, 4),
        ([None, [torch.zeros(6)]], 6),
        (torch.tensor(1.0), 0),
        ("text", 0),
    ],
)
def test_samples_are_counted_in_batches_of_any_shape(batch: object, size: int) -> None:
    assert _batch_size(batch) == size
