"""What the loop around a module is like."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """What the loop around the module is like."""

    # Indices of optimizers whose lr a scheduler sets.
    scheduled: frozenset[int] = frozenset()
    manual: bool = False
    accumulate: int = 1
    # A GradScaler may skip steps.
    scaler: bool = False
    # Attributes of the framework's base class, and types never looked into.
    skip: frozenset[str] = frozenset()
    opaque: tuple[type, ...] = ()
