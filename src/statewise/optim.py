"""Optimiser groups and optimisers: every trainable parameter in exactly one group."""

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim import Adam, AdamW, Optimizer

log = logging.getLogger(__name__)

# The classes torch has; a norm of somebody else's marks its parameters with `_no_weight_decay` or offers
# `no_weight_decay()`.
NORMS: tuple[type[nn.Module], ...] = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
)


def parameter_groups(
    module: nn.Module, weight_decay: float | None = None, *, exempt: Collection[str] = ()
) -> list[dict[str, Any]]:
    """One group with weight decay and one without, which together hold every trainable parameter exactly once.

    No decay on: what a module's ``no_weight_decay()`` returns (parameters, or names below that module), parameters of
    normalisations, biases, parameters that carry a true ``_no_weight_decay`` (a mark that other people's layers set and
    that is lost when a model is copied), and the names in `exempt` (such marks, read with `marked_parameters` before a
    copy). Tied weights are one parameter and get no decay if any of their names says so.

    Args:
        module: whose parameters are trained.
        weight_decay: of the first group; None leaves it to the optimiser's own argument.
        exempt: names of further parameters that get no decay.

    Returns:
        Groups for a torch optimiser, empty ones left out. Beside ``params`` each has ``name``, ``param_names`` (as in
        ``module.named_parameters()``) and ``param_reasons`` (why a parameter gets no decay; plain strings, as all of a
        group is saved in the checkpoint).

    Raises:
        ValueError: nothing is trainable, or `exempt` or a module names a parameter that does not exist.
    """
    if weight_decay is not None and not weight_decay >= 0:
        raise ValueError(f"optimizer.weight_decay must not be negative, got {weight_decay}")
    reasons = dict(_reasons(module, exempt))
    # A tied parameter comes once, under its first name.
    trained = [(n, p, reasons.get(id(p), "")) for n, p in module.named_parameters() if p.requires_grad]
    decay: dict[str, Any] = {} if weight_decay is None else {"weight_decay": weight_decay}
    groups = [
        {"params": [p for _, p, _ in members], "name": name, "param_names": [n for n, _, _ in members]}
        | {"param_reasons": [reason for _, _, reason in members]}
        | own
        for name, own, members in (
            ("decay", decay, [member for member in trained if not member[2]]),
            ("no_decay", {"weight_decay": 0.0}, [member for member in trained if member[2]]),
        )
        if members
    ]
    if not groups:
        raise ValueError("no parameter of the model is trainable: all have requires_grad=False or there are none")
    return groups


def marked_parameters(module: nn.Module) -> tuple[str, ...]:
    """Names of the parameters that carry `_no_weight_decay`: attributes of tensors do not survive ``copy.deepcopy``."""
    return tuple(
        name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if getattr(parameter, "_no_weight_decay", False)
    )


def _reasons(module: nn.Module, exempt: Collection[str]) -> Iterator[tuple[int, str]]:
    """(id of a parameter, why it gets no decay); of several reasons the last one counts, the layer's own."""
    named = dict(module.named_parameters(remove_duplicate=False))
    for name, parameter in named.items():
        leaf = name.rpartition(".")[2]
        if leaf.endswith("bias") or (parameter.ndim <= 1 and "bias" in leaf):
            yield id(parameter), "bias"
    for part in module.modules():
        if isinstance(part, NORMS):
            for parameter in part.parameters(recurse=False):
                yield id(parameter), type(part).__name__
    for name in exempt:
        if name not in named:
            raise ValueError(f"exempt names {name!r}, which is no parameter of the {type(module).__name__}")
        yield id(named[name]), "marked _no_weight_decay"
    for name in marked_parameters(module):
        yield id(named[name]), "marked _no_weight_decay"
    for part in module.modules():
        tell = getattr(part, "no_weight_decay", None)
        if callable(tell):
            yield from ((id(parameter), f"told by {type(part).__name__}") for parameter in _told(part, tell()))


