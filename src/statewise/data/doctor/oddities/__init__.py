"""What is odd in the data of a file: one check, one file."""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float

from statewise.data.doctor.oddities.bars import bars
from statewise.data.doctor.oddities.constant import constant
from statewise.data.doctor.oddities.counter import counter
from statewise.data.doctor.oddities.gaps import gaps
from statewise.data.doctor.oddities.infinite import infinite
from statewise.data.doctor.oddities.irregular import irregular
from statewise.data.doctor.oddities.jumps import jumps
from statewise.data.doctor.oddities.large_numbers import large_numbers
from statewise.data.doctor.oddities.missing_values import missing_values
from statewise.data.doctor.oddities.oddity import SEVERITIES, Oddity, Place
from statewise.data.doctor.oddities.repeated import repeated
from statewise.data.doctor.oddities.series_lengths import series_lengths
from statewise.data.doctor.oddities.strange_times import strange_times
from statewise.data.doctor.oddities.subject import Subject
from statewise.data.doctor.oddities.weekends import weekends
from statewise.data.doctor.oddities.zero_volume import zero_volume

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
