"""What the backward passes before an optimizer's first update show: leaves and gradients."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from statewise.health.attributes import HiddenTensor, scan_attributes
from statewise.health.graph.flow import Call
from statewise.health.graph.walk import LossGraph, walk
from statewise.health.parameters import Inventory
from statewise.health.signals import AlienLeaf, FirstBackward

_WALKS = 16


class FirstStep:
    """Collects graphs until the first update of every optimizer was judged.

    Attributes:
        awaited: whether the first update of any optimizer is still to come.
    """

    def __init__(self, optimizers: int) -> None:
        self.awaited = optimizers > 0
        self._optimizers, self._judged = optimizers, set[int]()
        self.graphs: list[LossGraph] = []
        self.backwards = 0
        self._after_backward: set[int] = set()

    def is_due(self, number: int) -> bool:
        """Whether this update is the first one of optimizer `number`: asked once, it is judged now."""
        if number in self._judged:
            return False
        self._judged.add(number)
        self.awaited = len(self._judged) < self._optimizers
        return True

    def add(self, loss: Tensor, walk: Callable[[Tensor], LossGraph] = walk) -> None:
        """Walk one loss's graph. A loop that accumulates over many batches is seen in its first sixteen."""
        self.backwards += 1
        if len(self.graphs) < _WALKS:
            self.graphs.append(walk(loss))

    def note_gradients(self, module: nn.Module) -> None:
        """Remember which parameters have a gradient right after a backward pass."""
        self._after_backward |= {id(p) for p in module.parameters() if p.grad is not None}

    def reached(self, inventory: Inventory) -> frozenset[str]:
        """Parameters that are leaves of any graph so far."""
        leaves = {key for graph in self.graphs for key in graph.leaves}
        return frozenset(fact.name for fact in inventory.parameters if fact.key in leaves)

    def facts(
        self,
        module: nn.Module,
        held: frozenset[str],
        inventory: Inventory,
        candidates: Mapping[int, tuple[HiddenTensor, Tensor]],
        calls: tuple[Call, ...],
        manual: bool,
        read: frozenset[str] = frozenset(),
    ) -> FirstBackward:
        """All of it, by name, for the optimizer that holds `held`."""
        by_key = {fact.key: fact.name for fact in inventory.parameters}
        leaves = {key: leaf for graph in self.graphs for key, leaf in graph.leaves.items()}
        return FirstBackward(
            held=held,
            reached=self.reached(inventory),
            with_gradient=frozenset(by_key[id(p)] for p in module.parameters() if p.grad is not None and id(p) in by_key),
            after_backward=frozenset(by_key[key] for key in self._after_backward if key in by_key),
            aliens=_aliens(module, {k: v for k, v in leaves.items() if k not in by_key}, inventory, candidates),
            calls=calls,
            backwards=self.backwards,
            complete=all(graph.complete for graph in self.graphs) and len(self.graphs) == self.backwards,
            manual=manual,
            read=read,
        )

    def clear(self) -> None:
        """Let go of the graphs."""
        self.graphs.clear()


def _aliens(
    module: nn.Module,
    leaves: Mapping[int, Tensor],
    inventory: Inventory,
    candidates: Mapping[int, tuple[HiddenTensor, Tensor]],
) -> tuple[AlienLeaf, ...]:
    if not leaves:
        return ()
    held = {stranger.key for stranger in inventory.strangers}
    named = {key: fact for key, (fact, _) in candidates.items()}
    if any(key not in named and isinstance(leaf, nn.Parameter) for key, leaf in leaves.items()):
        # Layers that were made in the first forward pass.
        named |= {key: fact for key, (fact, _) in scan_attributes(module).items() if fact.kind in {"module", "parameter"}}
    # An attribute that was computed from a parameter (a product, a cast): it names that parameter.
    for fact, tensor in candidates.values():
        if tensor.grad_fn is not None:
            named |= {key: fact for key in walk(tensor).leaves if key not in named}
    return tuple(
        AlienLeaf(
            shape=tuple(leaf.shape),
            is_parameter=isinstance(leaf, nn.Parameter),
            in_optimizer=key in held,
            hidden=named.get(key),
        )
        for key, leaf in leaves.items()
    )
