"""Shapes, types and saved values of operations, and what is said where torch does not show them."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statewise.health.graph import saved


def test_an_operation_has_a_name_a_shape_and_a_type() -> None:
    node = torch.relu(torch.ones(2, 3, dtype=torch.float64, requires_grad=True) * 2).grad_fn
    assert (saved.operation(node), saved.shape(node), saved.dtype(node)) == ("Relu", (2, 3), torch.float64)
    assert saved.shape(node, 7) is None


def test_what_was_saved_is_read_as_it_lies() -> None:
    result = torch.relu(torch.tensor([[1.0, -1.0]], requires_grad=True) * 1)
    kept = saved.saved(result.grad_fn, "result")
    assert kept is not None
    assert kept.tolist() == [[1.0, 0.0]]
    result.sum().backward()
    assert saved.saved(result.grad_fn, "result") is None


def test_what_checkpointing_keeps_elsewhere_is_not_asked_for() -> None:
    calls = 0

    def forward(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.relu(layer(x))

    layer = nn.Linear(2, 2)
    out = checkpoint(forward, torch.ones(1, 2), use_reentrant=False)
    assert saved.saved(out.grad_fn, "result") is None
    assert calls == 1


def test_a_torch_that_shows_nothing_is_told() -> None:
    blind = SimpleNamespace(name=lambda: "ReluBackward0")
    with pytest.raises(saved.CannotRead, match="does not show the shapes and types of ReluBackward0"):
        saved.shape(blind)
    with pytest.raises(saved.CannotRead, match="does not show what ReluBackward0 saved as result"):
        saved.saved(blind, "result")
    halfway = SimpleNamespace(name=lambda: "ReluBackward0", _raw_saved_result=object())
    with pytest.raises(saved.CannotRead, match="hooks"):
        saved.saved(halfway, "result")
