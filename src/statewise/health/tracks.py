"""Cut an optimizer's ledger down to the parameters that give a rule reason to look."""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from statewise.health.signals import Track
from statewise.health.updates import UpdateMonitor

# Runs from which a rule may have something to say.
_SHORTEST = 3


def suspicious(monitor: UpdateMonitor) -> np.ndarray:
    """Indices of parameters with any run worth a rule's while; empty at nearly every step of a healthy run."""
    ledger = monitor.ledger
    silent = (ledger.alive == 0) & (ledger.none_run >= _SHORTEST) & (ledger.zero_total == 0)
    runs = (monitor.swallowed_run >= _SHORTEST) | (monitor.written_back_run >= _SHORTEST) | (monitor.removed >= _SHORTEST)
    return np.flatnonzero(ledger.suspicious() | silent | runs)


def tracks(monitor: UpdateMonitor, settled: Collection[str]) -> tuple[Track, ...]:
    """Tracks of the suspicious parameters, without those in `settled` (a finding says it already)."""
    ledger = monitor.ledger
    chosen = []
    for index in suspicious(monitor).tolist():
        name, parameter = monitor.names[index], monitor.parameters[index]
        # Frozen since: no gradient is what was asked for.
        if name in settled or not parameter.requires_grad:
            continue
        group = monitor.optimizer.param_groups[monitor.group_of[index]]
        expected, resolution, magnitude = None, None, 0.0
        if monitor.swallowed_run[index] >= _SHORTEST:
            expected, resolution, magnitude = expected_update(monitor, index)
        never_alive = ledger.alive[index] == 0
        chosen.append(
            Track(
                name=name,
                steps=ledger.steps,
                zero_run=int(ledger.zero_run[index]),
                zero_unusual=ledger.zero_unusual(index),
                none_run=int(ledger.none_run[index]),
                none_unusual=ledger.none_unusual(index),
                ever_alive=not never_alive,
                # Momentum may carry a parameter on for a while: after real gradients only the exact amount is proof.
                moved_without_gradient=bool(monitor.moved[index] and (never_alive or monitor.decayed[index])),
                weight_decay=float(group.get("weight_decay", 0.0) or 0.0),
                lr=float(group.get("lr", 0.0)),
                swallowed_run=int(monitor.swallowed_run[index]),
                share_changed=float(monitor.share_changed[index]),
                expected_update=expected,
                resolution=resolution,
                dtype=str(parameter.dtype).removeprefix("torch."),
                magnitude=magnitude,
                written_back_run=int(monitor.written_back_run[index]),
                bias_before_norm=name in monitor.bias_before_norm,
                size=parameter.numel(),
                removed=bool(monitor.removed[index] >= _SHORTEST),
            )
        )
    return tuple(chosen)


def expected_update(monitor: UpdateMonitor, index: int) -> tuple[float | None, float, float]:
    """Median size of the update that an optimizer asks of one parameter, the values' resolution, their magnitude.

    From the optimizer's own state (Adam's moments, a momentum buffer) or lr * gradient for plain SGD; None for an
    optimizer whose arithmetic we do not know.
    """
    parameter = monitor.parameters[index]
    group = monitor.optimizer.param_groups[monitor.group_of[index]]
    state = monitor.optimizer.state.get(parameter, {})
    lr = float(group.get("lr", 0.0))
    with torch.no_grad():
        values = parameter.detach().double().abs().flatten()
        eps = torch.finfo(parameter.dtype).eps
        resolution = float((torch.exp2(torch.floor(torch.log2(values.clamp_min(1e-300)))) * eps).median())
        size: Tensor | None = None
        if "exp_avg" in state and "exp_avg_sq" in state:
            beta1, beta2 = group.get("betas", (0.0, 0.0))
            taken = max(float(state.get("step", 1)), 1.0)
            first = state["exp_avg"].double() / (1 - beta1**taken)
            second = state["exp_avg_sq"].double() / (1 - beta2**taken)
            size = lr * first / (second.sqrt() + group.get("eps", 1e-8))
        elif state.get("momentum_buffer") is not None:
            size = lr * state["momentum_buffer"].double()
        elif isinstance(monitor.optimizer, torch.optim.SGD) and parameter.grad is not None:
            size = lr * parameter.grad.double()
        asked = size[size != 0] if size is not None else None
        expected = float(asked.abs().median()) if asked is not None and asked.numel() else None
    return expected, resolution, float(values.median())
