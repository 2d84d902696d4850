"""What watches one side of a run: it sees the events of the training loop and turns them into signals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from statewise.health.declared import Declared
from statewise.health.graph.flow import FlowRecorder
from statewise.health.graph.walk import LossGraph, edge, walk
from statewise.health.parameters import Inventory
from statewise.health.readings import Readings
from statewise.health.setting import Setting
from statewise.health.signals import Signal
from statewise.health.steps.updates import UpdateMonitor


@dataclass
class Run:
    """The run that observers watch. The monitor keeps inventory, declared and step (completed optimizer steps) current."""

    module: nn.Module
    optimizers: Sequence[Optimizer]
    setting: Setting
    readings: Readings
    inventory: Inventory
    declared: Declared
    step: int = 0
    # Training batches begun in this process.
    batch: int = 0
    # What is counted of each optimizer's steps, and who listens to the modules' calls of this batch (None: nobody).
    updates: Sequence[UpdateMonitor] = ()
    flow: FlowRecorder | None = None
    # Whether the graph of this batch is due for a look; how many of the coming batches an observer asked to hear of.
    look: bool = True
    listen: int = 0
    _walked: tuple[tuple[Any, int] | None, LossGraph] | None = None

    def graph(self, loss: Tensor) -> LossGraph:
        """The graph of this batch's loss: whoever asks first walks it."""
        place = edge(loss)
        if self._walked is None or place is None or self._walked[0] != place:
            self._walked = place, walk(loss)
        return self._walked[1]

    def forget_graph(self) -> None:
        """Let go of it: a graph holds memory."""
        self._walked = None


class Observer:
    """Every event may be news; nothing is, unless a subclass says so.

    In a long run most batches are quiet (Duty): then only the events in `always` are told, from batches that follow one
    another or not. Whoever needs the coming batches as well raises `run.listen`.

    Anything of a device goes through `run.readings`, so that a logged step costs one transfer. An observer whose check
    cannot run puts the reason into `unable`, by kind of signal: health.json then says why.
    """

    always: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.unable: dict[type[Signal], str] = {}

    def start(self, run: Run) -> Iterable[Signal]:
        """The fit begins: modules, optimizers and loop are known, nothing has run."""
        return ()

    def begin_batch(self, run: Run, batch: Any) -> Iterable[Signal]:
        """Before a training step."""
        return ()

    def backward(self, run: Run, loss: Tensor) -> Iterable[Signal]:
        """Before a backward pass: the graph still stands. The loss is what is differentiated (already divided)."""
        return ()

    def after_backward(self, run: Run) -> Iterable[Signal]:
        """After a backward pass."""
        return ()

    def before_update(self, run: Run, number: int) -> Iterable[Signal]:
        """The gradients of optimizer `number` are complete and unclipped, values are old."""
        return ()

    def after_update(self, run: Run, number: int) -> Iterable[Signal]:
        """Its step was made; gradients are what it used."""
        return ()

    def end_batch(self, run: Run) -> Iterable[Signal]:
        """After the training step and whatever it updated."""
        return ()

    def end_epoch(self, run: Run) -> Iterable[Signal]:
        """After the last batch of an epoch."""
        return ()

    def close(self) -> None:
        """Let go of hooks, graphs and copies."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
