"""Parameters that the loss reads and cannot move: their values change it on a copy, so nobody waits for proof."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Scale(nn.Module):
    """A single parameter, used as `read` says."""

    def __init__(self, read: Callable[[nn.Parameter], Any]) -> None:
        super().__init__()
        self.scale, self.read = nn.Parameter(torch.tensor(1.5)), read

    def forward(self, h: Tensor) -> Tensor:
        return h * self.read(self.scale)


class Net(nn.Module):
    """Two layers with something in between."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.middle, self.head = nn.Linear(3, 8), middle or nn.Identity(), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.inp(x)))

    def between(self, h: Tensor) -> Tensor:
        return self.middle(h)


@pytest.mark.parametrize(
    "read", [lambda p: p.item(), lambda p: p.detach(), lambda p: float(p)], ids=["item", "detach", "float"]
)
def test_the_only_parameter_of_a_module_that_is_read_as_a_number_is_named_before_the_first_update(
    regression: Any, findings: Any, read: Any
) -> None:
    (found,) = findings(regression(Net(Scale(read))), steps=2)
    assert (found["id"], found["severity"], found["step"]) == ("graph-cut", "error", 0)
    assert found["parameters"] == ["net.middle.scale"]
    assert "the loss changes with its value, so `net.middle` uses it" in found["message"]


class Hidden(Net):
    """Behind a detach stands a layer in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8)]

    def between(self, h: Tensor) -> Tensor:
        return torch.tanh(self.layers[0](h.detach()))


def test_an_output_that_a_hidden_layer_uses_behind_a_detach_is_not_called_unused(regression: Any, findings: Any) -> None:
    found = {one["id"]: one for one in findings(regression(Hidden()), steps=2)}
    cut = found["graph-cut"]
    assert set(found) == {"graph-cut", "hidden-module"}
    assert (cut["severity"], cut["step"], cut["parameters"]) == ("error", 0, ["net.inp.weight", "net.inp.bias"])
    assert "the output of `net.inp` is used, but taken out of the graph" in cut["message"]


class Cut(Net):
    """Cuts its own way."""

    def between(self, h: Tensor) -> Tensor:
        return torch.tanh(h.detach())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_cut_in_compiled_code_is_no_module_that_nobody_calls(regression: Any, findings: Any, backend: str) -> None:
    net = Cut()
    net.compile(backend=backend)
    (found,) = findings(regression(net), steps=2)
    assert (found["id"], found["severity"], found["step"]) == ("graph-cut", "error", 0)
    assert found["parameters"] == ["net.inp.weight", "net.inp.bias"]
    assert "not called" not in found["message"]


class Spare(Net):
    """A layer that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(8, 8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_of_a_spare_layer_in_compiled_code_it_is_not_said_that_nobody_calls_it(regression: Any, findings: Any) -> None:
    plain, compiled = Spare(), Spare()
    compiled.compile(backend="aot_eager")
    (known,) = findings(regression(plain), steps=21)
    (unknown,) = findings(regression(compiled), steps=21)
    assert known["id"] == unknown["id"] == "unused"
    assert "the module was not called" in known["message"]
    assert "cannot be seen, because the forward pass around it is compiled" in unknown["message"]


class Sometimes(nn.Module):
    """Scales in every third batch only; the others pass through another function."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.calls = nn.Parameter(torch.tensor(1.5)), 0

    def forward(self, h: Tensor) -> Tensor:
        self.calls += self.training
        return h * self.scale if self.calls % 3 == 0 else torch.tanh(h)


def test_a_parameter_that_sits_out_the_first_batches_is_left_alone(regression: Any, findings: Any) -> None:
    assert findings(regression(Net(Sometimes())), steps=12) == []


class Frozen(Net):
    """The first layer is a fixed one on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.inp.requires_grad_(False)


def test_what_is_frozen_on_purpose_is_left_alone(regression: Any, findings: Any) -> None:
    assert [one for one in findings(regression(Frozen()), steps=5) if one["severity"] != "info"] == []
