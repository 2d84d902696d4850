"""Cut an optimizer's ledger down to the parameters that give a rule reason to look."""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from statewise.health.signals import Track
from statewise.health.steps.signals import UpdateRatios
from statewise.health.steps.updates import UpdateMonitor
from statewise.parallel.shards import gathered, whole

# Runs from which a rule may have something to say.
_SHORTEST = 3
# Steps with an unusual ratio of update to value that are worth a word.
ODD_STEPS = 20
# Comparisons of every element among them. Values that come back are the same bits; a share of elements may be chance.
_SURE_BACK, _SURE_SWALLOWED = 1, 2


def suspicious(monitor: UpdateMonitor) -> np.ndarray:
    """Indices of parameters with any run worth a rule's while; empty at nearly every step of a healthy run."""
    runs, ledger = monitor.runs, monitor.runs.ledger
    if not runs.suspicion and not ledger.none_run.any():
        return np.zeros(0, dtype=np.int64)
    silent = (ledger.alive == 0) & (ledger.none_run >= _SHORTEST) & (ledger.zero_total == 0)
    longest = np.maximum.reduce([runs.swallowed, runs.written_back, runs.held, runs.removed, runs.cleared, runs.stale])
    return np.flatnonzero(ledger.suspicious() | silent | (longest >= _SHORTEST))


def tracks(monitor: UpdateMonitor, settled: Collection[str]) -> tuple[Track, ...]:
    """Tracks of the suspicious parameters, without those in `settled` (a finding says it already)."""
    runs, ledger = monitor.runs, monitor.runs.ledger
    groups = np.array(monitor.group_of)
    lost = runs.swallowed >= _SHORTEST
    chosen = []
    for index in suspicious(monitor).tolist():
        name, parameter = monitor.names[index], monitor.parameters[index]
        expected, resolution, magnitude = None, None, 0.0
        # Asked before anything that processes may know apart: of sharded parameters they can answer together only.
        if runs.swallowed[index] >= _SHORTEST:
            expected, resolution, magnitude = expected_update(monitor, index)
        # Frozen since: no gradient is what was asked for.
        if name in settled or not parameter.requires_grad:
            continue
        group = monitor.optimizer.param_groups[monitor.group_of[index]]
        never_alive = ledger.alive[index] == 0
        alike = groups == groups[index]
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
                moved_without_gradient=bool(runs.moved[index] and (never_alive or runs.decayed[index])),
                weight_decay=float(group.get("weight_decay", 0.0) or 0.0),
                lr=float(group.get("lr", 0.0)),
                # A few elements raise a suspicion, all of them are proof.
                swallowed_run=int(runs.swallowed[index]) if runs.swallowed_sure[index] >= _SURE_SWALLOWED else 0,
                share_changed=float(runs.share_changed[index]),
                followed_before=bool(runs.followed[index]),
                group_share=float((lost & alike).sum() / max(((lost | runs.following) & alike).sum(), 1)),
                expected_update=expected,
                resolution=resolution,
                dtype=str(parameter.dtype).removeprefix("torch."),
                magnitude=magnitude,
                written_back_run=int(runs.written_back[index]) if runs.back_sure[index] >= _SURE_BACK else 0,
                held_run=int(runs.held[index]),
                share_held=float(runs.share_held[index]),
                bias_before_norm=name in monitor.bias_before_norm,
                size=parameter.numel(),
                removed_run=int(runs.removed[index]),
                scaled_to_zero=bool(runs.scaled[index]),
                cleared_run=int(runs.cleared[index]),
                stale_run=int(runs.stale[index]),
            )
        )
    return tuple(chosen)


def odd_ratios(monitor: UpdateMonitor) -> UpdateRatios:
    """Blocks of whose parameters every one has been outside the usual ratios for twenty steps or more."""
    blocks: dict[str, list[int]] = {}
    for index, name in enumerate(monitor.names):
        parts = name.split(".")
        blocks.setdefault(".".join(parts[:-1][:2]) or name, []).append(index)
    runs = monitor.runs
    outside = {
        block: (float(np.nanmax(runs.update_ratio[indices])), tuple(monitor.names[index] for index in indices))
        for block, indices in blocks.items()
        if (runs.odd_ratio[indices] >= ODD_STEPS).all()
    }
    return UpdateRatios(outside, ODD_STEPS)


def expected_update(monitor: UpdateMonitor, index: int) -> tuple[float | None, float, float]:
    """Median size of the update that an optimizer asks of one parameter, the values' resolution, their magnitude.

    From the optimizer's own state (Adam's moments, a momentum buffer) or lr * gradient for plain SGD. For an optimizer
    whose arithmetic we do not know: the smaller of lr and lr * gradient where even that lies above the resolution, else None.
    """
    parameter = monitor.parameters[index]
    group = monitor.optimizer.param_groups[monitor.group_of[index]]
    state = monitor.optimizer.state.get(parameter, {})
    lr = float(group.get("lr", 0.0))
    with torch.no_grad():
        values = whole(parameter.detach()).double().abs().flatten()
        eps = torch.finfo(parameter.dtype).eps
        resolution = float((torch.exp2(torch.floor(torch.log2(values.clamp_min(1e-300)))) * eps).median())
        size: Tensor | None = None
        if "exp_avg" in state and "exp_avg_sq" in state:
            beta1, beta2 = group.get("betas", (0.0, 0.0))
            taken = max(float(state.get("step", 1)), 1.0)
            moments = gathered([state["exp_avg"], state["exp_avg_sq"]])
            first, second = (m.double() / (1 - beta**taken) for m, beta in zip(moments, (beta1, beta2), strict=True))
            size = lr * first / (second.sqrt() + group.get("eps", 1e-8))
        elif state.get("momentum_buffer") is not None:
            size = lr * whole(state["momentum_buffer"]).double()
        elif parameter.grad is not None and not parameter.grad.is_sparse:
            size = lr * whole(parameter.grad).double()
            if not isinstance(monitor.optimizer, torch.optim.SGD):
                size = size.abs().clamp_max(lr)
                if not size.median() > 4 * resolution:
                    size = None
        asked = size[size != 0] if size is not None else None
        expected = float(asked.abs().median()) if asked is not None and asked.numel() else None
    return expected, resolution, float(values.median())
