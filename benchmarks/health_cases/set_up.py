"""What a healthy set-up is: a task, its batches and what the Trainer is told, all healthy by construction."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
from torch import nn
from torch.utils.data import DataLoader, Subset

from health_cases.families import Family, Task, loader, seeded

VALIDATED_ROWS = 40


@dataclass
class Run:
    """One fit, ready to start."""

    task: L.LightningModule
    batches: DataLoader
    validation: DataLoader | None = None
    trainer: dict[str, Any] = field(default_factory=dict)
    """Arguments of the Trainer that differ from the usual ones."""
    callbacks: list[L.Callback] = field(default_factory=list)
    checkpoint: Path | None = None
    """The checkpoint from which the fit goes on."""
    belongings: list[Any] = field(default_factory=list)
    """What must live as long as the run: a temporary folder."""
    contract: dict[str, list[str]] = field(default_factory=dict)
    """What a careful user would declare (frozen, constants, conditional); given only in the runs with contract."""


@dataclass(frozen=True)
class SetUp:
    """A healthy set-up, for every family but those that it says it makes no sense for."""

    id: str
    title: str
    build: Callable[[Family, int], Run]
    not_for: Mapping[str, str] = field(default_factory=dict)
    """The reason for each family that is left out."""


def plain(family: Family, seed: int) -> Run:
    """The family's task as it is: Adam, no schedule, no clipping."""
    data = family.data(seed)
    held_out = DataLoader(Subset(data, range(VALIDATED_ROWS)), batch_size=16)
    return Run(family.build(seed), loader(data, seed), held_out)


def changed(change: Callable[[Task], None], **contract: list[str]) -> Callable[[Family, int], Run]:
    """The family's task with a change in its code, drawn from the same seed. What it freezes is declared by name."""

    def build(family: Family, seed: int) -> Run:
        run = plain(family, seed)
        with seeded(seed):
            change(run.task)
        frozen = [name for name, parameter in run.task.named_parameters() if not parameter.requires_grad]
        run.contract = ({"frozen": frozen} if frozen else {}) | contract
        return run

    return build


def trained(**trainer: Any) -> Callable[[Family, int], Run]:
    """The family's task under other arguments of the Trainer."""

    def build(family: Family, seed: int) -> Run:
        run = plain(family, seed)
        run.trainer = trainer
        return run

    return build


def before_head(task: Task, block: nn.Module) -> None:
    """Put a block that keeps the width in front of the last layer."""
    parent, _, name = task.places.head.rpartition(".")
    setattr(task.net.get_submodule(parent), name, nn.Sequential(block, task.head))


def quiet_trainer(run: Run, folder: Path, steps: int, *callbacks: L.Callback) -> L.Trainer:
    """A Trainer on one CPU process that logs and shows nothing; `run.trainer` has the last word."""
    usual: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_steps": steps,
        "max_epochs": -1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": folder,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return L.Trainer(**{**usual, **run.trainer}, callbacks=[*run.callbacks, *callbacks])
