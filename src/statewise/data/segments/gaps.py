"""Jumps in the time column: where they are, and what they mean."""

import re
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from jaxtyping import Bool, Int

from statewise.choices import at_least, one_of
from statewise.data.tables.rows import Rows

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}


@dataclass(frozen=True)
class Gap:
    """What a jump in the time column means.

    Attributes:
        policy: `segment` (no window crosses a gap), `forward_fill` (absent rows of a regular grid are inserted with the
            values before them, never as targets: regular.py; a longer gap is one), `error` (stop at the first) or `ignore`
            (rows count, not time).
        step: the regular time difference, such as `1m`, `1h` or `7d`; None takes the most frequent one.
        max_fill: the most rows that `forward_fill` inserts in one place.
    """

    policy: str = "segment"
    step: str | None = None
    max_fill: int = 24

    def __post_init__(self) -> None:
        one_of("data.gap.policy", self.policy, ("segment", "forward_fill", "error", "ignore"))
        if self.step is not None:
            nanoseconds(self.step)
        at_least(0, data__gap__max_fill=self.max_fill)


def nanoseconds(duration: str, key: str = "data.gap.step") -> int:
    """Length of a duration such as `1m`, `15m`, `1h` or `7d`.

    Raises:
        ValueError: it is none; the message names the key.
    """
    found = re.fullmatch(r"(\d+)(ns|us|ms|s|m|h|d)", duration.strip())
    if found is None or int(found[1]) == 0:
        units = ", ".join(_UNITS)
        raise ValueError(f"{key} must be a number and a unit ({units}) such as 1m or 1h, got {duration!r}")
    return int(found[1]) * _UNITS[found[2]]


def find_gaps(rows: Rows, gap: Gap, max_gap: str | None = None) -> tuple[Int[np.ndarray, " j"], str]:
    """The rows before which time jumps within a series, and one sentence about them.

    Args:
        max_gap: the longest jump that is none, a duration; None is less than one and a half steps.

    Raises:
        ValueError: there is one, and the policy is `error`.
    """
    none = np.zeros(0, dtype=np.int64)
    if rows.times is None or gap.policy == "ignore":
        reason = "there is no time column" if rows.times is None else "data.gap.policy=ignore"
        return none, f"time gaps are not looked for: {reason}"
    difference, within = differences(rows)
    if not within.any():
        return none, "no time gap: no series has two rows"
    step = usual_step(difference[within], gap)
    usual = f"the step is {length_of(step)}"
    if max_gap is None:
        # From one and a half steps on, so that jitter, months of unequal length and leap years are no gaps.
        jumps = np.flatnonzero(within & (2 * difference >= 3 * step)) + 1
    else:
        longest_crossed = nanoseconds(max_gap, "data.max_gap")
        jumps = np.flatnonzero(within & (difference > longest_crossed)) + 1
        crossed = int((within & (2 * difference >= 3 * step) & (difference <= longest_crossed)).sum())
        usual += f", {crossed:,} jump(s) of at most data.max_gap={max_gap} are crossed"
    if not len(jumps):
        return jumps, f"no time gap, {usual}"

    def named(row: int) -> str:
        length = length_of(int(difference[row - 1]))
        return f"from {rows.at(row - 1)} to {rows.at(row)} ({length}){rows.of_series(row)}"

    first, longest = int(jumps[0]), int(jumps[np.argmax(difference[jumps - 1])])
    if gap.policy == "error":
        raise ValueError(
            f"the time column has {len(jumps):,} gap(s), the first {named(first)}, {usual}: "
            "set data.gap.policy=segment (no window crosses a gap), forward_fill or ignore, or data.gap.step or data.max_gap"
        )
    if len(jumps) == 1:
        return jumps, f"1 time gap {named(first)}, {usual}: no window crosses it"
    return jumps, f"{len(jumps):,} time gaps, the longest {named(longest)}, {usual}: no window crosses one"


def differences(rows: Rows) -> tuple[Int[np.ndarray, " d"], Bool[np.ndarray, " d"]]:
    """Nanoseconds from each row to the next, and whether both are of one series."""
    assert rows.times is not None
    difference = np.diff(rows.times.astype(np.int64))
    within = np.ones(len(difference), dtype=bool)
    # The ends of series; the last one, and those of empty series at the ends, have no row after them.
    ends = rows.offsets[1:-1]
    within[ends[(ends > 0) & (ends < len(rows))] - 1] = False
    return difference, within


def usual_step(difference: Int[np.ndarray, " d"], gap: Gap) -> int:
    """The step of the policy, in nanoseconds; where it has none, the most frequent difference."""
    if gap.step is not None:
        return nanoseconds(gap.step)
    lengths, counts = np.unique(difference, return_counts=True)
    return int(lengths[np.argmax(counts)])


def length_of(duration: int) -> str:
    """A duration in nanoseconds, for a person."""
    return f"{duration} ns" if duration % 1000 else str(timedelta(microseconds=duration // 1000))
