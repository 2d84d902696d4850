"""Changes from a row to the next that are out of all proportion: splits that nobody adjusted for, slips of the keyboard."""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from statewise.data.oddities.names import PRICES, plain
from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import DAY, Subject, counted

_DEVIATIONS = 50
_OF_A_SPLIT = 10  # deviations: on daily bars even a split of two for one is not 50
_RATIO = math.log(1.45)  # below that of a split of three for two
_TOP = 0.001  # of the changes, the largest ones, by which the deviation must not be measured
_FEW = 30


def jumps(subject: Subject, name: str, values: Float[np.ndarray, " r"]) -> Iterator[Oddity]:
    """Once, where a change is beyond 50 standard deviations of the others, or prices change as by a split.

    Prices are compared by their logarithms. Rows that change nothing do not count: of a value that rests most of the time
    every change would be far out. Across a gap inside a day or between two days only splits are looked for.
    """
    relative = plain(name) in PRICES and bool(np.nanmin(values, initial=np.inf) > 0)
    with np.errstate(invalid="ignore"):
        change = np.diff(np.log(values) if relative else values)
    size = np.abs(change)
    counts = subject.within & np.isfinite(change) & (change != 0)
    near = counts
    if subject.usual is not None and subject.usual < DAY:
        near = counts & (2 * subject.steps[0] < 3 * subject.usual)
    usual = _deviation(size[near])
    if usual is None:
        return
    far = near & (size > _DEVIATIONS * usual)
    if relative:
        far |= counts & (size > max(_RATIO, _OF_A_SPLIT * usual))
    found = np.flatnonzero(far) + 1
    if not len(found):
        return
    most = float(size[far].max())
    largest = f"{most / usual:,.0f} standard deviations of the others"
    remedy = "look for a wrong digit or another unit, and correct the file"
    if relative:
        largest = f"by a factor of {math.exp(most):.3g} or its inverse, {largest}"
        remedy = "look for an unadjusted split, a wrong digit or another unit, and correct the file"
    message = f"{name}: {counted(len(found), 'jump')} out of proportion, the largest {largest}"
    yield Oddity("jumps", "warning", len(found), subject.places(found, {name: values}), message, remedy)


def _deviation(size: Float[np.ndarray, " n"]) -> float | None:
    """Of changes but the largest; None where there are too few."""
    if len(size) < _FEW:
        return None
    kept = len(size) - max(4, int(_TOP * len(size)))
    usual = float(np.sqrt(np.mean(np.partition(size, kept - 1)[:kept] ** 2)))
    return usual if usual > 0 else None
