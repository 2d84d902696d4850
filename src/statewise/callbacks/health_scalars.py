"""The few numbers of training health that move, as scalars for TensorBoard and metrics.csv."""

import math

import lightning as L

from statewise.callbacks.gradient_ledger import short_names
from statewise.health import HealthMonitor, Severity


def log_health(trainer: L.Trainer, monitor: HealthMonitor, step: int) -> None:
    """Write to every logger how many findings there are, and how the parameters moved in the last step that was compared.

    Tags: `health/findings` counts warnings and errors, `health/share_moving` is the share of the trainable parameters whose
    values changed, `health/update_ratio/<block>` a block's update beside its weights. What is not known yet is left out.

    Args:
        step: under which to write; `real_steps.log_index` is that of the other metrics.
    """
    if not trainer.loggers and trainer.world_size == 1:
        return
    # Of sharded parameters all processes must ask, also those that have no logger.
    movement = monitor.movement()
    named = short_names((block, None) for block in movement.update_ratio)
    scalars = {
        "health/findings": float(sum(finding.severity is not Severity.INFO for finding in monitor.findings)),
        "health/share_moving": movement.share_moving,
        **{f"health/update_ratio/{block}": r for block, r in zip(named, movement.update_ratio.values(), strict=True)},
    }
    known = {tag: value for tag, value in scalars.items() if math.isfinite(value)}
    for logger in trainer.loggers:
        logger.log_metrics(known, step=step)
