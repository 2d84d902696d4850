"""One run of a step of the copy: what went into its modules and came out, what the loss was, what was drawn."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from statewise.health.graph.walk import LossGraph, walk
from statewise.health.probes.structure import tensors
from statewise.health.probes.watcher import Meeting, Watcher


@dataclass
class Call:
    """One forward call of one module; `enter` and `exit` order all calls of the run."""

    name: str
    enter: int
    inputs: list[Tensor]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    exit: int = 0
    outputs: list[Tensor] = field(default_factory=list)


@dataclass
class Take:
    """`calls` in the order in which they ended; `at` is the innermost module that was open when the step raised."""

    calls: list[Call] = field(default_factory=list)
    loss: tuple[str, Tensor] | None = None
    error: Exception | None = None
    at: str | None = None
    drew: bool = False
    watcher: Watcher | None = None

    def value(self) -> float | None:
        """The loss as a number."""
        return None if self.loss is None else float(self.loss[1].detach().double())

    @cached_property
    def graph(self) -> LossGraph | None:
        """The graph of the loss, walked once."""
        return None if self.loss is None else walk(self.loss[1])

    def why(self) -> str:
        """What the step raised, in one line; "" if it did not."""
        return "" if self.error is None else one_line(self.error)

    def meetings(self) -> list[Meeting]:
        """Where predictions meet the batch on the way to the loss; all of them where no loss is known."""
        met = self.watcher.meetings if self.watcher is not None else []
        if self.graph is None:
            return met
        edges = self.graph.edges
        return [meeting for meeting in met if meeting.result in edges]

    def comparisons(self, owners: frozenset[str]) -> list[Meeting]:
        """Meetings after which no module with parameters of its own (`owners`) is called: those with targets."""
        last = max((call.enter for call in self.calls if call.name in owners), default=0)
        return [meeting for meeting in self.meetings() if meeting.clock >= last]

    def inside(self, outer: Call) -> list[Call]:
        """A call and those within it."""
        return [call for call in self.calls if call.enter >= outer.enter and call.exit <= outer.exit]

    def outermost(self) -> list[Call]:
        """Calls that no other call contains."""
        ends, outer = 0, []
        for call in sorted(self.calls, key=lambda call: call.enter):
            if call.exit > ends:
                ends = call.exit
                outer.append(call)
        return outer


class Recorder:
    """Forward hooks on every module of a copy, for one run after another. torchmetrics remember on purpose: not watched."""

    def __init__(self, twin: nn.Module) -> None:
        self.begin(None)
        self.handles = []
        for name, part in twin.named_modules():
            if isinstance(part, torch.jit.ScriptModule) or is_metric(part):
                continue
            self.handles.append(part.register_forward_pre_hook(self._enter(name), with_kwargs=True, prepend=True))
            self.handles.append(part.register_forward_hook(self._leave(name)))

    def begin(self, watcher: Watcher | None) -> None:
        """A new run. `calls`: those that ended, in that order; `open`: those that did not."""
        self.calls: list[Call] = []
        self.open: list[Call] = []
        self._clock = 0
        self._watcher = watcher

    def _tick(self) -> None:
        self._clock += 1
        if self._watcher is not None:
            self._watcher.clock, self._watcher.ended = self._clock, len(self.calls)

    def _enter(self, name: str) -> Any:
        def hook(part: nn.Module, args: Any, kwargs: Any) -> None:
            self._tick()
            call = Call(name, self._clock, tensors((args, kwargs)), args, kwargs)
            if self._watcher is not None:
                self._watcher.enter(call.inputs)
            self.open.append(call)

        return hook

    def _leave(self, name: str) -> Any:
        def hook(part: nn.Module, args: Any, output: Any) -> None:
            while self.open and self.open[-1].name != name:
                self.open.pop()
            if self.open:
                call = self.open.pop()
                call.exit, call.outputs = self._clock + 1, tensors(output)
                self.calls.append(call)
            self._tick()

        return hook

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()


def one_line(error: BaseException, limit: int = 160) -> str:
    """An error for a sentence."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:limit]}" if text else type(error).__name__


def is_metric(part: nn.Module) -> bool:
    """Whether it is an object of torchmetrics."""
    return any(kind.__module__.startswith("torchmetrics") for kind in type(part).__mro__)
