"""Losses over all pairs of predictions and targets by mistake, and on purpose."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.health.graph.broadcasts import broadcasts
from statewise.health.graph.walk import walk

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")
B = 8
X, Y = torch.randn(B, 3), torch.randn(B)
LAYER = nn.Linear(3, 1)


def found(loss: Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    given = {tensor.untyped_storage().data_ptr() for tensor in (X, Y)}
    return [(one.prediction, one.result) for one in broadcasts(walk(loss), {B}, given)]


@pytest.mark.parametrize(
    ("loss", "prediction"),
    [
        (lambda p: F.mse_loss(p, Y), (B, 1)),
        (lambda p: F.l1_loss(p, Y), (B, 1)),
        (lambda p: F.smooth_l1_loss(p, Y), (B, 1)),
        (lambda p: F.huber_loss(p, Y), (B, 1)),
        (lambda p: ((p - Y) ** 2).mean(), (B, 1)),
        (lambda p: ((Y - p) ** 2).mean(), (B, 1)),
        (lambda p: (p.squeeze(1) - Y[:, None]).abs().mean(), (B,)),
        (lambda p: ((p * 3 + 1 - Y) ** 2).sum(1).mean().sqrt(), (B, 1)),
        (lambda p: -(Y * F.logsigmoid(p)).mean(), (B, 1)),
    ],
)
def test_a_prediction_that_meets_a_target_of_another_shape_is_found(
    loss: Callable[[Tensor], Tensor], prediction: tuple[int, ...]
) -> None:
    assert found(loss(LAYER(X))) == [(prediction, (B, B))]


def test_a_prediction_with_an_axis_of_its_own_is_found_too() -> None:
    prediction = nn.Linear(3, 4)(torch.randn(B, 5, 3))[:, -1:]
    assert found(F.mse_loss(prediction, torch.randn(B, 4))) == [((B, 1, 4), (B, B, 4))]


@pytest.mark.parametrize(
    "loss",
    [
        lambda p: F.mse_loss(p, Y[:, None]),
        lambda p: F.mse_loss(p.squeeze(1), Y),
        # Pairs of predictions: ranking.
        lambda p: F.softplus(-(p - p.T) * torch.sign(Y[:, None] - Y)).mean(),
        # All pairs on purpose: the axis was added just before.
        lambda p: torch.exp(-((p[:, None] - Y[None, :, None]) ** 2)).mean(),
        lambda p: torch.cdist(p, Y[:, None]).mean(),
        # The nearest target, a likelihood of a mixture.
        lambda p: (p - Y).abs().min(1).values.mean(),
        lambda p: -torch.logsumexp(-((p - Y) ** 2), 1).mean(),
        # Quantiles: the constant has another length; the target is stretched, not the prediction.
        lambda p: ((p - Y[:, None]) * torch.tensor([0.1, 0.5, 0.9])).clamp(min=0).mean(),
        lambda p: (p.expand(B, 3) - Y[:, None]).abs().mean(),
        # Weights of each sample in the shape of the prediction.
        lambda p: ((p - Y[:, None]) ** 2 * Y.abs()[:, None]).mean(),
        lambda p: (p - 0.5).square().mean(),
        lambda p: (p - torch.randn(1)).square().mean(),
    ],
)
def test_what_looks_like_it_is_left_alone(loss: Callable[[Tensor], Tensor]) -> None:
    assert found(loss(LAYER(X))) == []


def test_as_many_quantiles_as_samples_are_no_pairs_of_samples() -> None:
    prediction = nn.Linear(3, B)(X)
    assert found((prediction - Y[:, None]).abs().mean()) == []


def test_one_sample_cannot_be_stretched() -> None:
    assert broadcasts(walk(((LAYER(X[:1]) - Y[:1]) ** 2).mean()), {1}, ()) == ()


def test_a_constant_as_long_as_no_batch_is_something_else() -> None:
    loss = ((LAYER(X) - Y) ** 2).mean()
    assert broadcasts(walk(loss), {B + 1}, ()) == ()
    # Where nobody says how long a batch is, the prediction's own length decides.
    assert len(broadcasts(walk(loss), (), ())) == 1
