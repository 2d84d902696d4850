"""What the loop around a module is like, and what is planned."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Schedule:
    """One learning rate scheduler and when it is stepped."""

    scheduler: Any
    # Index of the optimizer whose lr it sets; None for one that belongs to none of the run's optimizers.
    optimizer: int | None
    # "step" (optimizer steps) or "epoch"; "" where the loop calls it by itself and nobody knows when.
    interval: str = ""
    # In how many of those it is stepped once.
    frequency: int = 1


@dataclass(frozen=True)
class Setting:
    """What the loop around the module is like.

    `planned_steps`, `planned_epochs` and `batches_per_epoch` may be None at `start` and known at the first batch: the data
    are loaded in between. None at a batch means that nobody knows (an endless run, data without a length).
    """

    # Indices of optimizers whose lr a scheduler sets.
    scheduled: frozenset[int] = frozenset()
    manual: bool = False
    accumulate: int = 1
    # A GradScaler may skip steps.
    scaler: bool = False
    # Attributes of the framework's base class, and types never looked into.
    skip: frozenset[str] = frozenset()
    opaque: tuple[type, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    # Optimizer steps of the whole run.
    planned_steps: int | None = None
    planned_epochs: int | None = None
    # Training batches of one epoch in this process, however many of them make an update.
    batches_per_epoch: int | None = None
    # Processes of the training loader; 0 where the loop itself loads, or nobody knows.
    workers: int = 0
    # The run is meant to see the same few batches again and again.
    overfit: bool = False
    # Values came from a checkpoint before the first batch.
    loaded: bool = False
    # As the framework calls it; "" where nobody says.
    precision: str = ""
    # The type that autocast computes in during a training step; None without autocast.
    autocast: torch.dtype | None = None
    # Processes that train together.
    world: int = 1
    # A loop of the user's own: no framework's option is a remedy.
    plain: bool = False
