"""A block of every parameter: the same elements of values and gradients, whatever their memory looks like."""

import numpy as np
import pytest
import torch
from torch import nn

from statewise.health.steps.fingerprint import Fingerprint


def filled(*parameters: nn.Parameter) -> Fingerprint:
    """Every gradient is twice the value, so that one tells where the other came from."""
    for parameter in parameters:
        parameter.grad = 2 * parameter.detach()
    return Fingerprint(parameters)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(), (1,), (7,), (100,), (20, 30), (3, 4, 5, 6)])
def test_values_and_gradients_are_of_the_same_elements(shape: tuple[int, ...]) -> None:
    blocks = filled(nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(5)))
    assert torch.equal(blocks.gradients(), 2 * blocks.values())
    # A second time through the kept views.
    assert torch.equal(blocks.gradients(), 2 * blocks.values())
    assert blocks.complete.tolist() == [int(np.prod(shape)) <= 32, True]


@torch.no_grad()
def test_odd_memory_layouts_keep_value_and_gradient_together() -> None:
    parameter = nn.Parameter(torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last))
    strided = nn.Parameter(torch.randn(10, 20)[:, ::2])
    blocks = Fingerprint([parameter, strided])
    parameter.grad = (2 * parameter.detach()).contiguous()
    strided.grad = (2 * strided.detach()).t().contiguous().t()
    assert torch.equal(blocks.gradients(), 2 * blocks.values())
    assert torch.equal(blocks.gradients(), 2 * blocks.values())


@torch.no_grad()
def test_a_gradient_that_is_a_view_into_a_buffer_is_read_at_its_own_place() -> None:
    parameter = nn.Parameter(torch.randn(40))
    blocks = Fingerprint([parameter])
    blocks.values()
    parameter.grad = torch.cat([torch.zeros(13), 2 * parameter.detach(), torch.zeros(9)])[13:53]
    assert torch.equal(blocks.gradients(), 2 * blocks.values())


@torch.no_grad()
def test_a_value_that_got_other_storage_is_followed() -> None:
    parameter = nn.Parameter(torch.zeros(50))
    blocks = filled(parameter)
    assert not blocks.values().any()
    parameter.data = torch.ones(50)
    assert blocks.values().all()
    parameter.data.fill_(3.0)
    assert (blocks.values() == 3.0).all()


@torch.no_grad()
def test_absent_and_sparse_gradients_are_not_numbers_and_types_may_mix() -> None:
    parameters = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.float64, torch.bfloat16, torch.float32)]
    table = nn.Parameter(torch.ones(6, 2))
    blocks = filled(*parameters, table)
    parameters[1].grad = None
    table.grad = torch.ones(6, 2).to_sparse()
    sums = blocks.sums(blocks.gradients().numpy())
    assert sums[[0, 2]].tolist() == [4.0, 4.0]
    assert np.isnan(sums[[1, 3]]).all()
