"""Softmax (or sigmoid) of what is a probability already."""

from dataclasses import dataclass
from typing import Any

from statewise.health.graph import saved
from statewise.health.graph.walk import LossGraph

_OUTER = {"Softmax": "Softmax", "LogSoftmax": "Softmax", "BinaryCrossEntropyWithLogits": "Sigmoid"}


@dataclass(frozen=True)
class TwiceNormalised:
    """`inner` gives probabilities, `outer` takes them for logits."""

    outer: Any
    inner: Any


def twice_normalised(graph: LossGraph) -> tuple[TwiceNormalised, ...]:
    """Pairs of the same kind with nothing but reshaping in between. (A log of probabilities in between undoes the first.)"""
    found = []
    for node, name in zip(graph.nodes, graph.operations, strict=True):
        wanted = _OUTER.get(name)
        inner = _beneath(node) if wanted is not None else None
        if inner is not None and saved.operation(inner) == wanted and _same_axis(node, inner):
            found.append(TwiceNormalised(node, inner))
    return tuple(found)


def _beneath(node: Any) -> Any:
    """The first operation under `node` that does more than reshape."""
    following = node.next_functions[0][0] if node.next_functions else None
    while following is not None and saved.operation(following) in saved.RESHAPING and following.next_functions:
        following = following.next_functions[0][0]
    return following


def _same_axis(outer: Any, inner: Any) -> bool:
    """Alternating between axes (Sinkhorn) is another matter; after reshaping nobody can tell."""
    if outer.next_functions[0][0] is not inner:
        return True
    dims = [saved.number(node, "dim") for node in (outer, inner)]
    length = len(saved.shape(inner) or ())
    if not length or not all(isinstance(dim, int) for dim in dims):
        return True
    first, second = ((dim - 2**64 if dim >= 2**63 else dim) % length for dim in dims)
    return bool(first == second)
