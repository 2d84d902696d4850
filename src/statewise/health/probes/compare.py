"""Whether tensors of two runs are the same, as far as their precision can tell, and on which axis their rows lie."""

from collections.abc import Iterator

import torch
from torch import Tensor

from statewise.health.probes.take import Call, Take


def tolerance(tensor: Tensor) -> float:
    """The largest relative difference that another order of summation explains."""
    if tensor.dtype == torch.float64:
        return 1e-8
    if tensor.dtype == torch.float32:
        # Matrix products of an accelerator may round to TF32.
        return 1e-4 if tensor.device.type == "cpu" else 1e-2
    return 5e-2


def difference(one: Tensor, other: Tensor) -> float:
    """max|a - b| / max|a|; for integers and booleans the share of entries that differ. Both of one shape."""
    one, other = one.detach(), other.detach()
    if not one.numel() or torch.equal(one, other):
        return 0.0
    if not one.is_floating_point():
        return float((one != other).double().mean())
    one, other = one.double(), other.double()
    both = torch.isfinite(one) & torch.isfinite(other)
    if not bool(both.any()):
        return 0.0
    gap = (one - other)[both].abs().max()
    return float(gap / one[both].abs().max().clamp_min(1e-30))


def same(one: Tensor, other: Tensor, strict: float = 1.0) -> bool:
    """Equal within `strict` times the tolerance."""
    return one.shape == other.shape and difference(one, other) <= strict * tolerance(one)


def tail(whole: Tensor, part: Tensor, rows: int, alone: int) -> tuple[Tensor, ...] | None:
    """The last rows of `whole` that belong to `part`, in every layout they may have; None where not one axis follows the batch.

    The axis of rows is the one that shrinks with the batch: from k * rows to k * alone, where k other indices are folded
    into it, outside the rows or inside.
    """
    if whole.ndim != part.ndim:
        return None
    axes = [axis for axis in range(whole.ndim) if whole.shape[axis] != part.shape[axis]]
    if len(axes) != 1:
        return None
    axis = axes[0]
    fold, left = divmod(whole.shape[axis], rows)
    if left or not fold or part.shape[axis] != fold * alone:
        return None
    inner = whole.narrow(axis, (rows - alone) * fold, alone * fold)
    if fold == 1:
        return (inner,)
    shape = whole.shape
    unfolded = whole.reshape(*shape[:axis], fold, rows, *shape[axis + 1 :])
    return inner, unfolded.narrow(axis + 1, rows - alone, alone).reshape(part.shape)


def alike(whole: Tensor, axis: int, rows: int) -> bool:
    """Whether all rows of a tensor are the same, in one of the layouts that `tail` knows."""
    shape = whole.shape
    fold = shape[axis] // rows
    for at, split in ((axis, (rows, fold)), (axis + 1, (fold, rows))):
        unfolded = whole.reshape(*shape[:axis], *split, *shape[axis + 1 :])
        if same(unfolded.narrow(at, 0, 1).expand_as(unfolded), unfolded, 0.1):
            return True
    return False


def pairs(one: Take, other: Take) -> Iterator[tuple[Call, Call]]:
    """The calls of two runs that correspond: the same module for the same time, in the order in which they ended."""
    known: dict[tuple[str, int], Call] = {}
    times: dict[str, int] = {}
    for call in other.calls:
        times[call.name] = times.get(call.name, -1) + 1
        known[call.name, times[call.name]] = call
    times = {}
    for call in one.calls:
        times[call.name] = times.get(call.name, -1) + 1
        partner = known.get((call.name, times[call.name]))
        fits = partner is not None and len(partner.inputs) == len(call.inputs) and len(partner.outputs) == len(call.outputs)
        if partner is not None and fits:
            yield call, partner


def first_change(one: Take, other: Take) -> Call | None:
    """The innermost call that gave something else out although the same went in."""
    for call, partner in pairs(one, other):
        given = zip(call.inputs, partner.inputs, strict=True)
        made = zip(call.outputs, partner.outputs, strict=True)
        if all(same(a, b, 0.1) for a, b in given) and not all(same(a, b) for a, b in made):
            return call
    return None
