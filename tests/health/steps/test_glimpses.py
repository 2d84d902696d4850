"""What an unwatched step shows: a gradient that is gone, or a few that are zero."""

import numpy as np
import torch
from torch import nn

from statewise.health.steps.glimpses import Glimpses


def with_gradients(count: int) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    return parameters


def test_a_missing_gradient_is_noticed_within_eight_steps() -> None:
    parameters = with_gradients(20)
    glimpses = Glimpses(parameters, on_cpu=True)
    glimpses.expect(np.ones(20, dtype=bool))
    assert not any(glimpses.alarm(step) for step in range(8))
    parameters[11].grad = None
    assert [step for step in range(8) if glimpses.alarm(step)] == [3]


def test_one_that_never_had_a_gradient_is_not_missed() -> None:
    parameters = with_gradients(3)
    parameters[1].grad = None
    glimpses = Glimpses(parameters, on_cpu=True)
    glimpses.expect(np.array([True, False, True]))
    assert not any(glimpses.alarm(step) for step in range(8))


def test_zeros_are_noticed_where_they_can_be_read_for_nothing() -> None:
    parameters = with_gradients(6)
    here, there = (Glimpses(parameters, on_cpu) for on_cpu in (True, False))
    for glimpses in (here, there):
        glimpses.choose(np.ones(6), np.full(6, 2.0))
    for parameter in parameters:
        parameter.grad = torch.zeros(2)
    assert [step for step in range(8) if here.alarm(step)] == [0, 4]
    assert not any(there.alarm(step) for step in range(8))
