"""The autograd graph of one loss: its operations, and which leaves it reaches."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from statewise.health.graph.registered import registered
from statewise.health.graph.saved import RESHAPING, operation

_LIMIT = 500_000


@dataclass(frozen=True)
class LossGraph:
    """Everything reachable backwards from a loss.

    `edges` are (node, output number): a module's output is reached where (grad_fn, output_nr) is among them, and another
    output of the same node may not be. Nodes are kept as objects, because a node's Python wrapper is the same object only
    as long as somebody holds it.
    """

    dtype: torch.dtype
    leaves: dict[int, Tensor]
    edges: set[tuple[Any, int]]
    # Operations in the order of discovery, the same for the same forward pass.
    nodes: tuple[Any, ...]
    # False where the walk was given up (a graph of more than half a million nodes).
    complete: bool

    @cached_property
    def operations(self) -> tuple[str, ...]:
        """The names of the nodes: "Relu" for ReluBackward0."""
        return tuple(map(operation, self.nodes))

    @cached_property
    def compiled(self) -> bool:
        """Whether a part of it is one opaque piece."""
        return any(name.startswith("CompiledFunction") for name in self.operations)

    @cached_property
    def hides_leaves(self) -> bool:
        """Whether re-entrant checkpointing keeps a part of it, and its leaves, for the backward pass."""
        return any(name.startswith("CheckpointFunction") for name in self.operations)


def walk(loss: Tensor) -> LossGraph:
    """Walk the graph once; about 1 ms for 600 nodes."""
    leaves: dict[int, Tensor] = {}
    if loss.grad_fn is None:
        if loss.requires_grad:
            leaves[id(loss)] = loss
        return LossGraph(loss.dtype, leaves, set(), (), True)
    nodes: dict[Any, None] = {loss.grad_fn: None}
    edges: set[tuple[Any, int]] = {(loss.grad_fn, loss.output_nr)}
    stack: list[Any] = [loss.grad_fn]
    complete = True
    while stack:
        if len(nodes) > _LIMIT:
            complete = False
            break
        node = stack.pop()
        leaf = leaf_of(node)
        if leaf is not None:
            leaves[id(leaf)] = leaf
            continue
        for following, index in node.next_functions:
            if following is None:
                continue
            edges.add((following, index))
            if following not in nodes:
                nodes[following] = None
                stack.append(following)
    return LossGraph(loss.dtype, leaves, edges, tuple(nodes), complete)


def leaf_of(node: Any) -> Tensor | None:
    """The parameter (or another leaf) whose gradient a node accumulates; None for nodes that compute."""
    leaf: Tensor | None = registered(getattr(node, "variable", None))
    return leaf


def reaches(root: Any, wanted: Any) -> bool:
    """Whether `wanted` lies in the graph below `root`."""
    if root is wanted:
        return True
    seen, stack = {root}, [root]
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is wanted:
                return True
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return False


def given_leaves(node: Any) -> list[Tensor]:
    """The leaves that an operation is given, as they are or in another shape or type (a weight is transposed first)."""
    found = []
    for child, _ in node.next_functions:
        while child is not None and len(child.next_functions) == 1 and operation(child) in RESHAPING:
            child = child.next_functions[0][0]
        leaf = leaf_of(child)
        if leaf is not None:
            found.append(leaf)
    return found


def nearest_leaves(node: Any) -> list[Tensor]:
    """The leaves that feed an operation first: weight and bias of the layer before it."""
    level, seen = [node], {node}
    while level:
        found = [leaf for one in level for leaf in given_leaves(one)]
        if found:
            return found
        following = [child for one in level for child, _ in one.next_functions if child is not None]
        level = [child for child in dict.fromkeys(following) if child not in seen]
        seen.update(level)
    return []


def fed_weights(nodes: Iterable[Any], source: Any) -> list[Tensor]:
    """Leaves that are multiplied with the result of `source`: of the operations that take it, perhaps in another shape."""
    carriers, found = {source}, []
    for node in reversed(tuple(nodes)):
        children = [child for child, _ in node.next_functions if child is not None]
        if carriers.isdisjoint(children):
            continue
        if len(children) == 1:
            carriers.add(node)
        found += [leaf for leaf in given_leaves(node) if leaf.ndim > 1]
    return found


def leaves_without(root: Any, blocked: Iterable[Any]) -> set[int]:
    """Identities of the leaves that are reached from `root` by ways around the blocked operations."""
    seen = {root, *blocked}
    stack, found = [root], set()
    while stack:
        node = stack.pop()
        leaf = leaf_of(node)
        if leaf is not None:
            found.add(id(leaf))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found


def edge(tensor: Tensor) -> tuple[Any, int] | None:
    """Where a tensor stands in the graph; None for leaves."""
    return (tensor.grad_fn, tensor.output_nr) if tensor.grad_fn is not None else None
