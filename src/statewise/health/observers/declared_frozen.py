"""Whether an optimizer moves what is declared frozen, once the run goes on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from statewise.health.graph.registered import registered
from statewise.health.observer import Observer, Run
from statewise.health.parameters import Inventory
from statewise.health.signals import Signal
from statewise.parallel.shards import here

# Every step at first, then every few: the declared parameters may be thousands.
_ALWAYS, _DISTANCE = 5, 4
# Largest number of elements copied to see whether an update moved them.
_ELEMENTS = 4_000_000


@dataclass(frozen=True)
class FrozenMoves(Signal):
    """Declared frozen, and yet: `asking` have requires_grad and a gradient as their optimizer steps, `moved` were changed."""

    waiting: ClassVar[str] = "nothing is declared frozen, or no optimizer step was made"

    asking: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()


class DeclaredFrozen(Observer):
    """Looks at the gradients of declared parameters at the moment of an update: without one an optimizer moves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._inventory: Inventory | None = None
        self._held: dict[int, list[tuple[str, nn.Parameter]]] = {}
        self._copies: dict[str, tuple[nn.Parameter, Tensor]] = {}

    def before_update(self, run: Run, number: int) -> Iterator[Signal]:
        """Gradients are there, values are old."""
        self._copies = {}
        yield from self._look(run, number)
        elements = 0
        for name, parameter in self._due(run, number):
            # A gradient from before the freezing: the optimizer does not ask whether one is still wanted.
            if not parameter.requires_grad and parameter.grad is not None and elements < _ELEMENTS:
                elements += parameter.numel()
                self._copies[name] = parameter, here(parameter.detach()).clone()

    def after_update(self, run: Run, number: int) -> Iterator[Signal]:
        """A loop that announces no update is asked afterwards."""
        yield from self._look(run, number)
        if self._copies:
            names = tuple(self._copies)
            changed = torch.stack([(here(p.detach()) != old).any() for p, old in self._copies.values()])
            self._copies = {}
            run.readings.ask(changed, lambda moved: _moved(names, moved))

    def _look(self, run: Run, number: int) -> Iterator[Signal]:
        if due := self._due(run, number):
            yield FrozenMoves(
                tuple(name for name, p in due if p.requires_grad and p.grad is not None and _rate(run, number, p))
            )

    def _due(self, run: Run, number: int) -> list[tuple[str, nn.Parameter]]:
        if not run.declared.frozen or (run.step > _ALWAYS and run.step % _DISTANCE):
            return []
        if self._inventory is not run.inventory:
            self._inventory = run.inventory
            self._held = {}
            tensors = {id(p): p for p in map(registered, run.module.parameters())}
            for fact in run.inventory.parameters:
                if fact.group is not None and fact.name in run.declared.frozen and fact.key in tensors:
                    optimizer = run.inventory.groups[fact.group].optimizer
                    self._held.setdefault(optimizer, []).append((fact.name, tensors[fact.key]))
        return self._held.get(number, [])

    def close(self) -> None:
        """Let go of the parameters."""
        self._inventory, self._held, self._copies = None, {}, {}


def _moved(names: tuple[str, ...], changed: list[float]) -> list[Signal]:
    return [FrozenMoves(moved=tuple(name for name, yes in zip(names, changed, strict=True) if yes))]


def _rate(run: Run, number: int, parameter: nn.Parameter) -> bool:
    """Whether the group of this parameter has an lr above 0 now."""
    groups = run.optimizers[number].param_groups
    return any(float(g.get("lr", 0.0)) > 0 and any(p is parameter for p in g["params"]) for g in groups)
