"""A moment in UTC as text."""

from typing import Any

import numpy as np


def utc(moment: Any) -> str:
    """A datetime64[ns] as `2024-01-02T14:30:00Z`, with as many decimals of the second as it has."""
    text = str(np.datetime_as_string(np.datetime64(moment, "ns"), unit="ns"))
    second, _, rest = text.partition(".")
    rest = rest.rstrip("0")
    return f"{second}.{rest}Z" if rest else f"{second}Z"


def readable(text: str) -> str:
    """What `utc` gives, for a person: `2024-01-02 14:30:00`."""
    return text.replace("T", " ").removesuffix("Z")
