"""A length of time in words."""

_UNITS = (
    ("day", 86_400 * 10**9),
    ("hour", 3600 * 10**9),
    ("minute", 60 * 10**9),
    ("second", 10**9),
    ("millisecond", 10**6),
    ("microsecond", 10**3),
    ("nanosecond", 1),
)


def in_words(nanoseconds: int) -> str:
    """`1 minute`, `2 days 5 hours`: the two largest units, the second where it is not zero."""
    for place, (name, size) in enumerate(_UNITS):
        if nanoseconds < size:
            continue
        text = _count(nanoseconds // size, name)
        if place + 1 < len(_UNITS):
            smaller, of = _UNITS[place + 1]
            rest = round(nanoseconds % size / of)
            if rest and rest * of < size:
                text += f" {_count(rest, smaller)}"
        return text
    return "0 seconds"


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}" + ("s" if number != 1 else "")
