"""float32 and float64 in one run: by mistake, and by design."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

DOUBLE = {"precision": "64-true"}


class Block(nn.Module):
    def __init__(self, cast: torch.dtype | None = None) -> None:
        super().__init__()
        self.linear, self.cast = nn.Linear(8, 8), cast

    def forward(self, h: Tensor) -> Tensor:
        h = self.linear(h)
        return torch.tanh(h if self.cast is None else h.to(self.cast).to(h.dtype))


class Net(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.core, self.head = nn.Linear(3, 8), block, nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(torch.tanh(self.inp(x))))


@pytest.fixture
def doubles(data: TensorDataset) -> DataLoader:
    return DataLoader(TensorDataset(*(tensor.double() for tensor in data.tensors)), batch_size=8)


def test_a_block_that_narrows_a_float64_run_is_named(regression: Any, findings: Any, doubles: DataLoader) -> None:
    (found,) = findings(regression(Net(Block(torch.float32))), trainer=DOUBLE, loader=doubles)
    assert (found["id"], found["severity"], found["step"]) == ("mixed-dtypes", "warning", 0)
    assert found["evidence"]["module"] == "net.core"
    assert sorted(found["parameters"]) == ["net.core.linear.bias", "net.core.linear.weight"]
    assert "Intended:" in found["message"]


def test_a_loss_that_is_rounded_is_a_round_trip(regression: Any, findings: Any, doubles: DataLoader) -> None:
    class Task(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx).float().double()

    (found,) = findings(Task(Net(Block())), trainer=DOUBLE, loader=doubles)
    assert (found["id"], found["severity"], found["step"]) == ("dtype-round-trip", "warning", 0)
    assert found["evidence"]["comes_back"]
    assert "Intended:" in found["message"]


def test_a_parameter_that_stayed_in_float32_is_named(regression: Any, findings: Any, doubles: DataLoader) -> None:
    class Gained(Block):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(8))

        def forward(self, h: Tensor) -> Tensor:
            return super().forward(h) * self.gain

    class Task(regression):
        def on_fit_start(self) -> None:
            self.net.core.gain.data = self.net.core.gain.data.float()

    (found,) = findings(Task(Net(Gained())), trainer=DOUBLE, loader=doubles)
    assert (found["id"], found["parameters"]) == ("mixed-dtypes", ["net.core.gain"])
    assert found["evidence"]["module"] == "net.core"


class Summing(nn.Module):
    """A float32 model that sums up in float64, as one does."""

    def forward(self, h: Tensor) -> Tensor:
        return torch.tanh(h.double().cumsum(1).float())


@pytest.mark.parametrize("trainer", [{}, {"precision": "bf16-mixed"}])
def test_float64_inside_a_float32_run_by_a_cast_is_left_alone(regression: Any, findings: Any, trainer: dict[str, Any]) -> None:
    assert findings(regression(Net(Summing())), trainer=trainer) == []


def test_float64_targets_of_a_float32_model_are_a_fact(regression: Any, findings: Any) -> None:
    class Task(regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return super().training_step((x, y.double()), batch_idx)

    (found,) = findings(Task(Net(Block())), facts=True)
    assert (found["id"], found["severity"]) == ("mixed-dtypes", "info")


def test_a_float64_run_of_one_type_is_left_alone(regression: Any, findings: Any, doubles: DataLoader) -> None:
    assert findings(regression(Net(Block())), trainer=DOUBLE, loader=doubles, facts=True) == []
