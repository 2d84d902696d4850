"""Does the step work for another number of rows than this one?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from statewise.health.attributes import HiddenTensor
from statewise.health.signals import Signal


@dataclass(frozen=True)
class SubBatch(Signal):
    """The step was run with `alone` of `rows` rows: `error` is what it raised, in `module` (None: outside of all).

    sized: tensors held beside the parameters that have as many rows as the batch. last: rows of the last batch of an
    epoch, if there will be one that is smaller; `last_error` is what the step raises for so many. whole: the batch is the
    whole data set.
    """

    waiting: ClassVar[str] = "no training batch was reached"

    rows: int
    alone: int
    error: str = ""
    module: str | None = None
    sized: tuple[str, ...] = ()
    last: int | None = None
    last_error: str = ""
    whole: bool = False


def sized(candidates: Mapping[int, tuple[HiddenTensor, Tensor]], rows: int) -> tuple[HiddenTensor, ...]:
    """Tensors beside the parameters with a row for each row of the batch."""
    return tuple(fact for fact, _ in candidates.values() if fact.shape and fact.shape[0] == rows)
