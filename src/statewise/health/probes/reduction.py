"""Is the loss a mean over the rows, or a sum? The losses of two halves tell: half of each, or all of both, is the whole."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from statewise.health.probes.compare import tolerance
from statewise.health.probes.take import Take
from statewise.health.signals import Signal

# Nodes that make one number of a batch's errors.
_REDUCING = ("Mean", "Loss", "CrossEntropy", "KlDiv")


@dataclass(frozen=True)
class Halves(Signal):
    """The loss of a batch and of its halves, in evaluation mode.

    summed: the whole is the sum of the halves. reconstruction: the target is the input, as in an autoencoder, where a
    summed loss is a habit of the field. last: rows of a smaller last batch. divided: the step divides its loss by as many
    batches as the framework accumulates, which divides it itself; 0 if not.
    """

    waiting: ClassVar[str] = "no training batch was reached"

    rows: int
    whole: float = 0.0
    parts: tuple[float, ...] = ()
    summed: bool = False
    reconstruction: bool = False
    last: int | None = None
    accumulate: int = 1
    divided: int = 0


def suspicious(whole: Take, part: Take) -> bool:
    """Whether one half's loss is so much less than the whole's that the other half's is worth a run."""
    total, half = whole.value(), part.value()
    if total is None or half is None or not math.isfinite(total) or abs(total) < 1e-12:
        return False
    return 0.05 < half / total < 0.95


def adds_up(whole: Take, first: Take, second: Take) -> bool:
    """Whether the whole's loss is the sum of the halves' and not their mean."""
    total, one, other = whole.value(), first.value(), second.value()
    if total is None or one is None or other is None:
        return False
    # Losses over pairs of rows come near a sum by accident: only rounding may lie between.
    exact = tolerance(whole.loss[1]) if whole.loss is not None else 0.0
    return abs(one + other - total) <= exact * abs(total)


def divided_by(loss: Tensor, accumulate: int) -> int:
    """`accumulate`, if the last thing done to a reduced loss is to divide it by just that number; else 0.

    Where the number divides a sum it makes a mean, and where it is none of the loop's it means something else.
    """
    node = loss.grad_fn
    if accumulate < 2 or node is None:
        return 0
    name, other = node.name(), getattr(node, "_saved_other", None)
    if not isinstance(other, Tensor) or other.numel() != 1 or not name.startswith(("DivBackward", "MulBackward")):
        return 0
    factor = float(other) if name.startswith("Div") else 1 / float(other) if float(other) else math.inf
    below = node.next_functions[0][0]
    reduced = below is not None and any(word in below.name() for word in _REDUCING)
    return accumulate if reduced and math.isclose(factor, accumulate, rel_tol=1e-6) else 0
