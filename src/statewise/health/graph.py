"""The autograd graph of one loss: which leaves it reaches, and where it loses precision on the way."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LIMIT = 500_000


@dataclass(frozen=True)
class Narrowing:
    """A cast inside the graph from a wide to a narrow float."""

    node: Any
    source: torch.dtype
    result: torch.dtype


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
    narrowings: tuple[Narrowing, ...]
    # False where the walk was given up (a graph of more than half a million nodes).
    complete: bool


def walk(loss: Tensor) -> LossGraph:
    """Walk the graph once; about 1 ms for 600 nodes."""
    leaves: dict[int, Tensor] = {}
    narrowings: list[Narrowing] = []
    if loss.grad_fn is None:
        if loss.requires_grad:
            leaves[id(loss)] = loss
        return LossGraph(loss.dtype, leaves, set(), (), True)
    nodes: set[Any] = {loss.grad_fn}
    edges: set[tuple[Any, int]] = {(loss.grad_fn, loss.output_nr)}
    stack: list[Any] = [loss.grad_fn]
    while stack:
        if len(nodes) > _LIMIT:
            return LossGraph(loss.dtype, leaves, edges, tuple(narrowings), False)
        node = stack.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves[id(leaf)] = leaf
            continue
        for following, index in node.next_functions:
            if following is None:
                continue
            if node.name().startswith("ToCopyBackward"):
                narrowing = _narrowing(node, following, index)
                if narrowing is not None:
                    narrowings.append(narrowing)
            edges.add((following, index))
            if following not in nodes:
                nodes.add(following)
                stack.append(following)
    return LossGraph(loss.dtype, leaves, edges, tuple(narrowings), True)


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


def _narrowing(node: Any, following: Any, index: int) -> Narrowing | None:
    # Private attributes of torch: without them this check finds nothing, and everything else goes on.
    try:
        result = node._input_metadata[0].dtype
        source = following._input_metadata[index].dtype
    except (AttributeError, IndexError):
        return None
    if source is torch.float64 and result.is_floating_point and result.itemsize < source.itemsize:
        return Narrowing(node, source, result)
    return None


def edge(tensor: Tensor) -> tuple[Any, int] | None:
    """Where a tensor stands in the graph; None for leaves."""
    return (tensor.grad_fn, tensor.output_nr) if tensor.grad_fn is not None else None
