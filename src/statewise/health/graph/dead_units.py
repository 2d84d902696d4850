"""Which activations stay off from one look to the next, told apart from those that are merely sparse."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statewise.health.graph.activations import Activation, activations
from statewise.health.graph.signals import DeadActivation, DeadActivations
from statewise.health.graph.walk import LossGraph, fed_weights, leaves_without, nearest_leaves, reaches
from statewise.health.readings import Readings
from statewise.health.signals import Signal

# Share of an activation's elements and units that must be off (health.md, B1).
_OFF = 0.95
# Looks running, at different batches, before it is said; before zero gradients count as its consequence; the last one.
_LOOKS = 3
_LOOKS_CUT_OFF = 4
_LAST_LOOK = 10
# Sparse units are on for other samples in the next batch: those that were ever on grow faster than this.
_GROWTH = 1.5
# A gate that chooses few of many is saturated by design.
_CHOICE = 0.15
_SMALLEST_WEIGHT = 4

Key = tuple[str, int, tuple[int, ...]]


@dataclass
class _Suspect:
    looks: int
    ever: Tensor | None = None
    place: str = ""
    fed_by: tuple[str, ...] = ()
    cut_off: tuple[str, ...] = ()
    starved: tuple[str, ...] = ()


class DeadUnits:
    """Call `look` with one graph a batch; what it asks of `readings` answers with signals.

    Attributes:
        suspects: activations that were off at the last look; while there are some, the next batch is worth a look.
    """

    def __init__(self) -> None:
        self.suspects: dict[Key, _Suspect] = {}
        self._said: set[Key] = set()

    def look(
        self,
        graph: LossGraph,
        names: dict[int, str],
        readings: Readings,
        place: Callable[[Any], str] | None,
        silent: Callable[[], set[str]],
    ) -> None:
        """Measure every activation of hidden units; those under suspicion in more detail.

        silent: parameters whose gradient was exactly zero for several steps, asked when the answer comes.
        """
        keyed = {_key(one): one for one in activations(graph, lambda leaf: _is_weight(leaf, names))}
        quiet = {key: one for key, one in keyed.items() if key not in self.suspects and key not in self._said}
        if quiet:
            counts = torch.stack([torch.count_nonzero(one.off(one.value)) for one in quiet.values()])
            shares = counts / torch.tensor([one.value.numel() for one in quiet.values()], device=counts.device)
            readings.ask(shares, lambda numbers: self._suspect(list(quiet), numbers))
        for key in [key for key in self.suspects if key not in keyed]:
            del self.suspects[key]
        off = {key: one for key, one in keyed.items() if key in self.suspects or key in self._said}
        for key in list(self.suspects):
            # What is off because its input is off already is a consequence.
            if any(other != key and reaches(off[key].node, off[other].node) for other in off):
                del self.suspects[key]
            else:
                self._examine(key, off[key], graph, names, readings, place, silent)

    def clear(self) -> None:
        """Let go of masks."""
        self.suspects.clear()

    def _suspect(self, keys: list[Key], numbers: list[float]) -> list[Signal]:
        for key, share in zip(keys, numbers, strict=True):
            if share >= _OFF:
                self.suspects[key] = _Suspect(looks=1)
        return []

    def _examine(
        self,
        key: Key,
        one: Activation,
        graph: LossGraph,
        names: dict[int, str],
        readings: Readings,
        place: Callable[[Any], str] | None,
        silent: Callable[[], set[str]],
    ) -> None:
        suspect = self.suspects[key]
        on = ~one.off(one.value)
        now = on.any(0)
        suspect.ever = now if suspect.ever is None else now | suspect.ever
        if not suspect.fed_by:
            suspect.fed_by = tuple(names[id(leaf)] for leaf in nearest_leaves(one.node) if id(leaf) in names)
            around = leaves_without(graph.nodes[0], [one.node])
            suspect.cut_off = tuple(names[k] for k in graph.leaves if k in names and k not in around)
            weights = fed_weights(graph.nodes, one.node) if one.name == "Relu" else []
            suspect.starved = tuple(names[id(leaf)] for leaf in weights if id(leaf) in names)
        if place is not None and not suspect.place:
            suspect.place = place(one.node)
        numbers = [on.float().mean(), now.float().mean(), suspect.ever.float().mean(), _units_on(on)]
        numbers += _sides(one) if one.two_sided else []
        readings.ask(torch.stack(numbers), lambda read: self._judge(key, one, read, silent))

    def _judge(self, key: Key, one: Activation, numbers: list[float], silent: Callable[[], set[str]]) -> list[Signal]:
        suspect = self.suspects.get(key)
        if suspect is None:
            return []
        passing, now, ever, units = numbers[:4]
        if one.two_sided:
            high, constant = numbers[4:]
            chooses = one.name in {"Sigmoid", "Hardsigmoid"} and not _CHOICE < high < 1 - _CHOICE and constant < _OFF
            off = passing <= 1 - _OFF and not chooses
        else:
            off = max(passing, now, ever, units) <= 1 - _OFF and ever <= _GROWTH * max(now, 1e-9) + 1e-9
        if not off:
            del self.suspects[key]
            return []
        suspect.looks += 1
        lost: tuple[str, ...] = ()
        if suspect.looks >= _LOOKS_CUT_OFF:
            without = silent()
            lost = tuple(name for name in suspect.cut_off if name in without)
        if lost or suspect.looks >= _LAST_LOOK:
            self._said.add(key)
            del self.suspects[key]
        if suspect.looks != _LOOKS and not lost:
            return []
        found = DeadActivation(
            one.name, one.two_sided, suspect.place, suspect.looks, 1 - passing, suspect.fed_by, lost, suspect.starved
        )
        return [DeadActivations((found,))]


def _key(one: Activation) -> Key:
    return one.name, one.number, tuple(one.value.shape[1:])


def _is_weight(leaf: Tensor, names: dict[int, str]) -> bool:
    """A parameter of some size: a factor that weighs losses against one another is none."""
    return id(leaf) in names and leaf.numel() >= _SMALLEST_WEIGHT


def _units_on(on: Tensor) -> Tensor:
    """Share of units that are on for any sample and position, by the axis that shows most (features come last or second)."""
    axes = [axis for axis in (1, on.ndim - 1) if on.ndim > 2 and on.shape[axis] >= _SMALLEST_WEIGHT]
    shares = [on.movedim(axis, -1).flatten(0, -2).any(0).float().mean() for axis in axes]
    return torch.stack(shares).max() if shares else on.any(0).float().mean()


def _sides(one: Activation) -> list[Tensor]:
    """The share of elements on the upper side, and of positions that are on the same side for all samples."""
    high = one.value > (0.5 if one.name == "Sigmoid" else 0.0)
    return [high.float().mean(), (high.all(0) | ~high.any(0)).float().mean()]
