"""The operation in whose backward pass the first number that is none appears."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from statewise.health.graph.saved import RESHAPING
from statewise.health.graph.walk import LossGraph

# What passes a finite gradient on as finite numbers. A cast does not: it may overflow.
_HARMLESS = RESHAPING - {"ToCopy"} | {"Add", "Sub", "Neg"}


class GradientOrigin:
    """Hooks on the nodes of one graph; nothing is read before `node` asks. Hold it no longer than the backward pass needs."""

    def __init__(self, graph: LossGraph) -> None:
        self._nodes = graph.nodes
        self._seen: list[tuple[int, Tensor]] = []
        self._handles: list[RemovableHandle] = []
        for number, (node, name) in enumerate(zip(graph.nodes, graph.operations, strict=True)):
            if name not in _HARMLESS and not hasattr(node, "variable"):
                self._handles.append(node.register_hook(self._listener(number)))

    def _listener(self, number: int) -> Any:
        # The number, not the node: a hook that holds its own node is never let go.
        seen = self._seen

        def listen(given: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]) -> None:
            floats = [g.detach() for g in given if g is not None and g.is_floating_point() and not g.is_sparse]
            if floats:
                # A sum that is finite is enough; one that is not may have overflowed.
                total = sum(g.sum(dtype=torch.float32) for g in floats[1:]) + floats[0].sum(dtype=torch.float32)
                seen.append((number, total))

        return listen

    def node(self) -> Any:
        """The first operation whose result is not finite, in the order of the backward pass; None where there is none."""
        if not self._seen:
            return None
        finite = torch.isfinite(torch.stack([total.cpu() for _, total in self._seen])).tolist()
        return next((self._nodes[n] for (n, _), fine in zip(self._seen, finite, strict=True) if not fine), None)

    def clear(self) -> None:
        """Take the hooks off and let go of the graph."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()
        self._nodes = ()
