"""A module that is declared causal and looks ahead is named; others are not asked."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.health.probes.causality import EarlierOutputs
from statewise.health.probes.forward import probe_forward
from statewise.models.dense_ssm import DenseSSM

from .conftest import Findings, Task, watched


class Convolution(nn.Module):
    """Over time, [batch, time, 3] to [batch, time, 8]; left: zeros in front, and what was there stays hidden."""

    def __init__(self, left: int, contract: bool = False) -> None:
        super().__init__()
        self.left = left
        self.conv = nn.Conv1d(3, 8, 3)
        if contract:
            self.health_contract = lambda: {"causal": ("",)}

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x.transpose(1, 2), (self.left, 2 - self.left))).transpose(1, 2)


def with_body(body: nn.Module) -> Task:
    task = Task()
    task.body = body
    return task


class Flipped(DenseSSM):
    def forward(self, x: Tensor, state: Any = None, *, last_only: bool = False) -> Any:
        y, state = super().forward(x.flip(1), state)
        return y, state


class States(nn.Module):
    """One of our layers, which declare themselves causal."""

    def __init__(self, layer: type[DenseSSM]) -> None:
        super().__init__()
        self.inp = nn.Linear(3, 8)
        self.layer = layer(d_model=4, expand=2, d_state=3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(self.inp(x))[0]
        return y


def test_a_convolution_padded_on_both_sides_is_named_where_it_is_declared_causal(findings: Findings) -> None:
    for task, options in ((with_body(Convolution(1)), {"health": {"causal": ["body"]}}), (with_body(Convolution(1, True)), {})):
        (finding,) = findings(task, steps=1, **options)
        assert (finding["id"], finding["severity"], finding["step"]) == ("not-causal", "error", 0)
        assert finding["evidence"] == finding["evidence"] | {"module": "body", "changed_from": 3, "moved_from": 2, "length": 6}
        assert set(finding["parameters"]) == {"body.conv.weight", "body.conv.bias"}


def test_a_causal_convolution_and_one_that_is_not_declared_are_left_in_peace(findings: Findings) -> None:
    assert findings(with_body(Convolution(2)), steps=1, health={"causal": ["body"]}) == []
    assert findings(with_body(Convolution(1)), steps=1) == []


def test_channels_first_are_known_by_the_convolution_that_takes_them(findings: Findings) -> None:
    class ChannelsFirst(Task):
        def __init__(self, padding: int) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(3, 8, 3, padding=padding), nn.Tanh())

        def encode(self, x: Tensor) -> Tensor:
            return self.body(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)

    (finding,) = findings(ChannelsFirst(1), steps=1, health={"causal": ["body"]})
    assert finding["id"] == "not-causal"
    assert finding["evidence"]["length"] == 6


def test_our_layers_say_themselves_that_they_are_causal(findings: Findings) -> None:
    assert findings(with_body(States(DenseSSM)), steps=1) == []
    (finding,) = findings(with_body(States(Flipped)), steps=1)
    assert (finding["id"], finding["evidence"]["module"]) == ("not-causal", "body.layer")


def test_the_innermost_module_that_looks_ahead_is_named(findings: Findings) -> None:
    (finding,) = findings(with_body(States(Flipped)), steps=1, health={"causal": ["body"]})
    assert finding["evidence"]["module"] == "body.layer"


def test_a_pattern_for_no_module_is_an_error() -> None:
    report = watched(with_body(Convolution(2)), steps=1, health={"causal": ["bodi"]}).report()
    (finding,) = report["findings"]
    assert finding["id"] == "pattern-matches-nothing"
    assert finding["evidence"]["key"] == "health.causal"
    assert "body" in finding["message"]


@pytest.mark.parametrize("length", [1, 6])
def test_a_single_time_step_cannot_be_asked(length: int) -> None:
    class Shortened(Task):
        def encode(self, x: Tensor) -> Tensor:
            return self.body(x[:, :length])

    signals, _ = probe_forward(Shortened(), (torch.randn(8, 6, 3),), {}, causal=["body"])
    (answer,) = [signal for signal in signals if isinstance(signal, EarlierOutputs)]
    assert answer.ahead == ()
    assert answer.tested == (("body",) if length == 6 else ())
    assert answer.untested == (() if length == 6 else ("`body` is given a single time step",))
