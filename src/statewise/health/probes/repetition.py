"""Does the same batch give the same again, in evaluation? What stays behind in the module, and what is drawn at random."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from statewise.health.probes.compare import difference, first_change, pairs, same, tolerance
from statewise.health.probes.structure import MACHINERY, attribute_leaves
from statewise.health.probes.take import Take
from statewise.health.signals import Signal


@dataclass(frozen=True)
class Repeated(Signal):
    """The same batch twice on one copy, in evaluation mode and from the same random state.

    leaks: the second time gives something else. module: the innermost one that does, given the same; None: code outside
    of all modules carries it. holders: the attributes that changed. registered: all of them are buffers, which is how
    queues and running averages are kept on purpose. graph_kept: the second loss's graph reaches into the first one's.
    shuffled: whether batches come in random order, so that there is nothing to carry; None where it is not known.
    """

    waiting: ClassVar[str] = "no training batch was reached"

    leaks: bool = False
    deviation: float = 0.0
    module: str | None = None
    holders: tuple[str, ...] = ()
    registered: bool = False
    per_row: bool = False
    graph_kept: bool = False
    shuffled: bool | None = None
    # Code outside of all modules does not look at the batch, or draws from what it keeps: it plays from a memory.
    replayed: bool = False


@dataclass(frozen=True)
class Reseeded(Signal):
    """The same batch in evaluation mode from two random states. `draws` is what was seen drawn, by what it is used for."""

    waiting: ClassVar[str] = "no training batch was reached"

    module: str | None = None
    deviation: float = 0.0
    draws: tuple[str, ...] = ()
    sampled: bool = False


def leaking(first: Take, second: Take, before: dict[str, Any], twin: nn.Module, shuffled: bool | None) -> Repeated:
    """What the first run left behind for the second; `before` is what `held` said before both."""
    deviation = _deviation(first, second)
    kept = _shares_graph(first, second)
    if not deviation and not kept:
        return Repeated(shuffled=shuffled)
    changed = [name for name, value in held(twin).items() if not _equal(before.get(name), value)]
    call = first_change(first, second)
    if call is not None and call.name:
        changed = [name for name in changed if name.startswith(f"{call.name}.")] or changed
    buffers = {name for name, _ in twin.named_buffers()}
    looked = first.watcher is not None and bool(first.watcher.entered or first.meetings())
    return Repeated(
        leaks=True,
        deviation=deviation,
        module=None if call is None else call.name,
        holders=tuple(changed),
        registered=bool(changed) and set(changed) <= buffers,
        graph_kept=kept,
        shuffled=shuffled,
        replayed=call is None and (first.drew or not looked),
    )


def unchanged(before: dict[str, Any], twin: nn.Module) -> bool:
    """Whether all that `held` says is still so."""
    now = held(twin)
    return now.keys() == before.keys() and all(_equal(before[name], now[name]) for name in now)


def follows_batch(holders: tuple[str, ...], whole: dict[str, Any], part: dict[str, Any], rows: int, alone: int) -> bool:
    """Whether what is kept has a row for each row of the batch, as a carried state of a recurrent layer has."""
    return any(
        a.ndim == b.ndim and [(x, y) for x, y in zip(a.shape, b.shape, strict=True) if x != y] == [(rows, alone)]
        for name in holders
        for a, b in zip(tree_leaves(whole.get(name)), tree_leaves(part.get(name)), strict=False)
    )


def drawing(first: Take, other: Take) -> Reseeded:
    """The module that draws at random in evaluation."""
    call = first_change(first, other)
    if call is None:
        return Reseeded()
    partner = next(b for a, b in pairs(first, other) if a is call)
    gaps = [difference(a, b) for a, b in zip(call.outputs, partner.outputs, strict=True) if a.shape == b.shape]
    watcher = first.watcher
    draws = tuple(sorted(watcher.draws)) if watcher is not None else ()
    return Reseeded(call.name, max(gaps, default=0.0), draws, watcher is not None and watcher.sampled)


def differs(first: Take, other: Take) -> bool:
    """Whether anything that modules are given or give, or the loss, is not the same in both."""
    if len(first.calls) != len(other.calls) or (first.loss is None) != (other.loss is None):
        return True
    if first.loss is not None and other.loss is not None and not same(first.loss[1], other.loss[1], 0.1):
        return True
    return not all(
        same(a, b, 0.1)
        for call, partner in pairs(first, other)
        for a, b in zip([*call.inputs, *call.outputs], [*partner.inputs, *partner.outputs], strict=True)
    )


def held(twin: nn.Module) -> dict[str, Any]:
    """Buffers, and attributes that hold tensors or nothing: where a module can keep something for the next batch."""
    kept: dict[str, Any] = {name: buffer.detach().clone() for name, buffer in twin.named_buffers()}
    for path, part in twin.named_modules():
        for name, value in vars(part).items():
            if name in MACHINERY:
                continue
            found = [leaf.detach().clone() for leaf in attribute_leaves(value) if isinstance(leaf, Tensor)]
            if found or value is None:
                kept[f"{path}.{name}" if path else name] = found
    return kept


def _equal(one: Any, other: Any) -> bool:
    ones, others = ([] if value is None else tree_leaves(value) for value in (one, other))
    return len(ones) == len(others) and all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def _deviation(first: Take, second: Take) -> float:
    """How far the predictions differ, where they meet the batch or else where they leave the outermost modules."""
    met, again = first.meetings(), second.meetings()
    if met and len(met) == len(again):
        couples = [(one.prediction, other.prediction) for one, other in zip(met, again, strict=True)]
    else:
        ends = {(call.enter, call.exit) for call in first.outermost()}
        couples = [
            couple
            for call, partner in pairs(first, second)
            if (call.enter, call.exit) in ends
            for couple in zip(call.outputs, partner.outputs, strict=True)
        ]
    gaps = [(difference(a, b), tolerance(a)) for a, b in couples if a.is_floating_point() and a.shape == b.shape]
    return max((gap for gap, allowed in gaps if gap > allowed), default=0.0)


def _shares_graph(first: Take, second: Take) -> bool:
    """Whether the second loss is differentiated through operations of the first run."""
    if first.graph is None or second.graph is None:
        return False
    common = set(first.graph.nodes).intersection(second.graph.nodes)
    return any(not hasattr(node, "variable") for node in common)
