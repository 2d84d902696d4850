"""An optimizer that counts its steps says whether it made one."""

import torch
from torch import nn
from torch.optim import SGD, Adam

from statewise.health.steps.own_count import OwnCount


def pair(kind: type[torch.optim.Optimizer]) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter, kind([parameter], lr=0.1)


def test_a_step_that_is_made_is_counted_and_one_that_is_not_stands_still() -> None:
    parameter, optimizer = pair(Adam)
    count = OwnCount(optimizer)
    count.take([parameter])
    assert count.stood_still()
    optimizer.step()
    assert not count.stood_still()
    count.take([parameter])
    assert count.stood_still()
    optimizer.step()
    assert not count.stood_still()


def test_one_that_does_not_count_and_a_step_without_gradients_say_nothing() -> None:
    parameter, optimizer = pair(SGD)
    count = OwnCount(optimizer)
    count.take([parameter])
    assert not count.stood_still()
    parameter, optimizer = pair(Adam)
    parameter.grad = None
    count = OwnCount(optimizer)
    count.take([parameter])
    assert not count.stood_still()
