"""Processes that train together agree on what was found, so that all of them go on or all of them stop."""

from collections.abc import Sequence

import lightning as L
import torch.distributed

from statewise.health import Finding, HealthMonitor


def together(trainer: L.Trainer) -> bool:
    """Whether other processes take part in this fit."""
    return trainer.world_size > 1 and torch.distributed.is_available() and torch.distributed.is_initialized()


def agree(trainer: L.Trainer, monitor: HealthMonitor, mine: Sequence[Finding]) -> list[Finding]:
    """Exchange what each process found since the last time; every process must call it at the same moment.

    Returns:
        What is new on all of them, the same everywhere and in the same order. One flag is exchanged where nothing is.
    """
    if not trainer.strategy.reduce_boolean_decision(bool(mine), all=False):
        return []
    everyone: list[list[Finding]] = [[] for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(everyone, list(mine))
    own = {id(finding) for finding in mine}
    # The same order on all processes: what was found here first is not what was found first elsewhere.
    monitor.findings = [finding for finding in monitor.findings if id(finding) not in own]
    news = [finding for found in everyone for finding in found if monitor.add(finding)]
    kept = {id(finding) for finding in monitor.findings}
    return [finding for finding in news if id(finding) in kept]
