"""Where NaN and infinity sit: in the weights, in a batch, or only in a norm that overflowed."""

import math
from typing import Any

import torch
from torch import Tensor

from statewise.callbacks.gradient_ledger import GradientReading, short_names, tensor_norms, to_host
from statewise.parallel.ranks import summed
from statewise.parallel.shards import here, sharded


def first_nonfinite_parameter(module: torch.nn.Module) -> str | None:
    """Name of the first parameter that holds NaN or infinity, None where all are finite."""
    names = short_names(module.named_parameters())
    held = [(name, p.detach()) for name, p in zip(names, module.parameters(), strict=True) if p.is_floating_point()]
    norms = to_host([tensor_norms([p for _, p in held])])[0]
    for (name, parameter), norm in zip(held, norms, strict=True):
        # A norm may overflow where no element does.
        if not math.isfinite(norm) and not finite(parameter):
            return name
    return None


def finite(parameter: Tensor) -> bool:
    """Whether all elements are; of a parameter in parts the elements of all processes, which must ask together."""
    bad = here(parameter).isfinite().logical_not().any().to("cpu", torch.float64)
    return not bool(summed(bad) if sharded(parameter) else bad)


def nonfinite_entries(batch: Any, name: str = "batch") -> str | None:
    """A clause about the first tensor in a batch that holds NaN or infinity, None where there is none."""
    if isinstance(batch, Tensor):
        count = int(batch.isfinite().logical_not().sum()) if batch.is_floating_point() else 0
        return f"{name} holds {count} values that are not finite" if count else None
    if isinstance(batch, dict):
        parts = list(batch.items())
    elif isinstance(batch, (list, tuple)):
        parts = list(zip(getattr(batch, "_fields", range(len(batch))), batch, strict=True))
    else:
        return None
    return next((clause for key, part in parts if (clause := nonfinite_entries(part, f"{name}.{key}"))), None)


def without_overflow(reading: GradientReading, norms: list[float]) -> list[float]:
    """The norms again, in float64 where the sum of squares left the range of the gradient's own dtype."""
    return [
        norm if math.isfinite(norm) else float(tensor_norms([reading.gradient(name).to(torch.float64)]))
        for name, norm in zip(reading.names, norms, strict=True)
    ]
