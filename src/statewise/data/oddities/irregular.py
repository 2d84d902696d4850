"""Times that follow no grid."""

from collections.abc import Iterator

import numpy as np

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject, share
from statewise.data.segments.frequency import calendar_step
from statewise.data.tables.times.duration import in_words

_MUCH = 0.01
_FEW = 20


def irregular(subject: Subject) -> Iterator[Oddity]:
    """Once, where one step in a hundred is no multiple of the usual one; months and years are regular."""
    if subject.usual is None:
        return
    difference, within = subject.steps
    steps = difference[within]
    if len(steps) < _FEW or calendar_step(steps) is not None:
        return
    off = within & (difference % subject.usual != 0)
    count = int(off.sum())
    if count <= _MUCH * len(steps):
        return
    found = np.flatnonzero(off) + 1
    message = (
        f"{share(count, len(steps))} of the steps ({count:,}) are no multiple of the usual one, {in_words(subject.usual)}; "
        f"half of all steps are below {in_words(int(np.median(steps)))}"
    )
    remedy = "name the step in data.gap.step, or set data.gap.policy=ignore where rows count and not time"
    yield Oddity("irregular-steps", "warning", count, subject.places(found), message, remedy)
