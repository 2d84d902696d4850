"""Jumps in the time column: where they are, and what they mean."""

import re
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from jaxtyping import Int

from statewise.choices import one_of
from statewise.data.rows import Rows

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}


@dataclass(frozen=True)
class Gap:
    """What a jump in the time column means.

    Attributes:
        policy: `segment` (no window crosses a gap), `error` (stop at the first) or `ignore` (rows count, not time).
        step: the regular time difference, such as `1m`, `1h` or `7d`; None takes the most frequent one.
    """

    policy: str = "segment"
    step: str | None = None

    def __post_init__(self) -> None:
        one_of("data.gap.policy", self.policy, ("segment", "error", "ignore"))
        if self.step is not None:
            nanoseconds(self.step)


def nanoseconds(step: str) -> int:
    """Length of a step such as `1m`, `15m`, `1h` or `7d`."""
    found = re.fullmatch(r"(\d+)(ns|us|ms|s|m|h|d)", step.strip())
    if found is None or int(found[1]) == 0:
        units = ", ".join(_UNITS)
        raise ValueError(f"data.gap.step must be a number and a unit ({units}) such as 1m or 1h, got {step!r}")
    return int(found[1]) * _UNITS[found[2]]


def find_gaps(rows: Rows, gap: Gap) -> tuple[Int[np.ndarray, " j"], str]:
    """The rows before which time jumps within a series, and one sentence about them.

    Raises:
        ValueError: there is one, and the policy is `error`.
    """
    none = np.zeros(0, dtype=np.int64)
    if rows.times is None or gap.policy == "ignore":
        reason = "there is no time column" if rows.times is None else "data.gap.policy=ignore"
        return none, f"time gaps are not looked for: {reason}"
    difference = np.diff(rows.times.astype(np.int64))
    within = np.ones(len(difference), dtype=bool)
    within[rows.offsets[1:-1] - 1] = False
    if not within.any():
        return none, "no time gap: no series has two rows"
    if gap.step is None:
        lengths, counts = np.unique(difference[within], return_counts=True)
        step = int(lengths[np.argmax(counts)])
    else:
        step = nanoseconds(gap.step)
    # From one and a half steps on, so that jitter, months of unequal length and leap years are no gaps.
    jumps = np.flatnonzero(within & (2 * difference >= 3 * step)) + 1
    usual = f"the step is {_length(step)}"
    if not len(jumps):
        return jumps, f"no time gap, {usual}"

    def named(row: int) -> str:
        length = _length(int(difference[row - 1]))
        return f"from {rows.at(row - 1)} to {rows.at(row)} ({length}){rows.of_series(row)}"

    first, longest = int(jumps[0]), int(jumps[np.argmax(difference[jumps - 1])])
    if gap.policy == "error":
        raise ValueError(
            f"the time column has {len(jumps):,} gap(s), the first {named(first)}, {usual}: "
            "set data.gap.policy=segment (no window crosses a gap) or ignore, or data.gap.step"
        )
    if len(jumps) == 1:
        return jumps, f"1 time gap {named(first)}, {usual}: no window crosses it"
    return jumps, f"{len(jumps):,} time gaps, the longest {named(longest)}, {usual}: no window crosses one"


def _length(duration: int) -> str:
    """A duration in nanoseconds, for a person."""
    return f"{duration} ns" if duration % 1000 else str(timedelta(microseconds=duration // 1000))
