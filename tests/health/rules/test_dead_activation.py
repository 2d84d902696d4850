"""Activations that let no gradient through, in a real fit; their look-alikes are in test_dead_units."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor], since: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.core, self.head = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.act, self.since, self.seen = act, since, 0

    def forward(self, x: Tensor) -> Tensor:
        act = self.act if self.seen >= self.since else torch.relu
        self.seen += self.training
        return self.head(act(self.core(torch.relu(self.inp(x)))))


def test_a_dead_relu_is_named_with_the_layer_before_it_and_what_cannot_learn(regression: Any, findings: Any) -> None:
    (found,) = findings(regression(Net(lambda h: torch.relu(h - 100))), steps=8)
    assert (found["id"], found["severity"], found["step"]) == ("dead-activation", "error", 5)
    assert sorted(found["parameters"][:2]) == ["net.core.bias", "net.core.weight"]
    assert {"net.inp.weight", "net.inp.bias"} == set(found["parameters"][2:])
    assert found["evidence"]["module"] == "net"
    assert "Intended:" in found["message"]


def test_a_saturated_gate_is_a_warning_after_three_batches(regression: Any, findings: Any) -> None:
    (found,) = findings(regression(Net(lambda h: torch.tanh(1e6 * h))), steps=4)
    assert (found["id"], found["severity"], found["step"]) == ("dead-activation", "warning", 3)
    assert "saturated in 3 batches running" in found["message"]


@pytest.mark.parametrize("act", [lambda h: torch.relu(h - 100), lambda h: torch.tanh(1e6 * h)])
def test_one_that_dies_late_is_found_within_five_steps(regression: Any, findings: Any, act: Callable[[Tensor], Tensor]) -> None:
    found = findings(regression(Net(act, since=10)), steps=15)
    assert "dead-activation" in {finding["id"] for finding in found}
    assert all(finding["step"] <= 15 for finding in found)


def test_ordinary_activations_are_left_alone(regression: Any, findings: Any) -> None:
    assert findings(regression(Net(torch.relu)), steps=20) == []
