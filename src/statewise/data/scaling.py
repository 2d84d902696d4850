"""Standard scaling: mean 0 and standard deviation 1 on the observed training rows, in float64, and back again."""

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

log = logging.getLogger(__name__)

_EPS = float(np.finfo(np.float64).eps)


class StandardScaler:
    """Scales each column, over all series or in each series by itself.

    Row 0 of `mean` and `scale` belongs to all series together; with per-series scaling row 1 + i belongs to series i. A
    series without training values has the statistics of all series.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.series: tuple[str, ...] = ()  # empty: one scale for all
        self.mean: Float[np.ndarray, "g f"] = np.zeros((1, 0))
        self.scale: Float[np.ndarray, "g f"] = np.ones((1, 0))
        self.constant: tuple[str, ...] = ()  # columns without variation, left at scale 1
        self.without_values: tuple[str, ...] = ()  # series (or columns of a series) that use the statistics of all

    @property
    def per_series(self) -> bool:
        return bool(self.series)

    def fit(
        self,
        values: Float[np.ndarray, "r f"],
        usable: Bool[np.ndarray, "r f"],
        offsets: Int[np.ndarray, " g1"],
        names: Sequence[str],
        *,
        series: Sequence[str] = (),
        per_series: bool = False,
    ) -> "StandardScaler":
        """Learns mean and scale of columns that are in memory: `begin`, then `learn` for each of them."""
        self.begin(names, series=series, per_series=per_series)
        for column in range(len(self.names)):
            self.learn(column, values[:, column], usable[:, column], offsets)
        return self

    def begin(self, names: Sequence[str], *, series: Sequence[str] = (), per_series: bool = False) -> None:
        """Forgets everything and takes the names of the columns, which are then learnt one by one."""
        self.names = tuple(names)
        self.series = tuple(series) if per_series else ()
        self.mean = np.zeros((len(self.series) + 1, len(self.names)))
        self.scale = np.ones((len(self.series) + 1, len(self.names)))
        self.constant, self.without_values = (), ()

    def learn(
        self,
        column: int,
        values: Float[np.ndarray, " r"],
        usable: Bool[np.ndarray, " r"],
        offsets: Int[np.ndarray, " g1"],
    ) -> None:
        """Learns mean and scale of one column.

        Args:
            usable: which values count: observed ones of training rows.
            offsets: series i has the rows offsets[i] to offsets[i + 1].

        A column whose standard deviation is no more than the rounding of its values is constant: its scale is 1, and a
        warning names it.

        Raises:
            ValueError: the column has no usable value at all.
        """
        name = self.names[column]
        groups = [slice(0, len(values)), *(slice(a, b) for a, b in pairwise(offsets.tolist()) if self.series)]
        for group, rows in enumerate(groups):
            known = values[rows][usable[rows]]
            title = f"{name} of series {self.series[group - 1]}" if group else name
            if not len(known):
                if group == 0:
                    raise ValueError(
                        f"column {name!r} has no observed value in the training part: leave it out of "
                        "data.features and data.targets, or choose another data.split"
                    )
                self.mean[group, column], self.scale[group, column] = self.mean[0, column], self.scale[0, column]
                self.without_values += (title,)
                continue
            self.mean[group, column], deviation = mean_and_deviation(known)
            if deviation != 0.0:
                self.scale[group, column] = deviation
            # What holds for all series together matters only where they share one scale.
            elif group or not self.series:
                self.constant += (title,)
                log.warning("column %s does not vary in the training part: its scale is 1", title)

    def transform_column(
        self, column: int, values: Float[np.ndarray, " r"], offsets: Int[np.ndarray, " g1"]
    ) -> Float[np.ndarray, " r"]:
        """The scaled values of one column (a new array)."""
        scaled: np.ndarray = np.empty(len(values))
        for group, (first, stop) in enumerate(pairwise(offsets.tolist() if self.series else [0, len(values)])):
            row = group + 1 if self.series else 0
            np.subtract(values[first:stop], self.mean[row, column], out=scaled[first:stop])
            scaled[first:stop] /= self.scale[row, column]
        return scaled

    def transform(self, values: Float[np.ndarray, "r f"], codes: Int[np.ndarray, " r"]) -> Float[np.ndarray, "r f"]:
        """Scaled values (a new array); codes are the series of the rows."""
        # One scale for all needs no copy of it for each row.
        mean, scale = self.of(codes) if self.per_series else (self.mean[0], self.scale[0])
        scaled: np.ndarray = values - mean
        scaled /= scale
        return scaled

    def inverse(self, scaled: Float[np.ndarray, "r f"], codes: Int[np.ndarray, " r"]) -> Float[np.ndarray, "r f"]:
        """Values in original units; the inverse of `transform`."""
        mean, scale = self.of(codes)
        values: np.ndarray = scaled * scale + mean
        return values

    def of(self, codes: Int[np.ndarray, " r"]) -> tuple[Float[np.ndarray, "r f"], Float[np.ndarray, "r f"]]:
        """Mean and scale of each row."""
        rows = codes + 1 if self.per_series else np.zeros_like(codes)
        return self.mean[rows], self.scale[rows]

    def for_series(self, series: Sequence[str]) -> "StandardScaler":
        """The same scaler for data with these series, in this order; a series it does not know has the scale of all."""
        if not self.per_series or tuple(series) == self.series:
            return self
        rows = [0] + [self.series.index(name) + 1 if name in self.series else 0 for name in series]
        other = StandardScaler()
        other.names, other.series = self.names, tuple(series)
        other.mean, other.scale = self.mean[rows], self.scale[rows]
        other.constant = self.constant
        other.without_values = tuple(name for name in series if name not in self.series)
        return other

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and float64 tensors, so that a checkpoint loads with weights_only."""
        return {
            "names": list(self.names),
            "series": list(self.series),
            "mean": torch.from_numpy(self.mean.copy()),
            "scale": torch.from_numpy(self.scale.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.names = tuple(state["names"])
        self.series = tuple(state["series"])
        self.mean = state["mean"].numpy().copy()
        self.scale = state["scale"].numpy().copy()
        self.constant, self.without_values = (), ()

    def equals(self, other: "StandardScaler") -> bool:
        """Whether both scale alike, bit for bit."""
        return (
            (self.names, self.series) == (other.names, other.series)
            and np.array_equal(self.mean, other.mean)
            and np.array_equal(self.scale, other.scale)
        )


def mean_and_deviation(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Mean and standard deviation (divisor n), which is exactly 0 where the values vary no more than their rounding.

    Two passes over differences to the first value, divided by their largest: exact 0 for equal values, no cancellation
    beside a large mean, no overflow or underflow of squares. Chan, Golub & LeVeque 1983, "Algorithms for computing the
    sample variance".
    """
    origin = values[0]
    difference = values - origin
    largest = float(np.abs(difference).max())
    if largest == 0.0:
        return float(origin), 0.0
    difference /= largest
    middle = difference.mean()
    deviation = largest * float(np.sqrt(np.mean((difference - middle) ** 2)))
    rounding = 4 * _EPS * float(np.abs(values).max())
    return float(origin + largest * middle), deviation if deviation > rounding else 0.0
