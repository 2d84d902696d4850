"""Layers obey the law of their initial values for every option and every seed, and a generic initialisation breaks it."""

import copy
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from statewise.health.observers.laws import InitialLaws, LawWatch, StateMemory, _ask, _broken
from statewise.models import dense_ssm, diagonal_ssm
from statewise.models.dense_ssm import DenseSSM
from statewise.models.diagonal_ssm import DiagonalSSM
from statewise.models.gru import GRU
from statewise.models.mamba2 import Mamba2

SEEDS = range(8)


def options() -> Iterator[tuple[type[nn.Module], dict[str, Any]]]:
    """Every way in which a layer can begin, at odd sizes too."""
    for discretization, init, n in product(dense_ssm.DISCRETIZATIONS, dense_ssm.INITS, (1, 2, 5, 16)):
        if (discretization, init) != ("zoh", "uniform"):
            yield DenseSSM, {"d_model": 3, "d_state": n, "discretization": discretization, "init": init, "skip": n == 2}
    for discretization, init, n in product(diagonal_ssm.DISCRETIZATIONS, diagonal_ssm.INITS, (2, 8)):
        for bounds in ({}, {"step_min": 1e-3, "step_max": 0.1}, {"ring_min": 0.0, "ring_max": 0.0}, {"ring_phase": 0.1}):
            yield DiagonalSSM, {"d_model": 5, "d_state": n, "discretization": discretization, "init": init, **bounds}
    for bounds in ({}, {"dt_min": 1e-6}, {"dt_min": 0.1, "dt_max": 0.1}, {"A_init_range": (2.0, 2.0)}):
        yield Mamba2, {"d_model": 8, "headdim": 4, **bounds}


def broken(layer: nn.Module) -> list[str]:
    return [law.parameter for law in _broken([("ssm", layer, law) for law in layer.initial_laws()])]


def test_the_law_holds_for_every_option_every_seed_and_every_type() -> None:
    for (kind, arguments), seed in product(options(), SEEDS):
        torch.manual_seed(seed)
        layer = kind(**arguments)
        assert broken(layer) == [], (kind, arguments, seed)
        assert broken(copy.deepcopy(layer).double()) == [], (kind, arguments, seed)
        assert broken(layer.bfloat16()) == [], (kind, arguments, seed)


def test_no_layer_begins_with_a_dead_state() -> None:
    for kind, arguments in options():
        numbers, judge = _ask([("ssm", kind(**arguments))])
        for signal in judge(numbers.tolist()):
            (memory,) = signal.layers
            assert memory.frozen_share + memory.forgotten_share < 0.5, (kind, arguments, memory)


@pytest.mark.parametrize("init", [lambda p: nn.init.normal_(p, std=0.02), nn.init.zeros_, nn.init.ones_, nn.init.uniform_])
def test_a_generic_initialisation_breaks_the_law(init: Callable[[torch.Tensor], Any]) -> None:
    for kind, arguments in options():
        if arguments.get("d_state") == 1:
            continue  # one number may be anything
        layer = kind(**arguments)
        for parameter in layer.parameters():
            init(parameter)
        assert broken(layer) != [], (kind, arguments)
        assert set(broken(layer)) <= {f"ssm.{name}" for name, _ in layer.named_parameters()}


def test_loaded_values_have_a_history() -> None:
    layer = DiagonalSSM(d_model=4)
    nn.init.zeros_(layer.log_step)
    assert broken(layer) == ["ssm.log_step"]
    stack = nn.Sequential(layer)
    stack.load_state_dict(stack.state_dict())
    assert layer.initial_laws() == ()
    assert copy.deepcopy(layer).initial_laws() == ()


def test_a_layer_without_rates_has_no_law() -> None:
    assert not hasattr(GRU(d_model=2), "initial_laws")
    assert InitialLaws.waiting != StateMemory.waiting
    assert LawWatch().unable == {}


def test_a_rotation_keeps_its_known_norm() -> None:
    """sum of exp(-2 / time) over the states, whatever basis and order were drawn."""
    times = torch.logspace(torch.log10(torch.tensor(1.5)).item(), 2.0, 3, dtype=torch.float64).repeat_interleave(2)[:5]
    expected = torch.exp(-2 / times).sum().sqrt()
    for seed in SEEDS:
        torch.manual_seed(seed)
        found = DenseSSM(d_model=2, d_state=5).A.double().norm()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
