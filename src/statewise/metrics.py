"""Errors over observed values only: summed per target, divided by that target's count, then averaged over the targets.

Everything is a sum over samples and a count, in float64, so that no figure depends on how the rows were cut into
batches. Shapes end in the targets, ``[..., m]``: batch, time and horizon are pooled into each target.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torchmetrics import Metric

from statewise.choices import one_of

ElementwiseLoss = Callable[[Tensor], Tensor]


def squared(error: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The square of each error."""
    return error.square()


def absolute(error: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The size of each error."""
    return error.abs()


def huber(error: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Half the square up to a size of 1, linear beyond (delta 1). One formula for both parts: its gradient is finite
    wherever the error is, which a choice between two branches does not promise."""
    size = error.abs()
    inner = size.clamp(max=1.0)
    return inner * (size - 0.5 * inner)


LOSSES: dict[str, ElementwiseLoss] = {"mse": squared, "mae": absolute, "huber": huber}


def elementwise_loss(name: str) -> ElementwiseLoss:
    """The loss of that name, a function of the error alone.

    Raises:
        ValueError: the name is not one of mse, mae, huber.
    """
    return LOSSES[one_of("task.loss", name, LOSSES)]


def observed_error(
    prediction: Float[Tensor, "*rows m"], target: Float[Tensor, "*rows m"], observed: Bool[Tensor, "*rows m"]
) -> Float[Tensor, "*rows m"]:
    """Prediction minus target, and exactly 0, value and gradient, where the target was not observed (even NaN)."""
    return torch.where(observed, prediction - target, 0.0)


def observed_sums(
    error: Float[Tensor, "*rows m"], observed: Bool[Tensor, "*rows m"]
) -> tuple[Float[Tensor, "m"], Int[Tensor, "m"]]:
    """Per target, the sum of the observed entries and their number."""
    m = error.shape[-1]
    sums = torch.where(observed, error, 0.0).reshape(-1, m).sum(0)
    return sums, observed.reshape(-1, m).sum(0)


def mean_over_targets(sums: Float[Tensor, "m"], counts: Int[Tensor, "m"]) -> Float[Tensor, ""]:
    """The unweighted mean of the targets' own means; a target never observed is left out, NaN only if none ever was."""
    return (sums / counts.clamp(min=1)).sum() / (counts > 0).sum()


def masked_mean(error: Float[Tensor, "*rows m"], observed: Bool[Tensor, "*rows m"]) -> Float[Tensor, ""]:
    """`mean_over_targets` of the observed entries, in the dtype of `error`."""
    return mean_over_targets(*observed_sums(error, observed))


class _Float64Sums(Metric):
    """A metric whose floating point states stay float64 whatever dtype the module around it is moved to.

    torchmetrics ignores ``module.float()`` but follows ``module.to(dtype)``, which Lightning uses under ``bf16-true``.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    def _apply(self, fn: Callable[..., Any], exclude_state: Sequence[str] = "") -> torch.nn.Module:
        module = super()._apply(fn, exclude_state)
        for name, default in self._defaults.items():
            if isinstance(default, Tensor) and default.is_floating_point():
                self._defaults[name] = default.double()
                setattr(self, name, getattr(self, name).double())
        return module


class MaskedMean(_Float64Sums):
    """`masked_mean` over all batches: the supervised loss of a validation epoch.

    Args:
        targets: the number of targets m, the size of the last axis.
        settings: of torchmetrics.
    """

    sums: Tensor
    counts: Tensor

    def __init__(self, targets: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("sums", torch.zeros(targets, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(targets, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, error: Float[Tensor, "*rows m"], observed: Bool[Tensor, "*rows m"]) -> None:
        sums, counts = observed_sums(error.double(), observed)
        self.sums += sums
        self.counts += counts

    def compute(self) -> Tensor:
        return mean_over_targets(self.sums, self.counts)


class MaskedErrors(_Float64Sums):
    """Mean squared and mean absolute error over all batches, per target and averaged over the targets.

    Args:
        targets: the number of targets m, the size of the last axis.
        settings: of torchmetrics.

    `compute` gives ``mse`` and ``mae`` (scalars) and ``mse_per_target`` and ``mae_per_target`` (``[m]``, NaN for a
    target that was never observed, which is left out of the scalars).
    """

    squares: Tensor
    sizes: Tensor
    counts: Tensor

    def __init__(self, targets: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("squares", torch.zeros(targets, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("sizes", torch.zeros(targets, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(targets, dtype=torch.int64), dist_reduce_fx="sum")

    def update(
        self,
        prediction: Float[Tensor, "*rows m"],
        target: Float[Tensor, "*rows m"],
        observed: Bool[Tensor, "*rows m"],
    ) -> None:
        error = observed_error(prediction.double(), target.double(), observed)
        squares, counts = observed_sums(squared(error), observed)
        self.squares += squares
        self.sizes += observed_sums(absolute(error), observed)[0]
        self.counts += counts

    def compute(self) -> dict[str, Tensor]:
        return {
            "mse": mean_over_targets(self.squares, self.counts),
            "mae": mean_over_targets(self.sizes, self.counts),
            "mse_per_target": self.squares / self.counts,
            "mae_per_target": self.sizes / self.counts,
        }

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """torchmetrics makes a scalar of every result of one element; the vector of one target stays a vector."""
        wrapped = super()._wrap_compute(compute)

        @functools.wraps(wrapped)
        def with_vectors(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            values = wrapped(*args, **kwargs)
            return {key: value.reshape(-1) if key.endswith("_per_target") else value for key, value in values.items()}

        return with_vectors


def errors(prediction: Any, target: Any, observed: Any) -> dict[str, Tensor]:
    """`MaskedErrors` of arrays or tensors that are all at hand; any shapes ``[..., m]`` that are equal."""
    p, t = (torch.as_tensor(np.asarray(values, dtype=np.float64)) for values in (prediction, target))
    metric = MaskedErrors(p.shape[-1], sync_on_compute=False)  # other processes have nothing to add to these
    metric.update(p, t, torch.as_tensor(np.asarray(observed, dtype=bool)))
    result: dict[str, Tensor] = metric.compute()
    return result


def r2_of_levels(prediction: Any, target: Any, observed: Any, last_value: Any) -> list[dict[str, float]]:
    """Of each target, 1 - MSE / variance, and beside it 1 - MSE / the MSE of the last value.

    The first is near 1 for any forecast of a price, because the price of tomorrow is nearly that of today: it is worth
    nothing without the second. NaN where a target was never observed or does not vary.

    Args:
        prediction, target, observed, last_value: ``[..., m]``, of one shape.
    """
    p, t, last = (np.asarray(values, dtype=np.float64) for values in (prediction, target, last_value))
    mask = np.asarray(observed, dtype=bool)
    found = []
    for j in range(mask.shape[-1]):
        seen = mask[..., j]
        truth = t[..., j][seen]
        error = np.mean((p[..., j][seen] - truth) ** 2) if len(truth) else math.nan
        of_last = np.mean((last[..., j][seen] - truth) ** 2) if len(truth) else math.nan
        variance = truth.var() if len(truth) else math.nan
        found.append({"r2": _saved(error, variance), "r2_against_last_value": _saved(error, of_last)})
    return found


def _saved(error: float, reference: float) -> float:
    return float(1.0 - error / reference) if reference > 0.0 else math.nan
