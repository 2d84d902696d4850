"""Bars that cannot be: prices outside of their own high and low, prices of zero and below."""

from collections.abc import Iterator

import numpy as np

from statewise.data.oddities.names import plain
from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject, counted

_ROUNDING = 1e-6  # relative: adjusted prices in float32 are no fault


def bars(subject: Subject) -> Iterator[Oddity]:
    """For files with a high and a low; column names in any case."""
    by_name: dict[str, str] = {}
    for name in subject.table.columns:
        by_name.setdefault(plain(name), name)
    if "high" not in by_name or "low" not in by_name:
        return
    names = {part: by_name[part] for part in ("open", "high", "low", "close") if part in by_name}
    high, low = subject.table.read(names["high"]), subject.table.read(names["low"])
    allowed = _ROUNDING * np.maximum(np.abs(high), np.abs(low))
    crossed = np.flatnonzero(low > high + allowed)
    if len(crossed):
        places = subject.places(crossed, {names["high"]: high, names["low"]: low})
        message = f"{names['low']} is above {names['high']} in {counted(len(crossed), 'row')}"
        yield Oddity("low-above-high", "error", len(crossed), places, message, "correct the file: no such bar can be")
    for part in ("open", "close"):
        if part not in names:
            continue
        values = subject.table.read(names[part])
        outside = np.flatnonzero(((values > high + allowed) | (values < low - allowed)) & (low <= high + allowed))
        if len(outside):
            places = subject.places(outside, {names[part]: values, names["low"]: low, names["high"]: high})
            message = f"{names[part]} lies outside of {names['low']} and {names['high']} in {counted(len(outside), 'row')}"
            remedy = "correct the file: such a bar mixes sources, or adjusts only some of its prices"
            yield Oddity("outside-high-low", "error", len(outside), places, message, remedy)
    below = np.flatnonzero(low <= 0)
    if len(below):
        message = f"{names['low']} is zero or below in {counted(len(below), 'row')}"
        remedy = "no logarithm of such a price: correct the file, or use difference(...) in place of log_return(...)"
        yield Oddity("price-not-positive", "warning", len(below), subject.places(below, {names["low"]: low}), message, remedy)
