"""Activations that stay off, told apart from sparse ones, gates that choose, and answers that are sure."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.health.graph.dead_units import DeadUnits
from statewise.health.graph.signals import DeadActivation, DeadActivations
from statewise.health.graph.walk import walk
from statewise.health.readings import Readings

WIDTH = 64


class Net(nn.Module):
    """An activation between two layers."""

    def __init__(self, between: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor] = lambda y: y) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 4)
        self.between, self.after = between, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.head(self.between(self.inp(x))))


def looks(net: nn.Module, count: int = 6, silent: set[str] = frozenset(), rows: int = 16) -> Iterator[DeadActivation]:  # type: ignore[assignment]
    """What `count` looks at batches of their own say."""
    watch, readings = DeadUnits(), Readings()
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    for batch in range(count):
        x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(batch))
        watch.look(walk(net(x).square().mean()), names, readings, lambda node: "place", lambda: set(silent))
        for signal in readings.read():
            assert isinstance(signal, DeadActivations)
            yield from signal.dead


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("between", "name"),
    [
        (lambda h: torch.relu(h - 100), "Relu"),
        (lambda h: F.gelu(h - 100), "Gelu"),
        (lambda h: F.silu(h - 100), "Silu"),
        (lambda h: F.relu6(h - 100), "Hardtanh"),
        (lambda h: torch.tanh(1e4 * h), "Tanh"),
        (lambda h: torch.sigmoid(1e4 * h), "Sigmoid"),
        (lambda h: torch.sigmoid(h - 100), "Sigmoid"),
    ],
)
def test_three_looks_that_find_it_off_are_enough(between: Callable[[Tensor], Tensor], name: str) -> None:
    (dead,) = looks(Net(between))
    assert (dead.name, dead.looks, dead.place, dead.lost) == (name, 3, "place", ())
    assert set(dead.fed_by) == {"inp.weight", "inp.bias"}
    assert dead.share >= 0.95


def test_parameters_with_zero_gradients_are_its_consequence_if_they_have_no_other_way() -> None:
    silent = {"inp.weight", "inp.bias", "head.weight", "elsewhere"}
    _, worse = looks(Net(lambda h: torch.relu(h - 100)), silent=silent)
    assert worse.looks == 4
    assert set(worse.lost) == {"inp.weight", "inp.bias"}
    assert worse.starved == ("head.weight",)


def only_for_sure_samples(h: Tensor) -> Tensor:
    """Sparse by design: the two largest of 64 units for each sample."""
    return torch.relu(h - h.detach().topk(3, dim=-1).values[:, -1:])


def one_hot_gate(h: Tensor) -> Tensor:
    return h * torch.sigmoid(1e4 * (h - h.detach().topk(2, dim=-1).values.mean(-1, keepdim=True)))


@pytest.mark.parametrize(
    "between",
    [
        torch.relu,
        torch.tanh,
        only_for_sure_samples,
        one_hot_gate,
        lambda h: h * torch.softmax(100 * h, -1),
        # Off for half the samples, whatever the unit.
        lambda h: torch.relu(h - 100 * (h[:, :1] > 0)),
        # A constraint on a parameter is no activation.
        lambda h: h * F.relu6(PARAMETER - 100).sum(),
        # No number is another matter.
        lambda h: torch.tanh(h * float("nan")),
    ],
)
def test_what_looks_like_it_is_left_alone(between: Callable[[Tensor], Tensor]) -> None:
    net = Net(between)
    net.register_parameter("scale", PARAMETER)
    assert list(looks(net)) == []


PARAMETER = nn.Parameter(torch.ones(8, 8))


def test_a_model_that_is_sure_of_its_answer_is_left_alone() -> None:
    assert list(looks(Net(torch.relu, after=lambda y: torch.sigmoid(1e4 * y)))) == []
    # A hinge that is satisfied.
    assert list(looks(Net(torch.relu, after=lambda y: torch.relu(y - 100)))) == []


def test_a_batch_without_anything_in_it_is_no_proof() -> None:
    net = Net(torch.relu)
    with torch.no_grad():
        net.inp.bias.zero_()
    batches = iter([0.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    net.register_forward_pre_hook(lambda _, args: (args[0] * next(batches),))
    assert list(looks(net)) == []


def test_positions_that_are_padding_do_not_count_as_dead() -> None:
    mask = torch.zeros(32, 1)
    mask[0] = 1
    net = Net(lambda h: torch.relu(h[:, None] * mask))
    assert list(looks(net)) == []


def test_what_is_off_because_its_input_is_off_is_said_once() -> None:
    net = Net(lambda h: torch.relu(torch.relu(h - 100) @ torch.ones(WIDTH, WIDTH) - 1))
    assert [dead.name for dead in looks(net, count=12)] == ["Relu"]
