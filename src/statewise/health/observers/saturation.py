"""Exponentials in anybody's forward pass that round to 1, or to 0, together with gradients that vanish because of it."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from statewise.health.graph.registered import in_parts
from statewise.health.graph.walk import leaf_of, walk
from statewise.health.observer import Observer, Run
from statewise.health.signals import Signal

# Batches whose graph is looked at: the first, and then each so many times as late as the one before.
_GROWTH = 8
# Exponentials that are read, elements of each, operations between one and the parameters that feed it, and of those.
_EXPONENTIALS, _SAMPLE, _LEVELS, _PARAMETERS = 64, 4096, 12, 16
# Share of the elements that must be saturated; consecutive updates with vanished gradients.
_SHARE, _STEPS = 0.99, 3
# A gradient below so many units of rounding beside the largest of the model has vanished.
_VANISHED = 16.0


@dataclass(frozen=True)
class SaturatedExponential(Signal):
    """An exponential of parameters is 1, or 0, to rounding, and gradients of parameters beside it have vanished since."""

    waiting: ClassVar[str] = "no exponential of parameters was found saturated"

    one: bool
    share: float
    vanished: tuple[str, ...]
    largest: float
    steps: int


@dataclass
class _Suspect:
    one: bool
    share: float
    # Parameters that feed the exponential, and those beside them, in one order with `gradients`.
    feeding: frozenset[str]
    around: dict[str, nn.Parameter]
    run: int = 0
    told: bool = False
    vanished: frozenset[str] = field(default_factory=frozenset)


class SaturationWatch(Observer):
    """Reads what the exponentials of a loss's graph gave, and if one is saturated, gradients at the next updates.

    A zero-initialised exponent gives 1 as well: its gradients are those of a living function, and nothing is said.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = 1
        self._suspects: list[_Suspect] = []

    def start(self, run: Run) -> Iterator[Signal]:
        """A new fit begins with its first batch."""
        self._next, self._suspects = 1, []
        if in_parts(run.module):
            # A part of a gradient may have vanished where the whole has not.
            self._next, self.unable[SaturatedExponential] = sys.maxsize, "the parameters are sharded over processes"
        return iter(())

    def backward(self, run: Run, loss: Tensor) -> Iterator[Signal]:
        """While the graph stands and its results are kept."""
        if run.batch < self._next or loss.grad_fn is None:
            return iter(())
        self._next = run.batch * _GROWTH
        self._suspects = [suspect for suspect in self._suspects if suspect.told or suspect.run]
        try:
            nodes = [node for node in walk(loss).nodes if node.name().startswith("ExpBackward")][:_EXPONENTIALS]
            results = [node._saved_result.detach() for node in nodes]
        except (AttributeError, RuntimeError) as error:
            self.unable[SaturatedExponential] = f"torch keeps the results of exponentials elsewhere: {error}"
            return iter(())
        kept = [(node, result) for node, result in zip(nodes, results, strict=True) if result.numel() > 1]
        if kept:
            shares = torch.stack([_shares(result) for _, result in kept]).tolist()
            for (node, _), (one, zero) in zip(kept, shares, strict=True):
                if max(one, zero) >= _SHARE:
                    self._suspect(run, node, one >= _SHARE, max(one, zero))
        return iter(())

    def _suspect(self, run: Run, node: Any, one: bool, share: float) -> None:
        names = {fact.key: fact for fact in run.inventory.parameters}
        feeding = [names[id(leaf)] for leaf in _near_leaves(node) if id(leaf) in names]
        owners = {fact.module for fact in feeding}
        # Layers that tell of their states are asked, which says more.
        if any(callable(getattr(run.module.get_submodule(owner), "state_memory", None)) for owner in owners):
            return
        if (
            not feeding
            or len(feeding) > _PARAMETERS
            or any(set(s.feeding) == {f.name for f in feeding} for s in self._suspects)
        ):
            return
        tensors = {id(p): p for p in run.module.parameters()}
        around = {f.name: tensors[f.key] for f in names.values() if f.module in owners and f.requires_grad and f.key in tensors}
        self._suspects.append(_Suspect(one, share, frozenset(f.name for f in feeding), around))

    def before_update(self, run: Run, number: int) -> Iterator[Signal]:
        """How large the gradients around a suspect are beside the largest of all."""
        waiting = [suspect for suspect in self._suspects if not suspect.told]
        if not waiting or not any(float(group.get("lr", 0.0)) > 0 for group in run.optimizers[number].param_groups):
            return iter(())
        everything = [p.grad for g in run.optimizers[number].param_groups for p in g["params"] if p.grad is not None]
        dense = [gradient for gradient in everything if gradient.layout is torch.strided and gradient.numel()]
        if any(suspect.run for suspect in waiting):
            run.listen = max(run.listen, 1)
        for suspect in waiting:
            own = {n: p.grad for n, p in suspect.around.items() if p.grad is not None and p.grad.layout is torch.strided}
            if own and dense:
                sizes = torch._foreach_norm([*own.values(), *dense], float("inf"))
                eps = max(torch.finfo(gradient.dtype).eps for gradient in own.values())
                numbers = torch.stack([size.to(device=sizes[0].device, dtype=torch.float32) for size in sizes])
                run.readings.ask(numbers, _judge(suspect, tuple(own), eps, run))
        return iter(())

    def close(self) -> None:
        """Let go of the parameters."""
        self._suspects = []


def _judge(suspect: _Suspect, names: Sequence[str], eps: float, run: Run) -> Any:
    def judge(numbers: list[float]) -> list[Signal]:
        largest = max(numbers)
        vanished = frozenset(n for n, size in zip(names, numbers, strict=False) if size <= _VANISHED * eps * largest)
        enough = len(vanished) > 1 if suspect.one else bool(vanished)
        if not largest > 0 or not enough or not vanished & suspect.feeding:
            suspect.run = 0
            return []
        suspect.run += 1
        if suspect.run < _STEPS or suspect.told:
            return []
        suspect.told = True
        return [SaturatedExponential(suspect.one, suspect.share, tuple(sorted(vanished)), largest, suspect.run)]

    return judge


def _shares(result: Tensor) -> Tensor:
    """Shares of the elements that are 1, and 0, to rounding."""
    flat = result.reshape(-1)
    flat = flat[:: max(flat.numel() // _SAMPLE, 1)]
    eps = torch.finfo(result.dtype).eps
    return torch.stack([((flat - 1).abs() < eps).double().mean(), (flat.abs() < eps).double().mean()]).cpu()


def _near_leaves(node: Any) -> list[Tensor]:
    """Leaves that feed the exponential through few operations."""
    level, seen, found = [node], {node}, []
    for _ in range(_LEVELS):
        following = dict.fromkeys(child for parent in level for child, _ in parent.next_functions if child is not None)
        level = [child for child in following if child not in seen]
        seen.update(level)
        found += [leaf for child in level if (leaf := leaf_of(child)) is not None]
    return found
