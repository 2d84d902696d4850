"""The largest element of whole gradients: a block of zeros may lie in a gradient that is not zero."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from statewise.health.steps.fingerprint import Fingerprint
from statewise.health.steps.suspects import gradient
from statewise.parallel.shards import here, sharded


def largest(
    parameters: Sequence[nn.Parameter], blocks: Fingerprint, used: Tensor, absent: np.ndarray, on_cpu: bool
) -> dict[int, Tensor]:
    """By index of the parameter. used: the gradients' blocks, which on a CPU tell whose gradient must be measured; elsewhere
    all are. Of sharded ones it is the largest element of this process's part."""
    if any(map(sharded, parameters)):
        chosen = np.flatnonzero(~absent).tolist()
        return {index: _largest_here(gradient(parameters[index])) for index in chosen}
    if on_cpu:
        elements = _array(used)
        asked = ~blocks.some(elements != 0) & ~blocks.complete
        # The blocks of sparse gradients are NaN.
        if np.isnan(elements).any():
            asked[[i for i, p in enumerate(parameters) if p.grad is not None and p.grad.is_sparse]] = True
        chosen = np.flatnonzero(asked & ~absent).tolist() if asked.any() else []
    else:
        chosen = np.flatnonzero(~absent).tolist()
    if not chosen:
        return {}
    dense = [_dense(parameters[index]) for index in chosen]
    return dict(zip(chosen, torch._foreach_norm(dense, float("inf")), strict=True))


def _largest_here(grad: Tensor) -> Tensor:
    part = here(grad)
    return torch.linalg.vector_norm(part, float("inf")) if part.numel() else part.new_zeros(())


def _dense(parameter: nn.Parameter) -> Tensor:
    grad = gradient(parameter)
    if not grad.is_sparse:
        return grad
    values = grad.coalesce().values()
    return values if values.numel() else torch.zeros(1, dtype=values.dtype, device=values.device)


def _array(block: Tensor) -> np.ndarray:
    return (block.float() if block.dtype in (torch.float16, torch.bfloat16) else block).numpy()
