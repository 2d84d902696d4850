"""An output that does not have the shape of the targets is refused, with the settings that disagree."""

import pytest
import torch

from statewise.shapes import shaped_like_targets

SETTINGS = {"horizon": 2, "names": ("a", "b", "c"), "supervision": "last"}


def test_the_last_axis_becomes_horizon_and_targets():
    y = torch.arange(24.0).reshape(4, 1, 6)
    found = shaped_like_targets(y, torch.zeros(4, 1, 2, 3), **SETTINGS)
    assert found.shape == (4, 1, 2, 3)
    assert torch.equal(found.flatten(), y.flatten())


@pytest.mark.parametrize(
    ("y", "targets", "says"),
    [
        ((4, 1, 5), (4, 1, 2, 3), r"\[4, 1, 5\].*needs? \[batch, time, 6\]"),
        ((4, 6), (4, 1, 2, 3), r"\[4, 6\].*n_outputs = horizon x targets"),
        ((4, 1, 6), (3, 1, 2, 3), "not of the same windows"),
        ((4, 5, 6), (4, 1, 2, 3), "data.supervision and task.supervision=last disagree"),
        ((4, 1, 6), (4, 1, 1, 3), "data.horizon and the task's horizon=2 disagree"),
        ((4, 1, 6), (4, 1, 2, 1), r"data.targets and the task's targets \(a, b, c\) disagree"),
        ((4, 1, 6), (4, 2, 3), "or the batches are malformed"),
    ],
)
def test_other_shapes_are_refused_with_the_keys_that_disagree(y, targets, says):
    with pytest.raises(ValueError, match=says):
        shaped_like_targets(torch.zeros(y), torch.zeros(targets), **SETTINGS)
