"""Where a graph changes between float64 and narrower types: casts to less, and operations that widen without a word."""

from dataclasses import dataclass
from typing import Any

import torch

from statewise.health.graph import saved
from statewise.health.graph.walk import LossGraph


@dataclass(frozen=True)
class TypeChange:
    """One operation whose result has another precision than what it was given.

    `implicit`: not a cast, but an operation on tensors of two types.
    """

    node: Any
    source: torch.dtype
    result: torch.dtype
    shape: tuple[int, ...]
    implicit: bool


_WIDE = frozenset({torch.float64, torch.complex128})
_NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32})


def type_changes(graph: LossGraph) -> tuple[TypeChange, ...]:
    """Casts from float64 to less, and float64 results of an operation that was given less.

    Only float64 (and complex128) is judged: narrower types are mixed on purpose all the time (autocast, norms in float32,
    kernels).

    Raises:
        CannotRead: where torch does not show types.
    """
    found: list[TypeChange] = []
    for node in graph.nodes:
        if not node.next_functions:
            continue
        cast = node.name().startswith("ToCopyBackward")
        result = saved.dtype(node)
        if result not in (_NARROW if cast else _WIDE):
            continue
        for following, index in node.next_functions:
            source = saved.dtype(following, index) if following is not None else None
            if source is not None and result is not None and source in (_WIDE if cast else _NARROW):
                found.append(TypeChange(node, source, result, saved.shape(node) or (), not cast))
    return tuple(found)
