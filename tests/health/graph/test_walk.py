"""Leaves of a loss's graph, and the ways through it."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from statewise.health.graph.walk import edge, fed_weights, leaves_without, nearest_leaves, reaches, walk


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


def test_operations_come_in_the_same_order_for_the_same_forward_pass() -> None:
    module, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.ones(4, 2)
    first, second = (walk(module(x).sum()) for _ in range(2))
    assert [node.name() for node in first.nodes] == [node.name() for node in second.nodes]
    assert first.nodes[0].name() == "SumBackward0"


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


def test_the_nearest_leaves_are_weight_and_bias_of_the_layer_before() -> None:
    first, second = nn.Linear(2, 3), nn.Linear(3, 2)
    h = torch.relu(second(torch.relu(first(torch.ones(4, 2)))))
    assert {id(leaf) for leaf in nearest_leaves(h.grad_fn)} == {id(second.weight), id(second.bias)}


def test_leaves_behind_a_blocked_operation_are_those_without_another_way() -> None:
    first, skip, head = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)
    x = torch.ones(4, 2)
    blocked = torch.relu(first(x))
    loss = head(blocked + skip(x)).sum()
    around = leaves_without(loss.grad_fn, [blocked.grad_fn])
    assert around == {id(p) for p in (*skip.parameters(), *head.parameters())}


def test_the_weights_that_an_operation_feeds_are_found_through_a_reshape() -> None:
    first, head = nn.Linear(2, 2), nn.Linear(2, 1)
    h = torch.relu(first(torch.ones(4, 2)))
    graph = walk(head(h.unsqueeze(1)).sum())
    assert [id(leaf) for leaf in fed_weights(graph.nodes, h.grad_fn)] == [id(head.weight)]


def test_re_entrant_checkpointing_is_known_to_hide_leaves() -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    assert walk(checkpoint(layer, x, use_reentrant=True).sum()).hides_leaves
    assert not walk(checkpoint(layer, x, use_reentrant=False).sum()).hides_leaves
