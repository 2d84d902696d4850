"""Names that state-space models give to what they learn are evidence where they are, and a constant is a constant."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class FourierFeatures(nn.Module):
    """A fixed random projection of raw inputs, in its authors' words."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("B", torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.sin(2 * math.pi * x @ self.B), torch.cos(2 * math.pi * x @ self.B)], -1)


class Euler(nn.Module):
    """Steps of a fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.dt = torch.tensor(0.1)
        self.field = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dt * torch.tanh(self.field(x))


class Recurrent(nn.Module):
    """A recurrence whose transition is a buffer, beside parameters that train."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("A", torch.rand(4))
        self.B, self.C = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        h, ys = x.new_zeros(len(x), 4), []
        for t in range(x.shape[1]):
            h = self.A * h + x[:, t] @ self.B
            ys.append(h @ self.C)
        return torch.stack(ys, 1)


class Decay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.A_log = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.exp(-torch.exp(self.A_log))


def net(first: nn.Module, width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(first, nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize(("make", "name", "width"), [(Recurrent, "net.0.A", 4), (Decay, "net.0.A_log", 3)])
def test_a_learnt_quantity_that_cannot_train_is_named(make: Any, name: str, width: int, regression: Any, findings: Any) -> None:
    (found,) = findings(regression(net(make(), width)), steps=1)
    assert (found["id"], found["severity"], found["step"]) == ("plain-tensor", "warning", 0)
    assert found["parameters"] == [name]


@pytest.mark.parametrize(("make", "name", "width"), [(FourierFeatures, "net.0.B", 8), (Euler, "net.0.dt", 3)])
def test_a_constant_that_shares_a_letter_is_a_fact(make: Any, name: str, width: int, regression: Any, findings: Any) -> None:
    assert findings(regression(net(make(), width)), steps=1) == []
    (found,) = findings(regression(net(make(), width)), steps=1, facts=True)
    assert (found["id"], found["severity"], found["parameters"]) == ("plain-tensor", "info", [name])
