"""A prediction [b, 1] that met a target [b] on its way into the loss: b x b differences instead of b."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from statewise.health.graph import saved
from statewise.health.graph.walk import LossGraph

# From the loss down to where prediction and target meet: elementwise operations and plain averages. Anything else
# (a minimum, a logsumexp, a matrix product) makes a use of all pairs that somebody meant.
_ON_THE_WAY = frozenset(
    [
        "Mean",
        "Sum",
        "Pow",
        "Mul",
        "Div",
        "Add",
        "Sub",
        "Rsub",
        "Neg",
        "Abs",
        "Square",
        "Sqrt",
        "Log",
        "Log1P",
        "Log2",
        "Exp",
        "Where",
        "Clamp",
        "ClampMin",
        "ClampMax",
        "Relu",
        "Maximum",
        "Softplus",
        "ToCopy",
        "View",
        "Reshape",
        "UnsafeView",
        "Clone",
        "LogCosh",
        "MseLoss",
        "SmoothL1Loss",
        "HuberLoss",
        "Squeeze",
        "Nansum",
        "NanToNum",
    ]
)
_MEETINGS = frozenset({"Sub", "Rsub", "MseLoss", "SmoothL1Loss", "HuberLoss"})


@dataclass(frozen=True)
class Broadcast:
    """`node` combines a prediction of shape `prediction` with a constant and gives `result`: every pair of samples."""

    node: Any
    source: Any
    prediction: tuple[int, ...]
    result: tuple[int, ...]


def broadcasts(graph: LossGraph, batch_sizes: Collection[int], given: Collection[int]) -> tuple[Broadcast, ...]:
    """Differences (and products with a tensor of the batch) whose operand without gradient stretches the prediction.

    batch_sizes: lengths of the batch's tensors, empty where they are unknown; given: addresses of their storages.
    """
    if not graph.nodes:
        return ()
    root = graph.nodes[0]
    found, seen, stack = [], {root}, [root]
    while stack:
        node = stack.pop()
        if saved.operation(node) not in _ON_THE_WAY:
            continue
        one = _meeting(node, given)
        if one is not None and _is_every_pair(one, batch_sizes):
            found.append(one)
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return tuple(found)


def _meeting(node: Any, given: Collection[int]) -> Broadcast | None:
    """The prediction's side of an operation between it and one tensor without gradient, if it is stretched there."""
    name = saved.operation(node)
    operands = [(following, index) for following, index in node.next_functions[:2] if following is not None]
    if len(operands) != 1 or len(node.next_functions) < 2:
        return None
    if name not in _MEETINGS and not (name == "Mul" and _is_of_the_batch(node, given)):
        return None
    following, index = operands[0]
    result = saved.shape(node)
    if saved.operation(following) == "Expand":
        # The loss functions of torch.nn.functional stretch both sides before they subtract.
        result = saved.shape(following, index)
        following, index = following.next_functions[0]
    elif name not in {"Sub", "Rsub", "Mul"}:
        return None
    before = saved.shape(following, index) if following is not None else None
    if before is None or result is None or _adds_an_axis(following, before):
        return None
    return Broadcast(node, following, before, result)


def _is_every_pair(one: Broadcast, batch_sizes: Collection[int]) -> bool:
    """One axis was stretched, to the number of samples that the prediction has already."""
    padded = (1,) * (len(one.result) - len(one.prediction)) + one.prediction
    stretched = [new for old, new in zip(padded, one.result, strict=True) if old != new]
    if len(stretched) != 1 or not one.prediction:
        return False
    length = stretched[0]
    return length > 1 and one.prediction[0] == length and (not batch_sizes or length in batch_sizes)


def _is_of_the_batch(node: Any, given: Collection[int]) -> bool:
    """Whether the constant factor of a product is a tensor of the batch (a weight or a target of each sample)."""
    factors = [saved.saved(node, name) for name in ("self", "other")]
    return any(factor is not None and factor.untyped_storage().data_ptr() in given for factor in factors)


def _adds_an_axis(node: Any, result: tuple[int, ...]) -> bool:
    """Whether an axis of length 1 was made on purpose just before: all pairs are what is wanted."""
    name = saved.operation(node)
    if name == "Unsqueeze":
        return True
    if name not in {"View", "Reshape", "UnsafeView", "ReshapeAlias"}:
        return False
    following, index = node.next_functions[0]
    before = saved.shape(following, index) if following is not None else None
    if before is None:
        return False
    return len(before) < len(result) and [n for n in before if n != 1] == [n for n in result if n != 1]
