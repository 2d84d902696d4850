"""Values that are infinite."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject


def infinite(subject: Subject, name: str, values: Float[np.ndarray, " r"]) -> Iterator[Oddity]:
    """Once, where there are any."""
    found = np.flatnonzero(np.isinf(values))
    if len(found):
        places = subject.places(found, {name: values})
        message = f"{name}: {len(found):,} infinite value(s)"
        yield Oddity("infinite-values", "error", len(found), places, message, "correct them, or leave the cells empty")
