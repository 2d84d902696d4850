"""In which batches somebody listens to the modules' calls, and what was heard last."""

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from statewise.health.graph.flow import Call, FlowRecorder
from statewise.health.graph.walk import LossGraph


class Listening:
    """Hooks on every module are dear: only a batch that somebody asks for is listened to.

    Attributes:
        due: whether the batch that comes is asked for.
        flow: who listens in this batch, or did in the last one that was listened to; None: nobody, it is let go.
        calls: what was heard last.
    """

    def __init__(self) -> None:
        self.flow: FlowRecorder | None = None
        self.start()

    def start(self) -> None:
        """A run begins. Hooks that one before it left behind go when its first batch begins."""
        self.due = True
        self.calls: tuple[Call, ...] = ()
        # Compiled modules; None where the graph has a compiled piece that belongs to none of them.
        self._opaque: frozenset[str] | None = frozenset()

    @property
    def attached(self) -> bool:
        """Whether the calls of the batch that is under way are heard."""
        return self.flow is not None and self.flow.attached

    def begin(self, module: nn.Module, batch: Any) -> None:
        """This batch is listened to."""
        self.due = False
        self.flow = FlowRecorder(module, batch)

    def hear(self, graphs: Sequence[LossGraph]) -> None:
        """Take down what was heard so far, with the graphs that it led to."""
        if self.flow is not None:
            self.calls = self.flow.calls(graphs)

    def end(self, graphs: Sequence[LossGraph]) -> None:
        """The batch is over."""
        if self.flow is None or not self.flow.attached:
            return
        self.flow.detach()
        self.hear(graphs)
        hidden = not self.flow.compiled and any(graph.compiled for graph in graphs)
        self._opaque = None if hidden else frozenset(self.flow.compiled)

    def biases_before_norms(self) -> frozenset[str]:
        """Biases that a batch norm cancels."""
        return frozenset(f"{name}.bias" for name in self.flow.feeding_norms()) if self.flow is not None else frozenset()

    def unseen(self, names: Collection[str]) -> frozenset[str]:
        """Those of some parameters that lie in compiled modules; all of them where compiled code of no module is about."""
        if self._opaque is None:
            return frozenset(names)
        return frozenset(name for name in names if any(not path or name.startswith(f"{path}.") for path in self._opaque))

    def forget(self) -> None:
        """Take the hooks off, and let go of what they kept."""
        if self.flow is not None:
            self.flow.clear()
        self.flow = None
