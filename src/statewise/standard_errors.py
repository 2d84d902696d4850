"""Standard errors of means over windows that are not independent: from sums over blocks of time.

The targets of neighbouring windows share rows where they are made of several, and those of several series at one moment
move together; then n windows say less than n independent ones. Each statistic here is, to first order, a mean of one
number per window (its influence), so that

    se^2 = B / (B - 1) * sum over blocks (sum of the influences in the block)^2 / n^2

with B blocks of time, each long beside what neighbours share and each with all series. Blocks that do not overlap ignore
what is shared over their borders: about a tenth of the variance where blocks are ten times as long, half of that in the error.
"""

import math

import numpy as np
from jaxtyping import Float, Int, Shaped

LENGTH = 10  # blocks are so many times as long as what neighbours share, where there is room for MANY of them
MANY = 20
FEWEST = 8  # with fewer blocks there is no standard error to speak of


def time_blocks(clock: Shaped[np.ndarray, " n"], *, shared: int, columns: int = 1) -> Int[np.ndarray, " n"] | None:
    """The block of each window; None where every window stands for itself.

    Args:
        clock: the time of each window (or its row number), ascending within a series, one series after another.
        shared: rows that the targets of a window and the next one have in common.
        columns: targets of a window, which move together.
    """
    moments, place = np.unique(clock, return_inverse=True)
    place = place.astype(np.int64)
    if not shared:
        return None if len(moments) == len(clock) and columns == 1 else place
    # Where series have times of their own, more moments go by until one of them has made so many rows.
    breaks = np.flatnonzero(clock[1:] <= clock[:-1]) + 1
    longest = int(np.diff(np.concatenate([[0], breaks, [len(clock)]])).max(initial=1))
    apart = -(-len(moments) // max(longest, 1))
    length = max(shared + 1, min(LENGTH * (shared + 1), len(moments) // MANY)) * apart
    return np.asarray(place // length)


def standard_error(influence: Float[np.ndarray, " k"], block: Int[np.ndarray, " k"] | None) -> float:
    """Of the mean of `influence`, whose own mean is 0; None takes every entry as independent. NaN with too few blocks."""
    sums = influence if block is None else np.bincount(block, weights=influence)[np.unique(block)]
    count = len(sums)
    if count < FEWEST:
        return math.nan
    return math.sqrt(count / (count - 1) * float(sums @ sums)) / len(influence)
