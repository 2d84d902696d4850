"""Refuses a value that is not among those a key may have, and names the nearest one."""

from collections.abc import Sequence
from difflib import get_close_matches


def one_of(key: str, value: str, allowed: Sequence[str]) -> str:
    """Returns the value if it is allowed.

    Raises:
        ValueError: it is not; the message names the key, the nearest allowed value and all of them.
    """
    if value in allowed:
        return value
    near = get_close_matches(str(value), allowed, n=1)
    hint = f", did you mean {near[0]}?" if near else "."
    shown = ", ".join(allowed[:20]) + (f" and {len(allowed) - 20} more" if len(allowed) > 20 else "")
    raise ValueError(f"{key}: there is no {value!r}{hint} Possible: {shown}")


def at_least_one(**values: int) -> None:
    """Raises ValueError for the first of the data keys that is below 1."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"data.{name} must be at least 1, got {value}")
