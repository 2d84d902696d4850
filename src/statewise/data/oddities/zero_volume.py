"""Bars in which nothing was traded."""

import re
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject, counted, longest_run, share

_VOLUME = re.compile(r"(^|[^a-z])(vol|volume)([^a-z]|$)")
_MUCH = 0.5


def is_volume(name: str) -> bool:
    """Whether a column is one of volumes, by its name."""
    return _VOLUME.search(name.lower()) is not None


def zero_volume(subject: Subject, name: str, values: Float[np.ndarray, " r"]) -> Iterator[Oddity]:
    """Once, where a column of volumes has zeros, or values below."""
    if not is_volume(name):
        return
    negative = np.flatnonzero(values < 0)
    if len(negative):
        # A volume below zero is none: the column counts something else, as the balance of bought and sold.
        return
    zero = values == 0
    found = np.flatnonzero(zero)
    if not len(found):
        return
    longest = longest_run(zero, subject.rows.offsets)
    message = f"{name}: zero in {counted(len(found), 'row')} ({share(len(found), len(values))}), at most {longest:,} in a row"
    severity = "warning" if len(found) > _MUCH * len(values) else "info"
    remedy = "prices stand still there: leave such bars out of the file, or choose longer bars" if severity == "warning" else ""
    yield Oddity("zero-volume", severity, len(found), subject.places(found), message, remedy)
