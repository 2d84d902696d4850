"""What a framework puts around a step, so that a copy of the module can run it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


class CannotRehearse(RuntimeError):
    """Why the copy's step could not be run."""


class StopStep(Exception):
    """Raised by a stand-in where the step would start to differentiate."""

    def __init__(self, loss: Tensor) -> None:
        super().__init__("the loss is known")
        self.loss = loss


@dataclass(frozen=True)
class Feed:
    """What is known of the data loader behind a batch; None where nobody knows."""

    batch_size: int | None = None
    # Rows of the last batch of an epoch, where it is smaller than the others and is not dropped.
    last: int | None = None
    shuffled: bool | None = None
    # One batch is the whole data set: no other size will come.
    whole: bool = False
    # Batches that make one update.
    accumulate: int = 1


@dataclass(frozen=True)
class Stage:
    """How to run a step of the copy as the framework would, without its side effects.

    prepare(copy, logged): attach stand-ins; every value the step logs goes into `logged`. shared: objects that the
    module refers to and that must not be copied. context: autocast and default dtype of a real step.
    """

    prepare: Callable[[nn.Module, dict[str, Any]], None] = lambda copy, logged: None
    shared: Sequence[Any] = ()
    context: Callable[[], AbstractContextManager] = nullcontext
    feed: Feed = Feed()
