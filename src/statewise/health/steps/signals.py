"""News about single steps and about parameters that are no longer the same objects."""

from dataclasses import dataclass
from typing import ClassVar

from statewise.health.signals import Signal


@dataclass(frozen=True)
class Clipping(Signal):
    """What clipping leaves of one optimizer's gradient, where it is next to nothing; nothing to report is steps 0."""

    waiting: ClassVar[str] = "no optimizer step was made"

    optimizer: int
    # Consecutive steps that kept less than 1e-4 of the norm (but not exactly 0), and both norms at the last of them,
    # estimated from a part of the elements.
    steps: int
    before: float
    after: float
    # The update does not depend on the gradient's scale (Adam and its kin).
    adaptive: bool


@dataclass(frozen=True)
class Recreated(Signal):
    """Parameters that became other objects while the run was under way, although an optimizer holds the old ones."""

    waiting: ClassVar[str] = "no training batch was reached"

    names: tuple[str, ...]
    # Batches begun when it was noticed, and how often it has happened to any parameter.
    batch: int
    times: int


@dataclass(frozen=True)
class UpdateRatios(Signal):
    """Blocks whose updates have been tiny or huge beside their values for many steps: root mean squares."""

    waiting: ClassVar[str] = "fewer than 20 optimizer steps were compared"

    # Name of the block -> (ratio in the last step, its parameters).
    outside: dict[str, tuple[float, tuple[str, ...]]]
    steps: int
