"""How good a forecaster of returns is: four figures that say nothing about a level, each with its standard error.

All take arrays of one shape, `[n, ...]` with a window in each row, count observed entries only, and give `value` and `se`;
a value is NaN where it is not defined. `block` [n] is the block of time of each window (standard_errors.py), None where the
windows are independent of one another.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from statewise.standard_errors import standard_error

Figure = dict[str, float]
Block = Int[np.ndarray, " n"] | None


def information_coefficient(prediction: Any, target: Any, observed: Any, block: Block = None) -> Figure:
    """Pearson's correlation between forecasts and outcomes, over all observed entries of all targets together.

    Without blocks ``se`` is the correlation's standard deviation if there is no relation, 1 / sqrt(n - 1): a value within
    two of it is nothing found. ``value`` is NaN for fewer than two entries, or a constant forecast.
    """
    return _correlation(*_observed_entries(prediction, target, observed, block))


def rank_correlation(prediction: Any, target: Any, observed: Any, block: Block = None) -> Figure:
    """Spearman's correlation: Pearson's of the ranks, which no single outlier decides. Equal values share a mean rank.

    ``se`` as for the information coefficient; that ranks are estimated, too, is left out of it.
    """
    p, t, blocks = _observed_entries(prediction, target, observed, block)
    return _correlation(_ranks(p), _ranks(t), blocks)


def directional_accuracy(prediction: Any, target: Any, observed: Any, block: Block = None) -> Figure:
    """The share of non-zero outcomes whose sign was forecast; a forecast of 0 takes no side and counts half.

    Give original units: a sign says nothing after a mean was subtracted. Without blocks ``se`` is the share's standard
    deviation for a forecast by coin, 1 / (2 sqrt(n)). Both are NaN where no outcome differs from 0.
    """
    p, t, blocks = _observed_entries(prediction, target, observed, block)
    moved = t != 0.0
    if not moved.any():
        return {"value": math.nan, "se": math.nan}
    right = 0.5 + 0.5 * np.sign(p[moved]) * np.sign(t[moved])
    value = float(right.mean())
    se = 0.5 / math.sqrt(len(right)) if blocks is None else standard_error(right - value, blocks[moved])
    return {"value": value, "se": se}


def r2_against_zero(prediction: Any, target: Any, observed: Any, block: Block = None) -> Figure:
    """1 - sum (y - forecast)^2 / sum y^2: the share of the squared returns that is saved against the forecast of 0.

    Give original units, or these divided by a scale, so that 0 is no return. NaN where every outcome is 0.
    """
    p, t, blocks = _observed_entries(prediction, target, observed, block)
    largest = np.abs(t).max(initial=0.0)
    if largest == 0.0:
        return {"value": math.nan, "se": math.nan}
    # Scaled first: the squares of returns of 1e-160 would underflow.
    error, outcome = ((t - p) / largest) ** 2, (t / largest) ** 2
    ratio = error.mean() / outcome.mean()
    return {"value": float(1.0 - ratio), "se": standard_error((error - ratio * outcome) / outcome.mean(), blocks)}


def _correlation(p: Float[np.ndarray, " k"], t: Float[np.ndarray, " k"], block: Int[np.ndarray, " k"] | None) -> Figure:
    n = len(p)
    if n < 2:
        return {"value": math.nan, "se": math.nan}
    constant = np.ptp(p) == 0.0 or np.ptp(t) == 0.0
    se = 1.0 / math.sqrt(n - 1) if block is None else math.nan
    if constant:
        return {"value": math.nan, "se": se}
    p, t = p - p.mean(), t - t.mean()
    # Scaled first: the squares of returns of 1e-160 would underflow.
    p, t = p / np.abs(p).max(), t / np.abs(t).max()
    squares_p, squares_t = p @ p, t @ t
    value = float(p @ t / math.sqrt(squares_p * squares_t))
    if block is not None:
        u, v = p * math.sqrt(n / squares_p), t * math.sqrt(n / squares_t)
        se = standard_error(u * v - 0.5 * value * (u * u + v * v), block)
    return {"value": value, "se": se}


def _ranks(values: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - 0.5 * (counts - 1))[place])


def _observed_entries(
    prediction: Any, target: Any, observed: Any, block: Block
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"], Int[np.ndarray, " k"] | None]:
    p, t = (np.asarray(values, dtype=np.float64) for values in (prediction, target))
    mask = np.asarray(observed, dtype=bool)
    if not p.shape == t.shape == mask.shape:
        shapes = [list(array.shape) for array in (p, t, mask)]
        raise ValueError(f"prediction, target and observed must have one shape, got {', '.join(map(str, shapes))}")
    if block is None:
        return p[mask], t[mask], None
    if block.shape != mask.shape[:1]:
        raise ValueError(f"block must be one number for each of the {len(mask)} windows, got shape {list(block.shape)}")
    of_entries = np.broadcast_to(block.reshape(-1, *(1,) * (mask.ndim - 1)), mask.shape)
    return p[mask], t[mask], of_entries[mask]
