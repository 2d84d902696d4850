"""Where in the backward pass the first number appears that is none."""

import gc
import weakref

import torch
from torch import nn

from statewise.health.graph.gradient_origin import GradientOrigin
from statewise.health.graph.walk import walk


def test_the_operation_that_makes_the_first_nan_is_named() -> None:
    layer = nn.Linear(2, 2)
    h = layer(torch.ones(4, 2))
    loss = (h + torch.sqrt(0 * h)).square().sum()
    origin = GradientOrigin(walk(loss))
    loss.backward()
    assert origin.node().name() == "SqrtBackward0"
    origin.clear()


def test_finite_gradients_have_no_origin_and_are_the_same_as_without_hooks() -> None:
    def gradient(watched: bool) -> torch.Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(2, 2)
        loss = torch.tanh(layer(torch.ones(4, 2))).sum()
        origin = GradientOrigin(walk(loss)) if watched else None
        loss.backward()
        if origin is not None:
            assert origin.node() is None
            origin.clear()
        assert layer.weight.grad is not None
        return layer.weight.grad

    assert torch.equal(gradient(True), gradient(False))


def test_nothing_of_the_graph_is_kept_alive() -> None:
    x = torch.ones(3, requires_grad=True)
    kept = torch.zeros(3)
    reference = weakref.ref(kept)
    loss = (x * kept).sum()
    del kept
    origin = GradientOrigin(walk(loss))
    origin.clear()
    del loss, origin
    gc.collect()
    assert reference() is None
