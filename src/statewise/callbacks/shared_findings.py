"""Processes that train together agree on what was found, so that all of them go on or all of them stop."""

from collections.abc import Sequence

import lightning as L
import torch

from statewise.health import Finding, HealthMonitor
from statewise.parallel import ranks

_BAD_GRADIENT = "non-finite-gradient"


def together(trainer: L.Trainer) -> bool:
    """Whether other processes take part in this fit."""
    return trainer.world_size > 1 and ranks.together()


def agree(monitor: HealthMonitor, mine: Sequence[Finding]) -> list[Finding]:
    """Exchange what each process found since the last time; every process must call it at the same moment.

    Returns:
        What is new on all of them, the same everywhere and in the same order. One number is exchanged where nothing is.
    """
    lost = monitor.lost_its_loss()
    if not ranks.summed(torch.tensor(float(len(mine)), dtype=torch.float64)):
        return []
    told: list[tuple[list[Finding], bool]] = ranks.gathered((list(mine), lost))
    # Gradients are those of all processes: they are no news beside the loss of one that was no number itself.
    explained = {_BAD_GRADIENT} if any(lost for _, lost in told) else set()
    everyone = [[finding for finding in found if finding.id not in explained] for found, _ in told]
    own = {id(finding) for finding in mine}
    # The same order on all processes: what was found here first is not what was found first elsewhere.
    monitor.findings = [finding for finding in monitor.findings if id(finding) not in own]
    news = [finding for found in everyone for finding in found if monitor.add(finding)]
    kept = {id(finding) for finding in monitor.findings}
    return [finding for finding in news if id(finding) in kept]
