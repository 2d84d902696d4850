"""Probabilities that are taken for logits, and what looks like it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.health.graph.softmaxes import twice_normalised
from statewise.health.graph.walk import walk

LABELS = torch.tensor([0, 1, 2, 0])


def logits() -> Tensor:
    return torch.randn(4, 3, requires_grad=True)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o: F.cross_entropy(torch.softmax(o, -1), LABELS),
        lambda o: F.cross_entropy(o.softmax(-1).view(2, 2, 3).flatten(0, 1), LABELS),
        lambda o: F.cross_entropy(o.softmax(1).double(), LABELS),
        lambda o: torch.softmax(torch.softmax(o, -1), -1).square().sum(),
        lambda o: F.binary_cross_entropy_with_logits(torch.sigmoid(o), torch.ones(4, 3)),
    ],
)
def test_a_softmax_of_probabilities_is_found(loss: Callable[[Tensor], Tensor]) -> None:
    (one,) = twice_normalised(walk(loss(logits())))
    assert one.inner.name() in {"SoftmaxBackward0", "SigmoidBackward0"}


@pytest.mark.parametrize(
    "loss",
    [
        lambda o: F.cross_entropy(o, LABELS),
        # A log in between undoes the first one.
        lambda o: F.cross_entropy(torch.log(o.softmax(-1)), LABELS),
        lambda o: F.cross_entropy(o.log_softmax(-1), LABELS),
        # Attention: a matrix product lies in between.
        lambda o: F.cross_entropy(torch.softmax(o @ o.T, -1) @ o, LABELS),
        # Alternating between the axes (Sinkhorn), and both axes side by side.
        lambda o: torch.softmax(torch.softmax(o, 0), 1).square().sum(),
        lambda o: (torch.softmax(o, 0) * torch.softmax(o, 1)).square().sum(),
        # Distillation compares two distributions.
        lambda o: F.kl_div(o.log_softmax(-1), torch.full((4, 3), 1 / 3), reduction="batchmean"),
        lambda o: F.binary_cross_entropy_with_logits(o * torch.sigmoid(o), torch.ones(4, 3)),
    ],
)
def test_what_looks_like_it_is_left_alone(loss: Callable[[Tensor], Tensor]) -> None:
    assert twice_normalised(walk(loss(logits()))) == ()
