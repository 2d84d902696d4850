from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from statewise.models.state import leaves, map_state, with_leaves


class Cache(NamedTuple):
    conv: Tensor
    inner: tuple[Tensor, ...]


def nested():
    return (torch.zeros(2), Cache(torch.ones(2, 3), (torch.full((2,), 2.0), torch.full((2, 1), 3.0))), ())


def test_the_leaves_come_depth_first_in_the_order_of_the_fields():
    assert [float(leaf.flatten()[0]) for leaf in leaves(nested())] == [0.0, 1.0, 2.0, 3.0]
    alone = torch.zeros(4)
    assert leaves(alone)[0] is alone


def test_a_state_is_rebuilt_with_its_types_from_other_leaves():
    given = [leaf + 1 for leaf in leaves(nested())]
    rebuilt = with_leaves(nested(), given)

    assert [type(part) for part in rebuilt] == [Tensor, Cache, tuple]
    assert type(rebuilt[1].inner) is tuple
    assert all(one is other for one, other in zip(leaves(rebuilt), given, strict=True))


def test_a_function_meets_the_tensors_that_stand_at_the_same_place():
    summed = map_state(lambda one, other: one + 10 * other, nested(), nested())

    assert isinstance(summed[1], Cache)
    for leaf, was in zip(leaves(summed), leaves(nested()), strict=True):
        assert torch.equal(leaf, 11 * was)


@pytest.mark.parametrize("count", [3, 5])
def test_leaves_of_another_model_are_refused(count):
    with pytest.raises(ValueError, match=f"this state has 4 tensors, got {count}"):
        with_leaves(nested(), [torch.zeros(2)] * count)


def test_states_of_two_models_do_not_mix():
    with pytest.raises(ValueError, match=r"states of \[4, 1\] tensors belong to different models"):
        map_state(torch.add, nested(), torch.zeros(2))


@pytest.mark.parametrize("stranger", [None, 1.0, [torch.zeros(2)]], ids=["None", "a number", "a list"])
def test_what_is_no_tensor_and_no_tuple_is_refused(stranger):
    with pytest.raises(TypeError, match=f"a state holds tensors and tuples of them, got {type(stranger).__name__}"):
        leaves((torch.zeros(2), stranger))
