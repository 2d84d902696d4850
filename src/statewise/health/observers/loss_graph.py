"""Looks at the graph of a loss: at the first batches, then ever more rarely, and whenever gradients vanish."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from statewise.health.graph.absences import Absences
from statewise.health.graph.broadcasts import broadcasts
from statewise.health.graph.casts import TypeChange, type_changes
from statewise.health.graph.dead_units import DeadUnits
from statewise.health.graph.flow import FlowRecorder
from statewise.health.graph.saved import CannotRead, operation
from statewise.health.graph.signals import (
    DeadActivations,
    Patterns,
    PlacedBroadcast,
    PlacedChange,
    PlacedSoftmax,
    Reach,
    Types,
    WithoutGraph,
)
from statewise.health.graph.softmaxes import twice_normalised
from statewise.health.graph.walk import LossGraph, nearest_leaves
from statewise.health.observer import Observer, Run
from statewise.health.signals import Signal
from statewise.health.steps.ledger import SHORTEST_RUN
from statewise.health.steps.updates import UpdateMonitor

# Looks out of turn: on average one batch in ten, a dozen in a row at most.
_EXTRA = 12.0
_EXTRA_A_BATCH = 0.1
_GRAPHS = 4
_COMPILED = "the forward pass is compiled: what it does inside is one operation to the graph"


class LossGraphs(Observer):
    """One batch in fifty or more is walked, a few more at the start; the modules' calls are listened to only on a suspicion."""

    def __init__(self) -> None:
        super().__init__()
        self._looking = False
        self._again = False
        self._extra = _EXTRA
        self._graphs: list[LossGraph] = []
        self._own: FlowRecorder | None = None
        self._seen: set[tuple[Any, ...]] = set()
        self._storages: frozenset[int] = frozenset()
        self._sizes: frozenset[int] = frozenset()
        self._dead = DeadUnits()
        self._absences: list[Absences] = []
        self._updates: Sequence[UpdateMonitor] = ()
        self._backward_seen = False
        self._blind: set[type[Signal]] = set()

    def begin_batch(self, run: Run, batch: Any) -> Iterable[Signal]:
        """Decide whether to look at this one."""
        self._forget()
        self._backward_seen = False
        self._extra = min(_EXTRA, self._extra + _EXTRA_A_BATCH)
        suspicion = self._again or bool(self._dead.suspects) or self._vanishing(run)
        self._again = False
        extra = suspicion and self._extra >= 1.0
        self._looking = extra or run.look
        if self._looking:
            tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0]
            self._storages = frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)
            self._sizes = frozenset(int(tensor.shape[0]) for tensor in tensors)
        if extra:
            self._extra -= not run.look
            if run.flow is None or not run.flow.attached:
                self._own = FlowRecorder(run.module, batch)
        return ()

    def backward(self, run: Run, loss: Tensor) -> Iterable[Signal]:
        """The graph still stands."""
        self._backward_seen = True
        if loss.grad_fn is None and not loss.requires_grad:
            return self._without_graph(run, loss)
        if not self._looking or len(self._graphs) >= _GRAPHS:
            return ()
        graph = run.graph(loss)
        self._graphs.append(graph)
        names = {fact.key: fact.name for fact in run.inventory.parameters}
        found: list[Signal] = [WithoutGraph(missing=False)]
        checks = ((Types, self._types), (Patterns, self._patterns), (DeadActivations, self._activations))
        for kind, check in checks:
            if kind in self._blind:
                continue
            try:
                found += check(run, graph, names)
            except CannotRead as error:
                self._blind.add(kind)
                self.unable[kind] = str(error)
        return found

    def before_update(self, run: Run, number: int) -> Iterable[Signal]:
        """What stopped getting gradients, and is not reached by any graph of this batch."""
        return () if self._backward_seen and not self._graphs else self._compare(run, number)

    def _compare(self, run: Run, number: int) -> Iterator[Signal]:
        flow, update = self._flow(run), run.updates[number]
        if not self._backward_seen and flow is not None and all(p.grad is None for p in update.parameters):
            # Nobody called backward: perhaps because there was nothing to differentiate.
            calls = flow.calls(())
            if calls and not any(call.grad_enabled for call in calls):
                yield WithoutGraph(missing=True, disabled=True, calls=len(calls))
        if not self._graphs or any(graph.hides_leaves or not graph.complete for graph in self._graphs):
            return
        absences = self._absences_of(run)[number]
        leaves = {key for graph in self._graphs for key in graph.leaves}
        names = {fact.key: fact.name for fact in run.inventory.parameters}
        reached = frozenset(names[key] for key in leaves if key in names)
        stopped = {}
        for index in absences.candidates():
            parameter = update.parameters[index]
            if id(parameter) in leaves or not parameter.requires_grad or not absences.rare(index, 1e-4 if reached else 1e-3):
                continue
            if parameter.grad is None or not bool((parameter.grad != 0).any()):
                stopped[update.names[index]] = int(absences.run[index]) + 1
        if stopped and flow is None:
            self._again = True
            return
        calls = flow.calls(self._graphs) if flow is not None and stopped else ()
        yield Reach(stopped, reached, calls, not reached, update.ledger.steps)

    def end_batch(self, run: Run) -> Iterable[Signal]:
        """Graphs are let go."""
        self._forget()
        if (self._again or self._dead.suspects) and self._extra >= 1.0:
            run.listen = max(run.listen, 1)
        return ()

    def close(self) -> None:
        """The same."""
        self._forget()
        self._dead.clear()

    def _forget(self) -> None:
        self._graphs.clear()
        if self._own is not None:
            self._own.clear()
            self._own = None

    def _absences_of(self, run: Run) -> list[Absences]:
        if run.updates is not self._updates:
            self._updates = run.updates
            self._absences = [Absences(update.ledger) for update in run.updates]
        for one in self._absences:
            one.count()
        return self._absences

    def _vanishing(self, run: Run) -> bool:
        """Whether a gradient that used to be there has been missing for long enough to be no chance."""
        return any(one.rare(index, 1e-2) for one in self._absences_of(run) for index in one.candidates())

    def _flow(self, run: Run) -> FlowRecorder | None:
        if self._own is not None:
            return self._own
        return run.flow if run.flow is not None and run.flow.attached else None

    def _without_graph(self, run: Run, loss: Tensor) -> Iterator[Signal]:
        flow = self._flow(run)
        calls = flow.calls(()) if flow is not None else ()
        disabled: bool | None = None
        if not torch.is_grad_enabled() or loss.is_inference() or (calls and not any(call.grad_enabled for call in calls)):
            disabled = True
        elif calls:
            disabled = False
        yield WithoutGraph(missing=True, disabled=disabled, calls=len(calls))

    def _new(self, run: Run, keys: list[tuple[Any, ...]]) -> bool:
        """Whether some of these were not said yet and can be placed now; without a listener the next batch shows more."""
        fresh = [key for key in keys if key not in self._seen]
        if not fresh:
            return False
        if self._flow(run) is None and self._extra >= 1.0:
            self._again = True
            return False
        self._seen.update(fresh)
        return True

    def _types(self, run: Run, graph: LossGraph, names: dict[int, str]) -> Iterator[Signal]:
        dtypes: dict[str, list[str]] = {}
        for key, leaf in graph.leaves.items():
            if key in names:
                dtypes.setdefault(_name(leaf.dtype), []).append(names[key])
        parameters = {dtype: tuple(found) for dtype, found in dtypes.items()}
        changes = type_changes(graph)
        keys = [("type", number, c.source, c.result, c.implicit) for number, c in enumerate(changes)]
        if not changes:
            if graph.compiled:
                self.unable[Types] = _COMPILED
            else:
                yield Types(_name(graph.dtype), parameters, ())
        elif self._new(run, keys):
            yield Types(_name(graph.dtype), parameters, tuple(self._placed(run, change, graph, names) for change in changes))

    def _placed(self, run: Run, change: TypeChange, graph: LossGraph, names: dict[int, str]) -> PlacedChange:
        return PlacedChange(
            source=_name(change.source),
            result=_name(change.result),
            place=self._place(run, change.node),
            scalar=not change.shape,
            implicit=change.implicit,
            comes_back=graph.dtype == change.source,
            parameters=_feeding(change.node, names),
        )

    def _patterns(self, run: Run, graph: LossGraph, names: dict[int, str]) -> Iterator[Signal]:
        twice = twice_normalised(graph)
        pairs = broadcasts(graph, self._sizes, self._storages)
        if not twice and not pairs:
            if graph.compiled:
                self.unable[Patterns] = _COMPILED
            else:
                yield Patterns()
            return
        keys: list[tuple[Any, ...]] = [("twice", operation(one.outer), number) for number, one in enumerate(twice)]
        keys += [("pairs", len(one.prediction), number) for number, one in enumerate(pairs)]
        if self._new(run, keys):
            yield Patterns(
                tuple(
                    PlacedSoftmax(
                        operation(one.outer), operation(one.inner), self._place(run, one.inner), _feeding(one.inner, names)
                    )
                    for one in twice
                ),
                tuple(PlacedBroadcast(one.prediction, one.result, _feeding(one.source, names)) for one in pairs),
            )

    def _activations(self, run: Run, graph: LossGraph, names: dict[int, str]) -> Iterator[Signal]:
        if graph.compiled:
            self.unable[DeadActivations] = _COMPILED
            return
        flow = self._flow(run)
        self._dead.look(graph, names, run.readings, flow.place if flow is not None else None, lambda: _silent(run))
        yield DeadActivations()

    def _place(self, run: Run, node: Any) -> str:
        flow = self._flow(run)
        return flow.place(node) if flow is not None else ""


def _silent(run: Run) -> set[str]:
    return {
        name
        for update in run.updates
        for name, zeros in zip(update.names, update.ledger.zero_run.tolist(), strict=True)
        if zeros >= SHORTEST_RUN
    }


def _feeding(node: Any, names: dict[int, str]) -> tuple[str, ...]:
    leaf = getattr(node, "variable", None)
    leaves = [leaf] if leaf is not None else nearest_leaves(node)
    return tuple(names[id(one)] for one in leaves if id(one) in names)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
