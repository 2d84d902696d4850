"""What is odd in a file: one kind of oddity, how often, where first, and what to do."""

from collections.abc import Mapping
from dataclasses import dataclass

SEVERITIES = ("error", "warning", "info")
SHOWN = 3


@dataclass(frozen=True)
class Place:
    """One row: its time in UTC (or its number in the series, counted from 0), its series, and the values that are odd."""

    time: str
    series: str
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class Oddity:
    """One thing that is odd.

    Attributes:
        id: its kind, as `missing-values`.
        severity: `error` (the file is wrong, or training refuses it), `warning` (to be looked at) or `info`.
        count: how many rows, or values, or series.
        first: the first rows, SHOWN at most.
        message: what is true, one sentence.
        remedy: what to do, with the key of the configuration where there is one; empty where nothing is to be done.
    """

    id: str
    severity: str
    count: int
    first: tuple[Place, ...]
    message: str
    remedy: str
