"""The first difference of two runs has a name, a place and both values."""

import math

import pytest
import torch

from statewise.sameness import first_difference


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"a": torch.zeros(2, 3)}, {"a": torch.tensor([[0.0, 0, 0], [0, 1, 2]])}, "x a[1, 1] is 1.0 and not 0.0"),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.float64)}, "the form of x a is '[2] torch.float64' and not"),
        ([1, [2, 3]], [1, [2, 4]], "x[1][1] is 4 and not 3"),
        ([1], [1, 2], "the length of x is 2 and not 1"),
        ({"a": 1}, {}, "x a is None and not 1"),
        ({}, {"a": 1}, "x a is 1 and not None"),
        ({"a": 1}, {"a": 1.0}, "x a is 1.0 and not 1"),
        (1.0, 1.0 + 2**-52, "x is 1.0000000000000002 and not 1.0"),
    ],
)
def test_the_first_leaf_that_differs_is_named(one, other, said):
    assert said in str(first_difference(one, other, "x"))


def test_equal_trees_have_none_and_nan_is_itself():
    tree = {"a": [1, math.nan, torch.tensor([math.nan, 1.0])], "b": (True, None, "c", torch.tensor(1j))}
    again = {"a": [1, math.nan, torch.tensor([math.nan, 1.0])], "b": (True, None, "c", torch.tensor(1j))}
    assert first_difference(tree, again, "x") is None