def _told(part: nn.Module, answer: Iterable[nn.Parameter | str]) -> Iterator[nn.Parameter]:
    names = dict(part.named_parameters(remove_duplicate=False))
    for item in answer:
        if isinstance(item, str) and item not in names:
            raise ValueError(f"{type(part).__name__}.no_weight_decay() names {item!r}, which is no parameter of it")
        yield names[item] if isinstance(item, str) else item


def describe_groups(optimizer: Optimizer) -> str:
    """The groups as lines of text: how many parameters, learning rate, weight decay, the names and the reasons."""
    lines = [f"{type(optimizer).__name__}, {_form(optimizer)}: every trainable parameter is in one group"]
    for index, group in enumerate(optimizer.param_groups):
        parameters = group["params"]
        size = sum(parameter.numel() for parameter in parameters)
        settings = f"lr {group['lr']:g}, weight decay {group.get('weight_decay', 0.0):g}"
        name = group.get("name", f"group {index}")
        lines.append(f"{name}: {len(parameters)} parameters ({size:,} values), {settings}")
        names = group.get("param_names", [f"parameter {k}" for k in range(len(parameters))])
        by_reason: dict[str, list[str]] = {}
        for parameter, reason in zip(names, group.get("param_reasons", [""] * len(parameters)), strict=True):
            by_reason.setdefault(reason, []).append(parameter)
        lines += [f"  {reason}{': ' * bool(reason)}{', '.join(members)}" for reason, members in by_reason.items()]
    return "\n".join(lines)


def _form(optimizer: Optimizer) -> str:
    return "fused" if optimizer.defaults.get("fused") else "foreach" if optimizer.defaults.get("foreach") else "plain"


def fused_allowed(precision: str, gradient_clip_val: float | None) -> bool:
    """Whether a fused optimiser may be used: Lightning refuses to clip gradients for it under mixed precision.

    A fused optimiser undoes the loss scaling inside its own step, after the place where Lightning clips, so that
    clipping would see scaled gradients. Lightning asks the optimiser whether it can do that, not whether it has to, and
    so refuses ``bf16-mixed``, which scales nothing, just as well. The foreach form has no such limit.
    """
    return not (precision.endswith("-mixed") and gradient_clip_val)


def adam(
    groups: list[dict[str, Any]],
    *,
    lr: float = 1e-3,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    fused: bool | None = None,
) -> Adam:
    """Adam with bias correction (Kingma and Ba 2015); its weight decay is a penalty on the squares, in the gradient.

    Args:
        groups: as `parameter_groups` makes them.
        lr: the learning rate before any schedule.
        betas: decay of the two running means.
        eps: added to the root of the second.
        weight_decay: for the groups that do not set their own.
        fused: one kernel for the whole update, by default wherever torch has one; false takes the foreach form.

    Raises:
        ValueError: an argument is out of range.
    """
    return Adam(groups, **_adam_arguments(groups, lr, betas, eps, weight_decay, fused))


def adamw(
    groups: list[dict[str, Any]],
    *,
    lr: float = 3e-3,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    fused: bool | None = None,
) -> AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): arguments and errors as in `adam`."""
    return AdamW(groups, **_adam_arguments(groups, lr, betas, eps, weight_decay, fused))


def _adam_arguments(
    groups: list[dict[str, Any]], lr: float, betas: Sequence[float], eps: float, weight_decay: float, fused: bool | None
) -> dict[str, Any]:
    for key, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
        if not 0.0 <= value < math.inf:  # also refuses NaN
            raise ValueError(f"optimizer.{key} must be a number of at least 0, got {value}")
    if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise ValueError(f"optimizer.betas must be two numbers from 0 to below 1, got {list(betas)}")
    if fused is None:
        fused = all(p.is_floating_point() and p.device.type in {"cpu", "cuda"} for group in groups for p in group["params"])
    # Plain numbers: the groups are saved in the checkpoint, where OmegaConf's lists have no place.
    pair = (float(betas[0]), float(betas[1]))
    form = {"fused": True} if fused else {"foreach": True}
    return {"lr": float(lr), "betas": pair, "eps": float(eps), "weight_decay": float(weight_decay), **form}
