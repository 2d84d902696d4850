"""Leaves and casts of a loss's graph."""

import torch
from torch import nn

from statewise.health.graph import edge, reaches, walk


def test_the_leaves_of_a_graph_are_the_tensors_that_would_get_gradients() -> None:
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    graph = walk((used * torch.ones(3)).sum())
    assert set(graph.leaves) == {id(used)}
    assert id(unused) not in graph.leaves
    assert graph.complete


def test_a_loss_that_is_a_leaf_reaches_itself_only() -> None:
    loss = torch.tensor(1.0, requires_grad=True)
    assert set(walk(loss).leaves) == {id(loss)}
    assert walk(torch.tensor(1.0)).leaves == {}


def test_a_cast_from_double_to_less_is_found_and_others_are_not() -> None:
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (narrowing,) = walk((x.float() * 2).double().sum()).narrowings
    assert (narrowing.source, narrowing.result) == (torch.float64, torch.float32)
    assert walk((x * 2).sum()).narrowings == ()
    y = torch.ones(3, requires_grad=True)
    assert walk((y.double() * 2).float().sum()).narrowings != ()
    # Autocast narrows float32 all the time: that is no fault.
    assert walk((y.bfloat16() * 2).float().sum()).narrowings == ()


def test_an_edge_tells_two_outputs_of_one_node_apart() -> None:
    first, second = torch.ones(4, requires_grad=True).split(2)
    graph = walk(first.sum())
    assert edge(first) in graph.edges
    assert edge(second) not in graph.edges
    assert edge(torch.ones(1)) is None


def test_reaches_looks_backwards_only() -> None:
    x = torch.ones(3, requires_grad=True)
    middle = x * 2
    end = middle.sum()
    assert reaches(end.grad_fn, middle.grad_fn)
    assert not reaches(middle.grad_fn, end.grad_fn)
