"""How gradients could flow through the modules of one batch, and where that flow is cut."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle
from torch.utils.module_tracker import ModuleTracker

from statewise.health.graph.walk import LossGraph, edge, reaches


@dataclass(frozen=True)
class Call:
    """One forward call of one module. `enter` and `exit` order all calls of the batch."""

    name: str
    kind: str
    enter: int
    exit: int
    # None: no computed float tensor went in (only the batch itself, or none), or none came out.
    in_grad: bool | None
    out_grad: bool | None
    # Whether the loss's gradient reaches a tensor that went in (came out).
    in_reached: bool
    out_reached: bool
    grad_enabled: bool


@dataclass(frozen=True)
class Cut:
    """Where the parameters of some modules lose their way to the loss.

    kind: "between" (output of `before` has a gradient, input of `after` has none), "inside" (lost within `after`),
    "disabled" (`before` ran with autograd off), "lost" (gradients go into `before`, its output has none), "dropped"
    (no registered module behind `before` passes a gradient back to its output: nobody uses it, or code outside of all
    modules cuts it off), "member" (other parameters of `before` are reached, this one is not), "unread" (the output of
    `before` arrives, its parameters have no part in it), "absent" (`before` was not called, as far as could be seen).
    """

    kind: str
    before: str
    after: str | None
    parameters: tuple[str, ...]


@dataclass
class _Raw:
    name: str
    kind: str
    enter: int
    sources: list[tuple[Any, int]]
    in_grad: bool | None
    given: bool
    exit: int = 0
    results: list[tuple[Any, int]] = field(default_factory=list)
    out_grad: bool | None = None
    grad_enabled: bool = True


class FlowRecorder:
    """Forward hooks on every module, for one batch; what activation checkpointing calls again is left out.

    `batch` is what the training step is given: a module that reads it directly has an input without gradient, and
    that is no cut.

    Attributes:
        compiled: modules whose forward pass is compiled: what is called within them is not seen.
    """

    def __init__(self, module: nn.Module, batch: Any = None) -> None:
        self._handles: list[RemovableHandle] = []
        self._clock = 0
        self._autograd = ModuleTracker()
        self._open: list[_Raw] = []
        self._calls: list[_Raw] = []
        self._given = {tensor.untyped_storage().data_ptr() for tensor in _float_tensors(batch)}
        self.compiled: set[str] = set()
        for name, part in module.named_modules():
            scripted = isinstance(part, torch.jit.ScriptModule)
            if scripted or is_compiled(part):
                self.compiled.add(name)
            if scripted:
                continue
            self._handles.append(part.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            self._handles.append(part.register_forward_hook(self._leave(name), with_kwargs=True))

    def _enter(self, name: str) -> Any:
        def hook(part: nn.Module, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling() or self._autograd.is_bw:
                return
            self._clock += 1
            inputs = _float_tensors((args, kwargs))
            raw = _Raw(
                name=name,
                kind=type(part).__name__,
                enter=self._clock,
                sources=[place for place in map(edge, inputs) if place is not None],
                in_grad=any(tensor.requires_grad for tensor in inputs) if inputs else None,
                given=bool(inputs) and all(t.untyped_storage().data_ptr() in self._given for t in inputs),
            )
            self._open.append(raw)

        return hook

    def _leave(self, name: str) -> Any:
        def hook(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if torch.compiler.is_compiling() or self._autograd.is_bw:
                return
            self._clock += 1
            # A call that ended in an exception never leaves.
            while self._open and self._open[-1].name != name:
                self._open.pop()
            if not self._open:
                return
            raw = self._open.pop()
            outputs = _float_tensors(output)
            raw.exit = self._clock
            raw.results = [place for place in map(edge, outputs) if place is not None]
            raw.out_grad = any(tensor.requires_grad for tensor in outputs) if outputs else None
            raw.grad_enabled = torch.is_grad_enabled()
            self._calls.append(raw)

        return hook

    @property
    def attached(self) -> bool:
        """Whether it still listens."""
        return bool(self._handles)

    def detach(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._open.clear()

    def calls(self, graphs: Iterable[LossGraph]) -> tuple[Call, ...]:
        """The calls in the order in which they ended, compared with the graphs of the batch's losses."""
        edges: set[tuple[Any, int]] = set()
        for graph in graphs:
            edges |= graph.edges
        return tuple(
            Call(
                name=raw.name,
                kind=raw.kind,
                enter=raw.enter,
                exit=raw.exit,
                in_grad=None if raw.given else raw.in_grad,
                out_grad=raw.out_grad,
                in_reached=not edges.isdisjoint(raw.sources),
                out_reached=not edges.isdisjoint(raw.results),
                grad_enabled=raw.grad_enabled,
            )
            for raw in self._calls
        )

    def feeding_norms(self) -> frozenset[str]:
        """Modules whose output goes straight into a batch or instance norm, which cancels any bias added before it."""
        norms = ("BatchNorm", "InstanceNorm", "SyncBatchNorm")
        taken = {place for raw in self._calls if raw.kind.startswith(norms) for place in raw.sources}
        return frozenset(raw.name for raw in self._calls if not taken.isdisjoint(raw.results))

    def place(self, node: Any) -> str:
        """The innermost module in whose forward a graph node was made, or "" where no module's output holds it."""
        for raw in self._calls:
            inside = any(reaches(root, node) for root, _ in raw.results)
            if inside and not any(reaches(root, node) for root, _ in raw.sources):
                return raw.name
        return ""

    def clear(self) -> None:
        """Let go of the hooks and of the graph."""
        self.detach()
        self._calls.clear()


