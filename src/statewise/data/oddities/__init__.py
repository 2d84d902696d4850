"""What is odd in the data of a file: one check, one file."""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float

from statewise.data.oddities.bars import bars
from statewise.data.oddities.constant import constant
from statewise.data.oddities.counter import counter
from statewise.data.oddities.gaps import gaps
from statewise.data.oddities.infinite import infinite
from statewise.data.oddities.irregular import irregular
from statewise.data.oddities.jumps import jumps
from statewise.data.oddities.large_numbers import large_numbers
from statewise.data.oddities.missing_values import missing_values
from statewise.data.oddities.oddity import SEVERITIES, Oddity, Place
from statewise.data.oddities.repeated import repeated
from statewise.data.oddities.series_lengths import series_lengths
from statewise.data.oddities.strange_times import strange_times
from statewise.data.oddities.subject import Subject
from statewise.data.oddities.weekends import weekends
from statewise.data.oddities.zero_volume import zero_volume

__all__ = ["OF_A_COLUMN", "OF_THE_TABLE", "Oddity", "Place", "Subject", "in_order_of_severity"]

# Each is given the subject; those of a column also its name and its values, NaN where missing.
OF_THE_TABLE: tuple[Callable[[Subject], Iterator[Oddity]], ...] = (
    repeated,
    strange_times,
    irregular,
    gaps,
    weekends,
    series_lengths,
    large_numbers,
    bars,
)
OF_A_COLUMN: tuple[Callable[[Subject, str, Float[np.ndarray, " r"]], Iterator[Oddity]], ...] = (
    infinite,
    missing_values,
    constant,
    counter,
    jumps,
    zero_volume,
)


def in_order_of_severity(oddities: list[Oddity]) -> list[Oddity]:
    return sorted(oddities, key=lambda oddity: SEVERITIES.index(oddity.severity))
