"""Refuses a value that a configuration key cannot have, in one line with the nearest valid name."""

import difflib
from collections.abc import Iterable

SHOWN = 20


def nearest(name: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """The valid names most like `name`, best first; upper and lower case count as equal."""
    by_lower = {str(entry).lower(): str(entry) for entry in sorted(set(valid), reverse=True)}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.6)]


def did_you_mean(name: str, valid: Iterable[str], count: int = 1) -> str:
    """`"; did you mean a or b?"`, or nothing where no valid name is near."""
    close = nearest(name, valid, count)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def one_of(key: str, value: str, allowed: Iterable[str]) -> str:
    """Return the value if it is allowed.

    Raises:
        ValueError: it is not; the message names the key, what is allowed and the nearest of them.
    """
    names = list(allowed)
    if value in names:
        return value
    listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    raise ValueError(f"{key} must be one of {listed}, got {value!r}{did_you_mean(str(value), names)}")


def at_least(least: int, **values: int) -> None:
    """Check numbers by their keys; a double underscore stands for the dot: ``at_least(1, data__window=window)``.

    Raises:
        ValueError: for the first value that is too small.
    """
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name.replace('__', '.')} must be at least {least}, got {value}")
