"""Activations that let no gradient through: what they saved shows which of their elements are off or saturated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from statewise.health.graph import saved
from statewise.health.graph.walk import LossGraph, given_leaves

# Below this many units a batch says nothing about shares.
_UNITS = 4
# Where the slope of an activation is below 2e-3, but for the last digit.
_SATURATED = 0.999


@dataclass(frozen=True)
class Activation:
    """One activation's call: how to name it, what it saved, and which of these elements let no gradient through."""

    node: Any
    name: str
    # The how-manieth of its name in the graph, and the shape of a sample: the same call is found again by them.
    number: int
    value: Tensor
    off: Callable[[Tensor], Tensor]
    # It has one side where it is off (ReLU) or two where it saturates (tanh).
    two_sided: bool


# (what was saved, two-sided, which elements are off); NaN is not off.
_KINDS: dict[str, tuple[str, bool, Callable[[Tensor], Tensor]]] = {
    "Relu": ("result", False, lambda value: value <= 0),
    "Gelu": ("self", False, lambda value: value <= -4),
    "Silu": ("self", False, lambda value: value <= -9),
    "Mish": ("self", False, lambda value: value <= -9),
    "Elu": ("self", False, lambda value: value <= -7),
    "Hardswish": ("self", False, lambda value: value <= -3),
    "Tanh": ("result", True, lambda value: value.abs() >= _SATURATED),
    "Sigmoid": ("result", True, lambda value: (value - 0.5).abs() >= _SATURATED / 2),
    "Hardsigmoid": ("self", True, lambda value: value.abs() >= 3),
    "Hardtanh": ("self", True, lambda value: value.abs() >= 1),
}


def activations(graph: LossGraph, is_weight: Callable[[Tensor], bool]) -> list[Activation]:
    """Those of hidden units: weights follow on the way to the loss, and more than weights lies under them.

    The last activation of a network may be saturated because the model is sure of its answer, and one in the loss
    (a hinge) may be off because the task is solved. An activation of a parameter is a constraint on it.

    Raises:
        CannotRead: where torch does not show what was saved.
    """
    found: list[Activation] = []
    counts: dict[str, int] = {}
    hidden: set[Any] | None = None
    for node, name in zip(graph.nodes, graph.operations, strict=True):
        kind = _KINDS.get(name)
        if kind is None:
            continue
        counts[name] = counts.get(name, 0) + 1
        attribute, two_sided, off = kind
        value = saved.saved(node, attribute)
        if name == "Hardtanh" and value is not None:
            low, high = saved.number(node, "min_val"), saved.number(node, "max_val")
            two_sided, off = low != 0, _beyond(low, high)
        if value is None or value.ndim < 2 or value[0].numel() < _UNITS or _of_a_parameter(node, value):
            continue
        hidden = _hidden(graph, is_weight) if hidden is None else hidden
        if node in hidden:
            found.append(Activation(node, name, counts[name], value.detach(), off, two_sided))
    return found


def _beyond(low: Any, high: Any) -> Callable[[Tensor], Tensor]:
    return lambda value: (value <= low) | (value >= high)


def _of_a_parameter(node: Any, value: Tensor) -> bool:
    """Whether one leaf of as many elements is all that lies under it: numbers of the batch would have made it larger."""
    children = [node]
    while len(children) == 1:
        leaf = getattr(children[0], "variable", None)
        if leaf is not None:
            return bool(leaf.numel() == value.numel())
        children = [child for child, _ in children[0].next_functions if child is not None]
    return False


def _hidden(graph: LossGraph, is_weight: Callable[[Tensor], bool]) -> set[Any]:
    """Operations whose result meets a weight further on: all that lies under an operation that is given one."""
    hidden: set[Any] = set()
    for node in graph.nodes:
        if node in hidden or not any(map(is_weight, given_leaves(node))):
            continue
        stack = [child for child, _ in node.next_functions if child is not None and child not in hidden]
        hidden.update(stack)
        while stack:
            for child, _ in stack.pop().next_functions:
                if child is not None and child not in hidden:
                    hidden.add(child)
                    stack.append(child)
    return hidden