def is_compiled(part: nn.Module) -> bool:
    """Whether torch.compile runs it: hooks on the modules within it are then not called for each batch."""
    return getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule"


def locate(calls: tuple[Call, ...], affected: dict[str, list[str]], reached: frozenset[str]) -> list[Cut]:
    """Find the cut of each unreached parameter.

    affected: owner module to its unreached parameters; reached: owner modules with a parameter that is reached.
    Modules that lose their way at the same place share one cut, named after the last of them before it.
    """
    merged: dict[tuple[str, str | None], tuple[int, str, list[str]]] = {}
    for owner, names in affected.items():
        kind, before, after, at = _place(calls, owner, owner in reached)
        key = (kind, after if kind in {"between", "inside"} else before)
        latest, name, parameters = merged.get(key, (-1, before, []))
        merged[key] = (max(at, latest), before if at >= latest else name, parameters + names)
    return [
        Cut(kind, name, after if kind in {"between", "inside"} else None, tuple(parameters))
        for (kind, after), (_, name, parameters) in merged.items()
    ]


def _place(calls: tuple[Call, ...], owner: str, partly: bool) -> tuple[str, str, str | None, int]:
    own = [call for call in calls if call.name == owner] or _used_by(calls, owner)
    if not own:
        # A parent that is never called as a module (a ParameterDict, a root that only calls its children) says
        # nothing about its own tensors: they share a cut that there is, or are lost on their own.
        within = None if partly or owner else _cut_among(calls, calls)
        return (*within, 0) if within is not None else (("member" if partly or not owner else "absent"), owner, None, 0)
    call = max(own, key=lambda c: c.exit)
    if partly:
        return "member", owner, None, call.exit
    around = [c for c in calls if c.enter < call.enter and c.exit > call.exit]
    if not call.out_grad or any(c.in_grad and c.out_grad is False for c in around):
        return _swallowed(calls, call)
    if call.out_reached:
        # What it gives out arrives, its own tensor does not: lost on the way through its children, or on its own.
        within = _cut_among(calls, tuple(c for c in calls if call.enter < c.enter and c.exit < call.exit))
        return (*within, call.enter) if within is not None else ("unread", call.name, None, call.exit)
    cut = _cut_among(calls, tuple(c for c in calls if c.enter > call.exit))
    if cut is None:
        return "dropped", call.name, None, call.exit
    kind, before, after = cut
    return kind, (before if after is None else call.name), after, call.exit


def _used_by(calls: tuple[Call, ...], owner: str) -> list[Call]:
    """Of a module that was not called: the innermost one around it whose output does not arrive; it may use its tensors."""
    path = owner
    while path := path.rpartition(".")[0]:
        around = [call for call in calls if call.name == path]
        if around:
            return [call for call in around if not call.out_reached and call.out_grad]
    return []


def _cut_among(calls: tuple[Call, ...], among: tuple[Call, ...]) -> tuple[str, str, str | None] | None:
    """The first of some calls (in the order in which they began) where the way ends: kind, before, after."""
    for suspect in sorted(among, key=lambda c: c.enter):
        if suspect.in_grad and suspect.out_grad is False and not suspect.in_reached:
            kind, name, _, _ = _swallowed(calls, suspect)
            return kind, name, None
        if not _cuts(suspect) or any(_cuts(c) for c in among if suspect.enter < c.enter and c.exit < suspect.exit):
            continue
        ended = [c for c in calls if c.exit < suspect.enter and c.out_grad and not c.out_reached]
        before = max(ended, key=lambda c: c.exit).name if ended else ""
        # What was computed from the batch alone has no gradient by rights.
        if suspect.in_grad or ended:
            return ("inside" if suspect.in_grad else "between"), before, suspect.name
    return None


def _swallowed(calls: tuple[Call, ...], call: Call) -> tuple[str, str, str | None, int]:
    """A call that gives out less than it takes or holds: named after the outermost module that does, and why."""
    around = [c for c in calls if c.enter <= call.enter and c.exit >= call.exit]
    culprits = [c for c in around if not c.grad_enabled or (c.in_grad and c.out_grad is False)]
    culprit = max(culprits, key=lambda c: c.exit - c.enter, default=call)
    inside = [c for c in calls if c.enter >= culprit.enter and c.exit <= culprit.exit]
    return ("lost" if all(c.grad_enabled for c in inside) else "disabled"), culprit.name, None, call.exit


def _cuts(call: Call) -> bool:
    """Whether the loss's gradient comes out of this call but not through to its (computed) input."""
    return call.in_grad is not None and call.out_reached and not call.in_reached


def _float_tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
