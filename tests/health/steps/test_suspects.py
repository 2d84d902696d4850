"""Suspects are compared element by element: what moved, what came back, and where it was pushed."""

import pytest
import torch
from torch import nn

from statewise.health.steps.suspects import KEPT, Suspects, read_closer


def compared(suspects: Suspects, parameter: nn.Parameter, added: torch.Tensor) -> torch.Tensor:
    """One step that adds this: the numbers of its only suspect."""
    with torch.no_grad():
        suspects.before()
        parameter += added
        closer, _ = suspects.compare(torch.tensor([False]).numpy())
        suspects.end()
        suspects.forget()
    return closer[0]


def test_elements_that_moved_are_counted_beside_those_that_were_asked_to() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.tensor([1.0, 1.0, 1.0, 0.0])
    suspects = Suspects([parameter])
    suspects.name([0], 0)
    look = read_closer(compared(suspects, parameter, torch.tensor([1.0, 0.0, 0.0, 1.0])).numpy(), back_is_known=False)
    assert (look.asked, look.followed, look.changed, look.back) == (3.0, 1.0, 2.0, None)
    assert look.size == pytest.approx((3 / 4) ** 0.5)


@torch.no_grad()
def test_what_is_written_back_between_two_steps_came_back() -> None:
    parameter = nn.Parameter(torch.arange(10.0))
    parameter.grad = torch.ones(10)
    suspects = Suspects([parameter])
    suspects.name([0], 0)
    compared(suspects, parameter, torch.ones(10))
    parameter -= torch.tensor([1.0] * 5 + [0.0] * 5)
    assert read_closer(compared(suspects, parameter, torch.ones(10)).numpy(), back_is_known=True).back == 0.5


def test_a_suspect_is_dropped_when_its_time_is_over_and_nobody_suspects_it_anew() -> None:
    suspects = Suspects([nn.Parameter(torch.zeros(3))])
    assert not suspects
    suspects.name([0], 10)
    suspects.name([], 10 + KEPT - 1)
    assert suspects
    suspects.name([], 10 + KEPT)
    assert not suspects
