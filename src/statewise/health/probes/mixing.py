"""Are the rows of a batch independent? The last rows alone must give what they give among the others.

The last rows, because a recursion over the batch leaves the first ones as they are.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from statewise.health.probes.compare import alike, difference, pairs, same, tail, tolerance
from statewise.health.probes.take import Call, Take
from statewise.health.signals import Signal


@dataclass(frozen=True)
class RowsAlone(Signal):
    """The last `alone` of `rows` rows were run in evaluation mode without the others.

    kind: "" (they give the same), "mixed" (something else), "identical" (something else, and all rows of the whole batch
    give one and the same prediction), "collapsed" (the prediction has no axis that follows the batch, although what it is
    compared with has one). `module` is the innermost one that mixes the rows; with `own_code` it is the last one before
    code that is in no module, and `in_loss` says that no module is given what that code makes: it may be a loss that compares
    rows by design. None where no module is known either.
    """

    waiting: ClassVar[str] = "no training batch was reached"

    rows: int
    alone: int
    kind: str = ""
    deviation: float = 0.0
    module: str | None = None
    own_code: bool = False
    prediction: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    in_loss: bool = False


def compare_rows(whole: Take, part: Take, rows: int, alone: int, twin: nn.Module) -> RowsAlone:
    """What the last rows give alone, against what they give in the batch."""
    outermost = {(call.enter, call.exit) for call in whole.outermost()}
    ends = [(call, partner) for call, partner in pairs(whole, part) if (call.enter, call.exit) in outermost]
    if ends and not any(_same_rows(call, partner, rows, alone) for call, partner in ends):
        # The step cuts or mixes the batch itself before any module sees it: nothing corresponds.
        return RowsAlone(rows, alone)
    found = _at_the_loss(whole, part, rows, alone)
    if found is None:
        return RowsAlone(rows, alone)
    kind, deviation, prediction, target, after = found
    culprit = _culprit(whole, part, rows, alone)
    if culprit is not None and _meant(twin.get_submodule(culprit.name)):
        return RowsAlone(rows, alone)
    name = culprit.name if culprit is not None else whole.calls[after - 1].name if after else None
    own = culprit is None
    return RowsAlone(rows, alone, kind, deviation, name, own, prediction, target, own and not _enters(whole, part, rows, alone))


def follow_rows(whole: Take, part: Take, rows: int, alone: int) -> bool:
    """Whether what comes out has an axis that follows the rows."""
    outermost = {(call.enter, call.exit) for call in whole.outermost()}
    return any(
        tail(one, other, rows, alone) is not None
        for call, partner in pairs(whole, part)
        if (call.enter, call.exit) in outermost
        for one, other in zip(call.outputs, partner.outputs, strict=True)
    )


_Found = tuple[str, float, tuple[int, ...], tuple[int, ...], int]


def _at_the_loss(whole: Take, part: Take, rows: int, alone: int) -> _Found | None:
    """The first prediction, as its loss sees it, that depends on which other rows there are."""
    met, met_alone = whole.meetings(), part.meetings()
    if not met or len(met) != len(met_alone):
        return _at_the_end(whole, part, rows, alone)
    for one, other in zip(met, met_alone, strict=True):
        verdict = _judged(one.prediction, other.prediction, rows, alone)
        if verdict is None:
            continue
        kind, deviation = verdict
        if kind == "collapsed" and not _follow(one.others, other.others, rows, alone):
            continue
        target = max((tuple(tensor.shape) for tensor in one.others), key=len, default=())
        return kind, deviation, tuple(one.prediction.shape), target, one.after
    return None


def _at_the_end(whole: Take, part: Take, rows: int, alone: int) -> _Found | None:
    """Where no loss compares anything with the batch: what comes out of the calls that no other contains."""
    ends = {(call.enter, call.exit) for call in whole.outermost()}
    for call, partner in pairs(whole, part):
        if (call.enter, call.exit) not in ends or not _same_rows(call, partner, rows, alone):
            continue
        for one, other in zip(call.outputs, partner.outputs, strict=True):
            verdict = _judged(one, other, rows, alone)
            if verdict is not None and verdict[0] != "collapsed":
                return *verdict, tuple(one.shape), (), whole.calls.index(call) + 1
    return None


def _judged(one: Tensor, other: Tensor, rows: int, alone: int) -> tuple[str, float] | None:
    if not one.is_floating_point() or not one.ndim:
        return None
    if one.shape == other.shape:
        gap = difference(one, other)
        return ("collapsed", gap) if gap > tolerance(one) else None
    layouts = tail(one, other, rows, alone)
    if layouts is None:
        return None
    gap = min(difference(layout, other) for layout in layouts)
    if gap <= tolerance(one):
        return None
    axis = next(axis for axis in range(one.ndim) if one.shape[axis] != other.shape[axis])
    return ("identical" if alike(one, axis, rows) else "mixed"), gap


def _follow(ones: tuple[Tensor, ...], others: tuple[Tensor, ...], rows: int, alone: int) -> bool:
    return any(tail(one, other, rows, alone) is not None for one, other in zip(ones, others, strict=False))


def _culprit(whole: Take, part: Take, rows: int, alone: int) -> Call | None:
    """The innermost module that is given the same rows and gives others back."""
    for call, partner in pairs(whole, part):
        if not _same_rows(call, partner, rows, alone):
            continue
        if any(_judged(one, other, rows, alone) for one, other in zip(call.outputs, partner.outputs, strict=True)):
            return call
    return None


def _enters(whole: Take, part: Take, rows: int, alone: int) -> bool:
    """Whether what depends on other rows goes into a module, so that it is more than a loss over pairs of rows."""
    return any(
        any(_judged(one, other, rows, alone) for one, other in zip(call.inputs, partner.inputs, strict=True))
        for call, partner in pairs(whole, part)
    )


def _same_rows(call: Call, partner: Call, rows: int, alone: int) -> bool:
    """Whether both were given the same: at least one input with the same rows, and nothing else that differs."""
    some = False
    for one, other in zip(call.inputs, partner.inputs, strict=True):
        if one.shape == other.shape:
            if not same(one, other, 0.1):
                return False
            continue
        layouts = tail(one, other, rows, alone)
        if layouts is None or not any(same(layout, other, 0.1) for layout in layouts):
            return False
        some = True
    return some


def _meant(module: nn.Module) -> bool:
    """A batch norm without running averages normalises by the batch, in evaluation too."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None
