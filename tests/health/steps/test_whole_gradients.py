"""A gradient whose block is zero is measured whole; others are not."""

import numpy as np
import pytest
import torch
from torch import nn

from statewise.health.steps.fingerprint import Fingerprint
from statewise.health.steps.whole_gradients import largest


@pytest.mark.parametrize(("on_cpu", "measured"), [(True, {1: 5.0}), (False, {0: 1.0, 1: 5.0, 2: 0.0})])
def test_only_where_a_block_says_nothing_is_the_rest_looked_at(on_cpu: bool, measured: dict[int, float]) -> None:
    parameters = [nn.Parameter(torch.ones(100)), nn.Parameter(torch.ones(100)), nn.Parameter(torch.ones(3))]
    gradients = [torch.ones(100), torch.zeros(100), torch.zeros(3)]
    gradients[1][0] = -5.0
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    blocks = Fingerprint(parameters)
    with torch.no_grad():
        found = largest(parameters, blocks, blocks.gradients(), np.zeros(3, dtype=bool), on_cpu)
    assert {index: float(value) for index, value in found.items()} == measured


def test_a_sparse_gradient_is_measured_by_its_entries() -> None:
    parameter = nn.Parameter(torch.ones(50, 2))
    dense = torch.zeros(50, 2)
    dense[3, 1] = 7.0
    parameter.grad = dense.to_sparse()
    blocks = Fingerprint([parameter])
    with torch.no_grad():
        found = largest([parameter], blocks, blocks.gradients(), np.zeros(1, dtype=bool), True)
    assert float(found[0]) == 7.0
