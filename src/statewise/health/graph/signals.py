"""What a look at the graph of one loss shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from statewise.health.graph.flow import Call
from statewise.health.signals import Signal


@dataclass(frozen=True)
class WithoutGraph(Signal):
    """A loss is to be differentiated, but has no graph."""

    waiting: ClassVar[str] = "no backward pass was seen"

    missing: bool
    # Whether autograd was off: in the modules' calls, or right now. None where no call was listened to.
    disabled: bool | None = None
    calls: int = 0


@dataclass(frozen=True)
class Reach(Signal):
    """Parameters that had gradients, have none in a run of steps that is unusual for them, and are not reached now."""

    waiting: ClassVar[str] = "no backward pass was seen"

    # Name to the number of steps running without a gradient (this one included).
    stopped: Mapping[str, int]
    reached: frozenset[str]
    calls: tuple[Call, ...]
    # Whether the graphs of this batch hold any parameter at all.
    empty: bool
    # Steps that the optimizer made.
    steps: int


@dataclass(frozen=True)
class PlacedChange:
    """A change of float type. `place` is a module, "" the code around the loss; `parameters` feed the operation."""

    source: str
    result: str
    place: str
    scalar: bool
    implicit: bool
    comes_back: bool
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Types(Signal):
    """Changes of float type that were not seen before, beside the types of the parameters that the loss reaches."""

    waiting: ClassVar[str] = "no backward pass was seen"

    loss: str
    parameters: Mapping[str, tuple[str, ...]]
    changes: tuple[PlacedChange, ...]

    @property
    def double(self) -> bool:
        """Whether the run is meant in float64: most of the parameters are."""
        count = sum(len(names) for names in self.parameters.values())
        return 2 * len(self.parameters.get("float64", ())) > count


@dataclass(frozen=True)
class PlacedSoftmax:
    """A softmax or a sigmoid that is applied to probabilities."""

    outer: str
    inner: str
    place: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class PlacedBroadcast:
    """A prediction that was stretched by a target of another shape."""

    prediction: tuple[int, ...]
    result: tuple[int, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Patterns(Signal):
    """Operations near the loss that do not fit one another, not seen before."""

    waiting: ClassVar[str] = "no backward pass was seen"

    softmaxes: tuple[PlacedSoftmax, ...] = ()
    broadcasts: tuple[PlacedBroadcast, ...] = ()


@dataclass(frozen=True)
class DeadActivation:
    """An activation that let no gradient through in `looks` batches running.

    `share` of its elements is off or saturated; `fed_by` are the parameters right before it; `lost` those whose gradient
    has been exactly zero because they have no other way to the loss; `starved` weights that are multiplied with its zeros.
    """

    name: str
    two_sided: bool
    place: str
    looks: int
    share: float
    fed_by: tuple[str, ...]
    lost: tuple[str, ...]
    starved: tuple[str, ...]


@dataclass(frozen=True)
class DeadActivations(Signal):
    """Activations of hidden units that stayed off."""

    waiting: ClassVar[str] = "no backward pass was seen"

    dead: tuple[DeadActivation, ...] = ()
