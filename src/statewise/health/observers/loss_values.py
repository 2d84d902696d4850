"""The value of the loss at every step beside its gradients: a constant, and gradients that are no numbers."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from statewise.health.graph.gradient_origin import GradientOrigin
from statewise.health.graph.saved import operation
from statewise.health.graph.walk import nearest_leaves
from statewise.health.observer import Observer, Run
from statewise.health.signals import Signal
from statewise.parallel.shards import here

# Steps over which a loss that stays the same to the bit is no chance.
_CONSTANT = 5
# A loss that has come down to its floor by itself passes through less than this share of where it began.
_FALLEN = 0.3
_FIRST_UPDATES = 3
_WINDOW = 20
# Backward passes after which nobody seems to make an update.
_WITHOUT_UPDATE = 64


@dataclass(frozen=True)
class ConstantLoss(Signal):
    """The loss was the same to the bit in `run` steps, and every gradient exactly zero (0: it is not so)."""

    waiting: ClassVar[str] = "fewer than 5 optimizer steps were made"

    run: int = 0
    value: float = math.nan
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotFinite(Signal):
    """Parameters whose gradient is no number although the loss is one; none where all gradients are.

    `count` of the last `window` steps had such; with `spoilt` it is the values that became so in the last update, while the
    loss before it was finite. `operation` and `place` say where in the backward pass it began, "" where nobody could see.
    """

    waiting: ClassVar[str] = "no optimizer step was reached"

    parameters: tuple[str, ...] = ()
    count: int = 0
    window: int = _WINDOW
    loss: float = math.nan
    spoilt: bool = False
    operation: str = ""
    place: str = ""
    scaler: bool = False


@dataclass
class _Course:
    """The losses of one optimizer's updates so far."""

    last: tuple[float, ...] = ()
    run: int = 0
    steps: int = 0
    first: float = math.nan
    before: float = math.nan

    def follow(self, values: tuple[float, ...]) -> None:
        """One more update."""
        self.steps += 1
        if values == self.last:
            self.run += 1
        else:
            self.run, self.before = 1, self.last[-1] if self.last else math.nan
        self.last = values

    @property
    def lasting(self) -> bool:
        """Whether the loss has been the same for long, and did not come to 0 by falling."""
        return self.run >= _CONSTANT and not (self.last[-1] == 0.0 and self.before <= _FALLEN * abs(self.first))


