"""What layers say of their own values: the law they begin with, and how much of their state survives a step.

A layer's method `initial_laws()` returns (parameter, quantity, values, low, high) for each law, its `state_memory()` returns
(parameters, how much of each state survives a step, how much a step changes it). No layer's tensors are searched by name.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from statewise.health.observer import Observer, Run
from statewise.health.signals import Signal
from statewise.parallel.shards import sharded, whole_parameters

# Rounding of an initial value, of its conversion to another type, and of what is computed from it.
_SLACK = 8.0
# Looks at the states during a run: each at so many times the batches of the one before, at most so many after it.
_GROWTH, _DISTANCE = 4, 500
_Asked = tuple[Tensor, Callable[[list[float]], list[Signal]]]
# Layers that a watched run has trained: their values are no longer the initial ones.
_TRAINED: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


@dataclass(frozen=True)
class BrokenLaw:
    """A quantity that is not where its layer puts it: bounds, and what was found."""

    parameter: str
    quantity: str
    low: float
    high: float
    least: float
    largest: float


@dataclass(frozen=True)
class InitialLaws(Signal):
    """The laws of all layers that have one were looked at before anything was trained."""

    waiting: ClassVar[str] = "no layer declares the law of its initial values"

    broken: tuple[BrokenLaw, ...]


@dataclass(frozen=True)
class LayerMemory:
    """The states of one layer: the share that is numerically dead, and the range of what survives a step."""

    path: str
    parameters: tuple[str, ...]
    frozen_share: float
    forgotten_share: float
    least: float
    largest: float


@dataclass(frozen=True)
class StateMemory(Signal):
    """The states of all layers that can tell were looked at."""

    waiting: ClassVar[str] = "no layer tells how much of its state survives a step"

    layers: tuple[LayerMemory, ...]


class LawWatch(Observer):
    """Asks the layers once, before anything was trained."""

    def __init__(self) -> None:
        super().__init__()
        self._noted = False

    def start(self, run: Run) -> Iterator[Signal]:
        """Values that were loaded, or trained before, have left the law long ago."""
        layers = [(path, part) for path, part in run.module.named_modules() if callable(getattr(part, "initial_laws", None))]
        if not layers:
            return
        if run.step > 0 or run.setting.loaded:
            self.unable[InitialLaws] = "the values come from a checkpoint"
            return
        if any(_elsewhere(part) for _, part in layers):
            self.unable[InitialLaws] = "the parameters lie in other processes"
            return
        try:
            with whole_parameters(*(part for _, part in layers)):
                laws = [(path, part, law) for path, part in layers if part not in _TRAINED for law in part.initial_laws()]
                broken = tuple(_broken(laws)) if laws else ()
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            self.unable[InitialLaws] = f"a layer could not tell its law: {error}"
            return
        if not laws:
            self.unable[InitialLaws] = "the values of all layers were loaded, or trained in an earlier fit"
            return
        yield InitialLaws(broken)

    def after_update(self, run: Run, number: int) -> Iterator[Signal]:
        """From now on the values have a history."""
        if not self._noted:
            self._noted = True
            _TRAINED.update(part for part in run.module.modules() if callable(getattr(part, "initial_laws", None)))
        return iter(())


class MemoryWatch(Observer):
    """Asks the layers before the first step, and then at a growing distance."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 1

    def start(self, run: Run) -> Iterator[Signal]:
        """Before anything runs."""
        self._next = _GROWTH
        with whole_parameters(*(part for _, part in self._layers(run))):
            asked = self._asked(run)
        if asked:
            numbers, judge = asked
            yield from judge(numbers.tolist())

    def begin_batch(self, run: Run, batch: Any) -> Iterator[Signal]:
        """Now and then during the run."""
        if run.batch >= self._next:
            self._next = min(_GROWTH * run.batch, run.batch + _DISTANCE)
            # Sharded parameters can be gathered only where all processes are sure to ask, as at the start.
            sure = not any(sharded(p) for _, part in self._layers(run) for p in part.parameters())
            if sure and (asked := self._asked(run)):
                run.readings.ask(*asked)
        return iter(())

    @staticmethod
    def _layers(run: Run) -> list[tuple[str, nn.Module]]:
        return [(path, part) for path, part in run.module.named_modules() if callable(getattr(part, "state_memory", None))]

    def _asked(self, run: Run) -> _Asked | None:
        layers = self._layers(run)
        if any(_elsewhere(part) for _, part in layers):
            self.unable[StateMemory] = "the parameters lie in other processes"
            return None
        try:
            return _ask(layers) if layers else None
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            self.unable[StateMemory] = f"a layer could not tell of its state: {error}"
            return None


def _broken(laws: Sequence[tuple[str, nn.Module, Any]]) -> Iterator[BrokenLaw]:
    measured = []
    for _, part, (parameter, _, values, low, high) in laws:
        dtype = getattr(part, parameter).dtype
        slack = _SLACK * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
        wide = values.detach().double()
        bounds = [torch.as_tensor(bound, dtype=torch.float64, device=wide.device) for bound in (low, high)]
        under = (wide < bounds[0] - slack * (1 + bounds[0].abs())).any() | wide.isnan().any()
        over = (wide > bounds[1] + slack * (1 + bounds[1].abs())).any()
        measured.append(torch.stack([(under | over).double(), wide.min(), wide.max(), bounds[0].min(), bounds[1].max()]))
    device = measured[0].device
    for (path, _, law), numbers in zip(laws, torch.stack([m.to(device) for m in measured]).tolist(), strict=True):
        broken, least, largest, low, high = numbers
        if broken:
            yield BrokenLaw(f"{path}.{law[0]}" if path else law[0], law[1], low, high, least, largest)


def _ask(layers: Sequence[tuple[str, nn.Module]]) -> _Asked:
    """Numbers of every layer that has states to tell of, and what to make of them."""
    told: list[tuple[str, tuple[str, ...]]] = []
    measured: list[Tensor] = []
    for path, part in layers:
        names, survives, changes = part.state_memory()  # type: ignore[operator]
        if not survives.numel():
            continue
        eps = torch.finfo(torch.promote_types(getattr(part, names[0]).dtype, torch.float32)).eps
        told.append((path, tuple(f"{path}.{name}" if path else name for name in names)))
        share = [(changes.double() < eps).double().mean(), (survives.double() < eps).double().mean()]
        measured.append(torch.stack([*share, survives.double().min(), survives.double().max()]))

    def judge(numbers: list[float]) -> list[Signal]:
        rows = [numbers[4 * i : 4 * i + 4] for i in range(len(told))]
        facts = (LayerMemory(path, names, *row) for (path, names), row in zip(told, rows, strict=True))
        return [StateMemory(tuple(facts))] if told else []

    return torch.cat([m.to(measured[0].device) for m in measured]) if measured else torch.zeros(0), judge


def _elsewhere(part: nn.Module) -> bool:
    """Whether parameters are gathered by somebody else, when a module runs (DeepSpeed): here they are empty."""
    return any(p.numel() == 0 for p in part.parameters())
