"""A few rows on Saturdays or Sundays among daily rows that have none."""

from collections.abc import Iterator

import numpy as np

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import DAY, Subject
from statewise.data.segments.frequency import days_of_the_week

_FEW = 0.02
_WEEKS = 20


def weekends(subject: Subject) -> Iterator[Oddity]:
    """Once; of daily rows only: within days many markets open on Sunday evening."""
    if subject.usual != DAY or subject.rows.times is None or len(subject.rows) < 5 * _WEEKS:
        return
    found = np.flatnonzero(days_of_the_week(subject.rows.times) > 4)
    if 0 < len(found) <= _FEW * len(subject.rows):
        message = f"{len(found):,} of {len(subject.rows):,} daily rows lie on a Saturday or Sunday"
        remedy = "look whether these are days of trading, or whether data.timezone moves the date"
        yield Oddity("weekend-rows", "info", len(found), subject.places(found), message, remedy)
