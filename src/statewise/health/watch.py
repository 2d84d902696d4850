"""The health of a training loop of your own: `with watch(model, optimizer): ...` around it, and nothing else changes."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from statewise.choices import at_least
from statewise.health.announcer import Announcer
from statewise.health.monitor import HealthMonitor
from statewise.health.plain.loop import Watch
from statewise.health.setting import Setting

log = logging.getLogger(__name__)

# A loop that says nothing may accumulate over as many batches before its first update.
_ACCUMULATE = 64

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]


def watch(
    model: Models,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    policy: str = "error",
    stop_at: str = "error",
    frozen: Sequence[str] = (),
    constants: Sequence[str] = (),
    conditional: Sequence[str] = (),
    causal: Sequence[str] = (),
    accumulate: int | None = None,
    schedulers: Sequence[Any] = (),
    planned_steps: int | None = None,
    read_every: int = 50,
) -> Watch:
    """Watch a plain PyTorch loop.

    Where several processes train together, each watches by itself: what one of them finds the others do not hear of, and one
    that raises leaves them waiting at their next exchange. Let policy="warn" speak there, or stop all of them by your own
    launcher (torchrun does); the Trainer's callback makes processes agree. Of parameters that fully_shard has cut every
    process judges the whole, so all of them must be watched.

    Args:
        model: the module that is trained; several as a sequence or a mapping of names (two networks of a GAN).
        optimizer: every optimizer of the loop.
        policy: "error" raises at the first error, within the call that shows it; "warn" logs; "off" looks at nothing.
        stop_at: the severity at which policy "error" raises: "error", or "warning" to be strict.
        frozen: patterns of parameters, or names of modules, that are meant not to train.
        constants: patterns of tensors that are meant to shape the loss without training.
        conditional: patterns of parameters or modules that take part in some batches only.
        causal: patterns of modules whose output at a time step must not depend on later inputs.
        accumulate: batches that share an update, where more than 64 do or where an update must come.
        schedulers: learning rate schedulers, if what they plan is to be looked at.
        planned_steps: optimizer steps that the whole run will make, if known.
        read_every: updates between two transfers from an accelerator; on a CPU every update is judged at once.

    Raises:
        ValueError: for an unknown policy or severity, for what is no optimizer or no module.
        UnhealthyTraining: within the block, under policy "error".
    """
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    for one in optimizers:
        if not isinstance(one, Optimizer):
            raise ValueError(f"optimizer must be a torch.optim.Optimizer or a list of them, got {type(one).__name__}")
    if accumulate is not None:
        at_least(1, accumulate=accumulate)
    return Watch(
        _one(model),
        optimizers,
        HealthMonitor(_patterns(frozen), _patterns(constants), _patterns(conditional), _patterns(causal)),
        Announcer(policy, stop_at, log),
        Setting(
            manual=True,
            plain=True,
            accumulate=accumulate or _ACCUMULATE,
            planned_steps=planned_steps,
        ),
        list(schedulers) if isinstance(schedulers, Sequence) else [schedulers],
        read_every,
    )


def _one(model: Any) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    parts = list(model.values()) if isinstance(model, Mapping) else list(model) if isinstance(model, Sequence) else [model]
    for part in parts:
        if not isinstance(part, nn.Module):
            raise ValueError(f"model must be a torch.nn.Module or several of them, got {type(part).__name__}")
    return nn.ModuleDict(dict(model)) if isinstance(model, Mapping) else nn.ModuleList(model)


def _patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)
