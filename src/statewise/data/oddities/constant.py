"""Columns that say nothing, or nearly nothing: in all rows, or in those that a model trains on."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject, share

_NEARLY = 0.999
_FEW = 10  # rows, of which nothing is said


def constant(subject: Subject, name: str, values: Float[np.ndarray, " r"]) -> Iterator[Oddity]:
    """At most one of: constant everywhere, in some series, in the training part, nearly."""
    known = ~np.isnan(values)
    rows = np.flatnonzero(known)
    if len(rows) < _FEW:
        return
    first = values[rows[0]]
    differing = np.count_nonzero(values != first) - (len(values) - len(rows))
    leave = f"leave {name} out of data.features"
    if not differing:
        message = f"{name}: constant, {first:g} in all {len(rows):,} rows"
        yield Oddity("constant-column", "warning", len(rows), subject.places(rows, {name: values}), message, leave)
    elif (count := _constant_in_training(subject, values)) is not None:
        message = f"{name}: constant in the {count:,} rows of the training part, and not after it"
        remedy = f"{leave}, or choose another data.split: nothing can be learnt of what it does later"
        yield Oddity("constant-in-training", "warning", count, subject.places(rows, {name: values}), message, remedy)
    elif series := _constant_series(subject, values):
        names = [subject.rows.series[code] for code in series]
        more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
        message = f"{name}: constant in {len(names):,} of {len(subject.rows.series):,} series: {', '.join(names[:5])}{more}"
        places = subject.places([subject.bounds(code)[0] for code in series], {name: values})
        yield Oddity("constant-in-series", "info", len(names), places, message, "left at scale 1 there")
    else:
        most = float(np.median(values[rows]))
        odd = rows[values[rows] != most]
        if len(odd) <= (1 - _NEARLY) * len(rows):
            message = f"{name}: nearly constant, {most:g} in {share(len(rows) - len(odd), len(rows))} of the rows"
            yield Oddity("nearly-constant", "info", len(odd), subject.places(odd, {name: values}), message, f"you may {leave}")


def _constant_in_training(subject: Subject, values: np.ndarray) -> int | None:
    """How many training rows have the one value, None where they have several, or none."""
    if subject.trained is None:
        return None
    seen = values[subject.trained]
    seen = seen[~np.isnan(seen)]
    return len(seen) if len(seen) > 1 and seen.min() == seen.max() else None


def _constant_series(subject: Subject, values: np.ndarray) -> list[int]:
    """The series of two rows and more in which all known values are equal."""
    lengths = np.diff(subject.rows.offsets)
    if len(lengths) < 2:
        return []
    kept = np.flatnonzero(lengths > 1)
    if not len(kept):
        return []
    # Over the rows of all series that have any; an empty one would take the first value of the next.
    filled = np.flatnonzero(lengths > 0)
    begins = subject.rows.offsets[:-1][filled]
    equal = np.fmin.reduceat(values, begins) == np.fmax.reduceat(values, begins)
    return [int(code) for code in filled[equal] if lengths[code] > 1]
