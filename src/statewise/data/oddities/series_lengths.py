"""Series that are much shorter than the others, or end much earlier."""

from collections.abc import Iterator

import numpy as np

from statewise.data.oddities.oddity import Oddity, Place
from statewise.data.oddities.subject import Subject

_SHORT = 0.1  # of the median length
_EARLY = 0.1  # of the time that all series together take
_NAMED = 5
_FEW = 20  # rows of the longest series, of which nothing is said


def series_lengths(subject: Subject) -> Iterator[Oddity]:
    """One oddity for each kind."""
    lengths = np.diff(subject.rows.offsets)
    if len(lengths) < 2 or lengths.max() < _FEW:
        return
    short = np.flatnonzero(lengths < _SHORT * np.median(lengths)).tolist()
    if short:
        message = (
            f"{len(short):,} of {len(lengths):,} series have less than a tenth of the usual {int(np.median(lengths)):,} rows: "
            f"{_named(subject, short)}"
        )
        yield Oddity(
            "short-series", "warning", len(short), _ends(subject, short), message, "look whether their files are whole"
        )
    times = subject.rows.times
    if times is None:
        return
    filled = np.flatnonzero(lengths > 0)
    last = times[subject.rows.offsets[1:][filled] - 1]
    span = (last.max() - times.min()).astype(np.int64)
    early = filled[(last.max() - last).astype(np.int64) > _EARLY * span].tolist()
    early = [code for code in early if code not in set(short)]
    if early:
        message = f"{len(early):,} of {len(lengths):,} series end much earlier than the last one: {_named(subject, early)}"
        remedy = "they may be in no window of the test part: data.split cuts all series at the same moments"
        yield Oddity("series-end-early", "info", len(early), _ends(subject, early), message, remedy)


def _named(subject: Subject, codes: list[int]) -> str:
    names = [subject.rows.series[code] for code in codes[:_NAMED]]
    return ", ".join(names) + (f" and {len(codes) - _NAMED:,} more" if len(codes) > _NAMED else "")


def _ends(subject: Subject, codes: list[int]) -> tuple[Place, ...]:
    filled = [code for code in codes if subject.rows.offsets[code + 1] > subject.rows.offsets[code]]
    return subject.places([subject.bounds(code)[1] for code in filled])
