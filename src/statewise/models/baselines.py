"""What a model must beat on the same windows and observed targets: the last value, zero, the best linear map.

The linear model is ridge regression of every target and horizon step on the whole window: flattened to p numbers, and
an intercept that is not penalised. It is solved from the normal equations, which are sums over the training windows, so
that no window is kept:

    S = sum (x - x_mean)(x - x_mean)'        c = sum (x - x_mean)(y - y_mean)        w = (S + strength * scale * I)^-1 c

with scale the mean of S's eigenvalues. One eigendecomposition S = V E V' answers every strength (Golub and Van Loan,
section 6.1.4); the strength that is kept has the smallest validation MSE. An output with missing targets has an S of
its own: that of all rows less that of the rows it misses. Outputs that miss the same rows share one.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy.linalg

from statewise.metrics import errors

log = logging.getLogger(__name__)

STRENGTHS: tuple[float, ...] = tuple(10.0**k for k in range(-9, 3))
WHEN_NOTHING_IS_OBSERVED = 1e-3  # the strength where no validation target was observed
MEMORY = 256 * 2**20  # bytes that the sums of one pass over the windows may take; more of them take more passes


@runtime_checkable
class Windows(Protocol):
    """What the baselines ask of a data module that is set up."""

    horizon: int

    @property
    def target_inputs(self) -> tuple[int, ...] | None: ...

    @property
    def targets_are_levels(self) -> bool: ...

    def evaluation_batches(self, split: str, batch_size: int = 1024) -> Iterator[Any]: ...

    def last_step(self, split: str) -> tuple[Any, Any]: ...

    def to_original(self, split: str, scaled: np.ndarray) -> np.ndarray: ...

    def target_scale(self, split: str) -> np.ndarray: ...

    def optimal(self, split: str) -> np.ndarray | None: ...


@dataclass(frozen=True)
class BaselineResult:
    """Errors on the test windows, in scaled units, and the predictions ``[n, horizon, m]`` they belong to."""

    mse: float
    mae: float
    predictions: np.ndarray


@dataclass(frozen=True)
class Baselines:
    """Each baseline's result (``last_value``, ``zero``, ``linear``), None where it makes no sense for the data."""

    results: dict[str, BaselineResult | None]
    strength: float

    @property
    def best(self) -> tuple[str, float]:
        """Name and MSE of the baseline with the smallest test MSE; an empty name and NaN if nothing was observed."""
        known = {name: result.mse for name, result in self.results.items() if result and not np.isnan(result.mse)}
        name = min(known, key=known.__getitem__, default="")
        return name, known.get(name, float("nan"))


@dataclass(frozen=True)
class LinearModel:
    """``prediction = x @ weights + intercept`` with x the window, flattened time first."""

    weights: np.ndarray  # (p q)
    intercept: np.ndarray  # (q)
    strength: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        prediction: np.ndarray = x @ self.weights + self.intercept
        return prediction


def evaluate_baselines(datamodule: Windows) -> Baselines:
    """Fit on the training windows, choose on the validation windows, measure on the test windows."""
    targets, observed = datamodule.last_step("test")
    truth, seen = _float64(targets), np.asarray(observed, dtype=bool)
    linear = ridge(datamodule)
    predictions = {
        "last_value": last_value(datamodule),
        "zero": zero(datamodule),
        "linear": np.concatenate([linear(x) for x, _, _ in _rows(datamodule, "test")]).reshape(truth.shape),
    }
    return Baselines({name: _measure(p, truth, seen) for name, p in predictions.items()}, linear.strength)


def floor(datamodule: Windows) -> float | None:
    """The scaled test MSE of the best possible predictor on the same targets; None where it is not known."""
    optimal = datamodule.optimal("test")
    if optimal is None:
        return None
    truth, observed = datamodule.last_step("test")
    mask = np.asarray(observed, dtype=bool)
    if not np.isfinite(optimal[mask]).all():
        return None  # an error on fewer rows than the model's would be compared with it
    return float(errors(optimal, truth, mask)["mse"])


def last_value(datamodule: Windows) -> np.ndarray | None:
    """Every step of the horizon is the target's last input, ``[n, horizon, m]``; None where a target is no input."""
    columns = datamodule.target_inputs
    if columns is None:
        return None
    last = np.concatenate([_float64(b.inputs[:, -1])[:, list(columns)] for b in datamodule.evaluation_batches("test")])
    return np.repeat(last[:, None, :], datamodule.horizon, axis=1)


def zero(datamodule: Windows) -> np.ndarray | None:
    """The original value 0 in scaled units, the forecast for returns; None for targets that are levels."""
    if datamodule.targets_are_levels:
        return None
    targets, _ = datamodule.last_step("test")
    means = datamodule.to_original("test", np.zeros(tuple(targets.shape)))
    return np.asarray(-means / datamodule.target_scale("test")[:, None, :])


