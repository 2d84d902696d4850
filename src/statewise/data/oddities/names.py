"""What the columns of bars are called."""

import re

PRICES = frozenset(("open", "high", "low", "close", "adjclose", "price", "vwap"))


def plain(name: str) -> str:
    """Small letters without anything between them: `Adj Close` and `adj_close` are one name."""
    return re.sub(r"[^a-z]", "", name.lower())
