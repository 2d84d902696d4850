"""Changes between float64 and narrower types in a graph."""

import torch
from torch import nn

from statewise.health.graph.casts import type_changes
from statewise.health.graph.walk import walk


def test_a_cast_from_double_to_less_is_found_and_others_are_not() -> None:
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (cast,) = type_changes(walk((x.float() * 2).double().sum()))
    assert (cast.source, cast.result, cast.shape, cast.implicit) == (torch.float64, torch.float32, (3,), False)
    assert type_changes(walk((x * 2).sum())) == ()
    y = torch.ones(3, requires_grad=True)
    # Autocast narrows float32 all the time, and widening by a cast is meant.
    assert type_changes(walk((y.bfloat16() * 2).float().sum())) == ()
    assert type_changes(walk((y.double() * 2).sum())) == ()


def test_a_parameter_that_is_widened_without_a_word_is_found() -> None:
    scale = nn.Parameter(torch.ones(3))
    (change,) = type_changes(walk((scale * torch.ones(2, 3, dtype=torch.float64)).sum()))
    assert (change.source, change.result, change.implicit) == (torch.float32, torch.float64, True)
    assert change.node.name() == "MulBackward0"


def test_complex_numbers_have_a_precision_too() -> None:
    x = torch.ones(3, dtype=torch.complex128, requires_grad=True)
    (cast,) = type_changes(walk(x.to(torch.complex64).abs().sum()))
    assert (cast.source, cast.result) == (torch.complex128, torch.complex64)
    assert type_changes(walk(x.abs().sum())) == ()