def ridge(datamodule: Windows, strengths: Sequence[float] = STRENGTHS) -> LinearModel:
    """The linear model of the whole window, fitted on train, its strength chosen on val.

    Args:
        datamodule: whose windows are read, a batch at a time.
        strengths: tried, relative to the mean eigenvalue of S, so that neither the number of rows nor a unit matters.

    Raises:
        ValueError: there is no training window.
    """
    _, observed = datamodule.last_step("train")
    if not len(observed):
        raise ValueError("the linear baseline needs training windows, got none: check data.split and data.window")
    seen = np.asarray(observed, dtype=bool).reshape(len(observed), -1)  # (n q)
    counts = seen.sum(0)  # (q)
    gram, cross = _sums(datamodule)
    p, q = cross.shape[0] - 1, cross.shape[1]
    weights = np.zeros((len(strengths), p, q))
    x_means, y_means = np.zeros((p, q)), np.zeros(q)
    for columns, own in _grams(datamodule, seen, gram):
        n = counts[columns[0]]
        if n == 0:
            continue  # never observed: predicts 0, which in scaled units is the mean
        x_mean, y_mean = own[:-1, -1] / n, cross[-1, columns] / n
        x_means[:, columns], y_means[columns] = x_mean[:, None], y_mean
        eigenvalues, vectors = scipy.linalg.eigh(own[:-1, :-1] - n * np.outer(x_mean, x_mean), driver="evd")
        eigenvalues = eigenvalues.clip(min=0.0)
        scale = eigenvalues.mean() or 1.0  # inputs that never change leave S = 0 and c = 0
        rotated = vectors.T @ (cross[:-1, columns] - n * np.outer(x_mean, y_mean))
        for k, strength in enumerate(strengths):
            weights[k][:, columns] = vectors @ (rotated / (eigenvalues + strength * scale)[:, None])
    intercepts = y_means - np.einsum("kpq,pq->kq", weights, x_means)
    best = _best_on_validation(datamodule, weights, intercepts, strengths)
    log.info("linear baseline: %d inputs, strength %.0e chosen on validation", p, strengths[best])
    return LinearModel(weights[best], intercepts[best], strengths[best])


def _float64(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def _rows(datamodule: Windows, split: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each batch, in order: windows (b p), targets (b q) with 0 where nothing was observed, observed (b q)."""
    for inputs, targets, observed in datamodule.evaluation_batches(split):
        seen = np.asarray(observed, dtype=bool).reshape(len(inputs), -1)
        y = np.where(seen, _float64(targets).reshape(seen.shape), 0.0)
        yield _float64(inputs).reshape(len(inputs), -1), y, seen


def _with_one(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def _sums(datamodule: Windows) -> tuple[np.ndarray, np.ndarray]:
    """Over all training rows, a 1 behind each window: sums of x x' (p+1 p+1) and, y observed, of x y' (p+1 q)."""
    gram: np.ndarray | float = 0.0
    cross: np.ndarray | float = 0.0
    for x, y, _ in _rows(datamodule, "train"):
        x = _with_one(x)
        gram = gram + x.T @ x
        cross = cross + x.T @ y
    return np.asarray(gram), np.asarray(cross)


def _grams(datamodule: Windows, seen: np.ndarray, gram: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For outputs that miss the same rows: their columns, and the sum of x x' over the rows they do not miss."""
    groups: dict[bytes, list[int]] = {}
    for column, bits in enumerate(np.packbits(seen, axis=0).T):
        groups.setdefault(bits.tobytes(), []).append(column)
    incomplete = []
    for columns in map(np.array, groups.values()):
        if seen[:, columns[0]].all():
            yield columns, gram
        else:
            incomplete.append(columns)
    at_once = max(1, MEMORY // gram.nbytes)
    for first in range(0, len(incomplete), at_once):
        part = incomplete[first : first + at_once]
        missing = np.zeros((len(part), *gram.shape))
        for x, _, observed in _rows(datamodule, "train"):
            x = _with_one(x)
            for total, columns in zip(missing, part, strict=True):
                if len(rows := x[~observed[:, columns[0]]]):
                    total += rows.T @ rows
        yield from ((columns, gram - total) for columns, total in zip(part, missing, strict=True))


def _best_on_validation(datamodule: Windows, weights: np.ndarray, intercepts: np.ndarray, strengths: Sequence[float]) -> int:
    """Index of the strength with the smallest validation MSE (mean over targets of each target's own)."""
    k, p, q = weights.shape
    side_by_side = weights.transpose(1, 0, 2).reshape(p, k * q)
    squares, counts = np.zeros((k, q)), np.zeros(q)
    for x, y, seen in _rows(datamodule, "val"):
        error = (x @ side_by_side).reshape(-1, k, q) + intercepts - y[:, None]
        error *= seen[:, None]
        squares += np.einsum("bkq,bkq->kq", error, error)
        counts += seen.sum(0)
    squares = squares.reshape(k, datamodule.horizon, -1).sum(1)  # (k m)
    counts = counts.reshape(datamodule.horizon, -1).sum(0)
    if not counts.any():
        return int(np.abs(np.log(strengths) - np.log(WHEN_NOTHING_IS_OBSERVED)).argmin())
    return int((squares[:, counts > 0] / counts[counts > 0]).mean(1).argmin())


def _measure(predictions: np.ndarray | None, truth: np.ndarray, seen: np.ndarray) -> BaselineResult | None:
    if predictions is None:
        return None
    values = errors(predictions, truth, seen)
    return BaselineResult(float(values["mse"]), float(values["mae"]), predictions)
