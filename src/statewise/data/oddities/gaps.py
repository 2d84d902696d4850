"""Jumps in the time column that windows do not cross."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import DAY, Subject, counted
from statewise.data.segments.gaps import Gap, find_gaps
from statewise.data.tables.times.duration import in_words
from statewise.data.tables.times.iso import readable, utc

_MUCH = 0.5
_NEARLY_ALL = 0.95
_UNITS = (("d", DAY), ("h", DAY // 24), ("m", DAY // 1440), ("s", 10**9), ("ns", 1))


def gaps(subject: Subject) -> Iterator[Oddity]:
    """Once, where there are any, whatever the policy does with them."""
    rows = subject.rows
    if rows.times is None or subject.usual is None:
        return
    found, _ = find_gaps(rows, Gap("segment", subject.gap.step), subject.max_gap)
    if not len(found):
        return
    difference = subject.steps[0]
    row = int(found[np.argmax(difference[found - 1])])
    start, stop = (readable(utc(rows.times[each])) for each in (row - 1, row))
    longest = f"{in_words(int(difference[row - 1]))} from {start} to {stop}{rows.of_series(row)}"
    message = (
        f"{counted(len(found), 'gap')} in time, {'the longest ' if len(found) > 1 else ''}{longest}; "
        f"the usual step is {in_words(subject.usual)}"
    )
    lost = subject.lost.get("gaps", 0.0)
    if lost:
        message += f"; {100 * lost:.3g} % of the windows are lost by them"
    severity, remedy = "info", ""
    if subject.gap.policy == "error":
        severity, remedy = "error", "data.gap.policy=error refuses them: segment, forward_fill or ignore, or set data.max_gap"
    elif subject.gap.policy == "ignore":
        remedy = "windows cross them (data.gap.policy=ignore)"
    elif subject.gap.policy == "forward_fill":
        remedy = f"those of at most {subject.gap.max_fill:,} absent rows are filled from the past, no window crosses the others"
    else:
        remedy = "no window crosses one"
        if lost > _MUCH:
            severity = "warning"
            crossed = _long_enough(difference[found - 1])
            remedy += f": data.max_gap={crossed} lets windows cross nearly all of them, a smaller data.window keeps more"
    yield Oddity("gaps", severity, len(found), subject.places(found), message, remedy)


def _long_enough(lengths: Int[np.ndarray, " j"]) -> str:
    """A duration for data.max_gap that nearly all of these gaps do not pass, in whole days, hours, minutes or seconds."""
    most = int(np.quantile(lengths, _NEARLY_ALL, method="lower"))
    name, size = next(((name, size) for name, size in _UNITS if most >= size), _UNITS[-1])
    return f"{-(-most // size)}{name}"
