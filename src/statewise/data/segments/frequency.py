"""How often rows come, in words."""

from typing import Any

import numpy as np
from jaxtyping import Int

from statewise.data.segments.gaps import Gap, differences, usual_step
from statewise.data.tables.rows import Rows
from statewise.data.tables.times.duration import in_words

_DAY = 86_400 * 10**9
_CALENDAR = (("1 month", 28, 31), ("1 quarter", 90, 92), ("1 year", 365, 366))
_MOST = 0.5


def frequency(rows: Rows) -> str | None:
    """`1 minute`, `1 day (weekdays)`, `1 month`; None where there are no times, or no series has two rows."""
    if rows.times is None:
        return None
    difference, within = differences(rows)
    steps = difference[within]
    if not len(steps):
        return None
    if (name := calendar_step(steps)) is not None:
        return name
    usual = usual_step(steps, Gap())
    if np.count_nonzero(steps == usual) < _MOST * len(steps):
        return f"irregular, most often {in_words(usual)}, half of the steps below {in_words(int(np.median(steps)))}"
    if usual == _DAY and _without_weekends(rows.times):
        return "1 day (weekdays)"
    return in_words(usual)


def calendar_step(steps: Int[np.ndarray, " d"]) -> str | None:
    """The name of a step that the calendar makes unequal: all of them are months, quarters or years."""
    if not len(steps):
        return None
    shortest, longest = int(steps.min()), int(steps.max())
    if shortest == longest:
        return None
    for name, least, most in _CALENDAR:
        if least * _DAY <= shortest and longest <= most * _DAY:
            return name
    return None


def days_of_the_week(times: Any) -> Int[np.ndarray, " r"]:
    """0 for Monday to 6 for Sunday."""
    # 1970-01-01 was a Thursday.
    return np.asarray((times.astype("datetime64[D]").astype(np.int64) + 3) % 7)


def _without_weekends(times: Any) -> bool:
    days = days_of_the_week(times)
    long_enough = bool((times.max() - times.min()).astype(np.int64) >= 7 * _DAY)
    return long_enough and bool(np.count_nonzero(days > 4) <= 0.02 * len(days))
