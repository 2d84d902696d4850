"""Times in the future, before 1900, or in the first days of 1970: often numbers that were read in another unit."""

import time
from collections.abc import Iterator

import numpy as np

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import DAY, Subject, counted

_1900 = np.datetime64("1900-01-01", "ns")
_EPOCH, _EPOCH_ENDS = np.datetime64("1970-01-01", "ns"), np.datetime64("1970-01-22", "ns")


def strange_times(subject: Subject) -> Iterator[Oddity]:
    """One oddity for each kind."""
    times = subject.rows.times
    if times is None or not len(times):
        return
    now = np.datetime64(time.time_ns() + DAY, "ns")
    for name, flags, which, remedy in (
        ("future-times", times > now, "in the future", "look at the year of the dates, data.day_first and data.timezone"),
        ("times-before-1900", times < _1900, "before the year 1900", "look at the time column, or name another in data.time"),
    ):
        found = np.flatnonzero(flags)
        if len(found):
            message = f"{counted(len(found), 'time')} {which}"
            yield Oddity(name, "warning", len(found), subject.places(found), message, remedy)
    if bool((times >= _EPOCH).all() and (times < _EPOCH_ENDS).all()):
        message = "all times lie in the first days of 1970"
        remedy = "the numbers count something else than time since 1970: name another column in data.time"
        yield Oddity("times-of-1970", "warning", len(times), subject.places(np.arange(len(times))), message, remedy)