class LossValues(Observer):
    """Reads each loss, and the gradients in the first updates, at every look at the graph and while there is suspicion."""

    always = frozenset({"backward", "after_update"})

    def __init__(self) -> None:
        super().__init__()
        # Whether a loss was no number lately: then nothing can be said of the gradients of other processes.
        self.no_number = False
        self._losses: list[Tensor] = []
        self._numbers: list[float] = []
        self._courses: dict[int, _Course] = {}
        self._last: tuple[float, ...] = ()
        self._made: dict[int, int] = {}
        self._announced: set[int] = set()
        self._history: dict[int, deque[bool]] = {}
        self._suspicion = 0
        self._spoilt = False
        self._origin: GradientOrigin | None = None

    def begin_batch(self, run: Run, batch: Any) -> Iterable[Signal]:
        """Nothing is known of this batch yet."""
        self._announced.clear()
        self._suspicion = max(0, self._suspicion - 1)
        return ()

    def backward(self, run: Run, loss: Tensor) -> Iterable[Signal]:
        """Keep the loss; on a CPU, see at once whether the last update spoilt the values."""
        if loss.numel() != 1:
            return ()
        if self._origin is None and (run.batch == 1 or self._suspicion):
            graph = run.graph(loss)
            if not graph.compiled:
                self._origin = GradientOrigin(graph)
        if not _on_host(loss):
            self._losses.append(loss.detach())
            return ()
        value = loss.item()
        self._numbers.append(value)
        self.no_number |= not math.isfinite(value)
        return () if math.isfinite(value) else list(self._look_for_spoilt(run, self._last))

    def before_update(self, run: Run, number: int) -> Iterable[Signal]:
        """The gradients, as they come out of the backward pass."""
        if number in self._announced:  # a line search comes here more than once
            return ()
        self._announced.add(number)
        if self._made.get(number, 0) < _FIRST_UPDATES or run.look or self._suspicion:
            return self._measure(run, number)
        return ()

    def after_update(self, run: Run, number: int) -> Iterable[Signal]:
        """The losses of this update."""
        self._announced.discard(number)
        self._made[number] = self._made.get(number, 0) + 1
        if self._losses:
            run.readings.ask_together(self._losses, partial(self._judge, run, number))
        elif self._numbers:
            # Known without a transfer; but the gradients of this step are counted only when the readings are.
            values = tuple(self._numbers)
            course = self._courses.get(number)
            if course is None or values == course.last or course.steps < _CONSTANT or not math.isfinite(sum(values)):
                run.readings.ask_together(
                    [torch.tensor(values, dtype=torch.float64)], partial(self._judge_numbers, run, number)
                )
            else:
                course.follow(values)
                self._last = values
        self._losses, self._numbers = [], []
        return ()

    def end_batch(self, run: Run) -> Iterable[Signal]:
        """An update that was announced and not made: was it because of its gradients?"""
        found: list[Signal] = []
        for number in self._announced:
            if not self._suspicion:
                found += self._measure(run, number)
        self._announced.clear()
        if len(self._losses) + len(self._numbers) > _WITHOUT_UPDATE:
            self._losses, self._numbers = [], []
        self._forget()
        return found

    def close(self) -> None:
        """Let go of the hooks."""
        self._forget()
        self._losses, self._numbers = [], []

    def _forget(self) -> None:
        if self._origin is not None:
            self._origin.clear()
            self._origin = None

    # -- a constant ----------------------------------------------------------------------------------------------

    def _judge(self, run: Run, number: int, columns: list[np.ndarray]) -> Iterator[Signal]:
        return self._judge_numbers(run, number, [np.concatenate(columns)])

    def _judge_numbers(self, run: Run, number: int, columns: list[np.ndarray]) -> Iterator[Signal]:
        values = tuple(columns[0].tolist())
        before, self._last = self._last, values
        if not all(map(math.isfinite, values)):
            self.no_number = True
            yield from self._look_for_spoilt(run, before)
            self._courses.pop(number, None)
            return
        self._spoilt = False
        course = self._courses.setdefault(number, _Course(first=values[0]))
        course.follow(values)
        if course.steps == _CONSTANT:
            yield ConstantLoss()
        if course.lasting and (names := self._all_zero(run, number)):
            yield ConstantLoss(course.run, values[-1], names)

    def _all_zero(self, run: Run, number: int) -> tuple[str, ...]:
        """The optimizer's parameters, if each has had a zero gradient (or none) in the last steps, and one of them a zero.

        Not where chance explains it: a reward that is rare makes many such steps.
        """
        update = run.updates[number]
        ledger = update.ledger
        zero, none = ledger.zero_run >= _CONSTANT, ledger.none_run >= _CONSTANT
        if not zero.any() or not (zero | none).all():
            return ()
        return update.names if all(ledger.zero_unusual(int(index)) for index in np.flatnonzero(zero)) else ()

    # -- no numbers ----------------------------------------------------------------------------------------------

    def _measure(self, run: Run, number: int) -> list[Signal]:
        update = run.updates[number]
        present = [i for i, p in enumerate(update.parameters) if p.grad is not None and not p.grad.is_sparse]
        if not present:
            return []
        # Of sharded parameters each process looks at its own part, and tells the others what it finds.
        gradients = [here(grad.detach()) for index in present if (grad := update.parameters[index].grad) is not None]
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(gradients)])
        if not _on_host(norms):
            run.readings.ask_together([norms, *self._losses], partial(self._judge_read, run, number, present))
            return []
        bad = [index for index, norm in zip(present, norms.tolist(), strict=True) if not math.isfinite(norm)]
        # The squares of finite numbers may overflow: the gradient itself decides.
        bad = [i for i in bad if (grad := update.parameters[i].grad) is not None and not bool(torch.isfinite(here(grad)).all())]
        return list(self._judge_gradients(run, number, bad, list(self._numbers)))

    def _judge_read(self, run: Run, number: int, present: list[int], columns: list[np.ndarray]) -> Iterator[Signal]:
        bad = [index for index, norm in zip(present, columns[0], strict=True) if not math.isfinite(norm)]
        yield from self._judge_gradients(run, number, bad, [float(loss[0]) for loss in columns[1:]])

    def _judge_gradients(self, run: Run, number: int, bad: list[int], losses: list[float]) -> Iterator[Signal]:
        losses = losses or list(self._last)
        if not all(map(math.isfinite, losses)):
            return
        history = self._history.setdefault(number, deque(maxlen=_WINDOW))
        history.append(bool(bad))
        if not bad:
            yield NotFinite()
            return
        self._suspicion = _WINDOW
        run.listen = max(run.listen, _WINDOW)
        names = {fact.key: fact.name for fact in run.inventory.parameters}
        concerned = [run.updates[number].names[index] for index in bad]
        node = self._origin.node() if self._origin is not None else None
        nearest = [names.get(id(leaf), "") for leaf in nearest_leaves(node)] if node is not None else []
        yield NotFinite(
            parameters=tuple(dict.fromkeys([name for name in nearest if name in concerned] + concerned)),
            count=sum(history),
            loss=losses[-1] if losses else math.nan,
            operation=operation(node) if node is not None else "",
            place=run.flow.place(node) if node is not None and run.flow is not None else "",
            scaler=run.setting.scaler,
        )

    def _look_for_spoilt(self, run: Run, before: tuple[float, ...]) -> Iterator[Signal]:
        """The loss is no number any more: did the last update, made at a finite loss, write NaN into the values?"""
        if self._spoilt or not before or not all(map(math.isfinite, before)) or run.step == 0:
            return
        self._spoilt = True
        for update in run.updates:
            names = tuple(
                n for n, p in zip(update.names, update.parameters, strict=True) if bool(torch.isnan(here(p.detach())).any())
            )
            if names:
                yield NotFinite(parameters=names, count=1, loss=before[-1], spoilt=True)


def _on_host(tensor: Tensor) -> bool:
    """Whether its numbers can be had without a transfer."""
    return tensor.is_cpu
