"""What is drawn in a batch depends on the place of the batch in the run, and on nothing before it."""

import random

import numpy as np
import pytest
import torch

from statewise.callbacks.exact_order import sow


def drawn(*place):
    sow(*place)
    return torch.rand(1).item(), random.random(), np.random.rand()  # noqa: NPY002


def test_every_global_generator_is_at_the_same_place_again():
    first = drawn(1, 23)
    torch.rand(5)
    random.random()
    assert drawn(1, 23) == first


@pytest.mark.parametrize("other", [(2, 23), (1, 24), (1, 23, 1)], ids=["seed", "position", "process"])
def test_another_seed_position_or_process_draws_other_numbers(other):
    assert all(a != b for a, b in zip(drawn(1, 23), drawn(*other), strict=True))
