"""Columns that number the rows."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject

_FEW = 10


def counter(subject: Subject, name: str, values: Float[np.ndarray, " r"]) -> Iterator[Oddity]:
    """Once, where each value is the one before it plus one."""
    within = subject.within
    if np.count_nonzero(within) >= _FEW and bool(np.all(values[1:][within] - values[:-1][within] == 1)):
        message = f"{name}: numbers the rows, and in evaluation only ever has values that training has not seen"
        places = subject.places(np.arange(len(values)), {name: values})
        yield Oddity("row-numbers", "info", len(values), places, message, f"leave {name} out of data.features")
