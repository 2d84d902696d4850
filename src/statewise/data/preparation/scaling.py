"""Standard scaling: mean 0 and standard deviation 1 on the observed training rows, in float64, and back again."""

import logging
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

log = logging.getLogger(__name__)

# Rows that are worked on at once: a column of 10 million rows then needs 4 MiB for each step of a formula, not 80 MB.
BLOCK = 2**19
_IN_CACHE = 2**15  # rows that the steps of scaling hand to each other without going through memory
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
            found = mean_and_deviation_of(values[rows], usable[rows])
            title = f"{name} of series {self.series[group - 1]}" if group else name
            if found is None:
                if group == 0:
                    raise ValueError(
                        f"column {name!r} has no observed value in the training part: leave it out of "
                        "data.features and data.targets, or choose another data.split"
                    )
                self.mean[group, column], self.scale[group, column] = self.mean[0, column], self.scale[0, column]
                self.without_values += (title,)
                continue
            self.mean[group, column], deviation = found
            if deviation != 0.0:
                self.scale[group, column] = deviation
            # What holds for all series together matters only where they share one scale.
            elif group or not self.series:
                self.constant += (title,)
                _warn_of_constant(title)

    def repeat_warnings(self) -> None:
        """Says again what was said while it learnt: for one that was kept, not learnt anew."""
        for title in self.constant:
            _warn_of_constant(title)

    def transform_column(
        self, column: int, values: Float[np.ndarray, " r"], offsets: Int[np.ndarray, " g1"], out: Float[Tensor, " r"]
    ) -> int:
        """Scales one column into `out`, in float64 and rounded once, to the type of `out`.

        Returns:
            how many steps from a row to the next of its series are a change in `values` and none in `out`.
        """
        vanished = 0
        for group, (first, stop) in enumerate(pairwise(offsets.tolist() if self.series else [0, len(values)])):
            row = group + 1 if self.series else 0
            for rows in _blocks(first, stop, _IN_CACHE):
                # With the row before it, so that the step to the first row is seen.
                rows = slice(max(first, rows.start - 1), rows.stop)
                scaled = values[rows] - self.mean[row, column]
                scaled /= self.scale[row, column]
                rounded = torch.from_numpy(scaled).to(out.dtype)
                out[rows] = rounded
                if out.dtype.itemsize < 8:
                    known = values[rows]
                    vanished += _vanished(known[:-1], known[1:], rounded[:-1], rounded[1:])
        if vanished and not self.series:
            inner = np.unique(offsets[(offsets > 0) & (offsets < len(values))])
            vanished -= _vanished(values[inner - 1], values[inner], out[inner - 1], out[inner])
        return vanished

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
    """Mean and standard deviation (divisor n) of at least one value."""
    found = mean_and_deviation_of(values, np.broadcast_to(np.True_, (len(values),)))
    assert found is not None
    return found


def mean_and_deviation_of(values: Float[np.ndarray, " n"], usable: Bool[np.ndarray, " n"]) -> tuple[float, float] | None:
    """Mean and standard deviation (divisor n) of the usable values, None where there is none.

    The deviation is exactly 0 where the values vary no more than their rounding.

    Two passes over differences to the first value, divided by their largest: exact 0 for equal values, no cancellation
    beside a large mean, no overflow or underflow of squares. Chan, Golub & LeVeque 1983, "Algorithms for computing the
    sample variance". Each pass goes block by block, and the sums of the blocks are added without rounding.
    """
    count = int(np.count_nonzero(usable))
    if not count:
        return None
    blocks = _UsableBlocks(values, usable)
    origin = values[int(np.argmax(usable))]
    largest = max(float(np.abs(block - origin).max()) for block in blocks)
    if largest == 0.0:
        return float(origin), 0.0
    middle = math.fsum(float(((block - origin) / largest).sum()) for block in blocks) / count
    squares = math.fsum(float(np.sum(((block - origin) / largest - middle) ** 2)) for block in blocks)
    deviation = largest * math.sqrt(squares / count)
    rounding = 4 * _EPS * max(float(np.abs(block).max()) for block in blocks)
    return float(origin + largest * middle), deviation if deviation > rounding else 0.0


class _UsableBlocks:
    """The usable values, block after block, as often as they are asked for."""

    def __init__(self, values: Float[np.ndarray, " n"], usable: Bool[np.ndarray, " n"]) -> None:
        self._values, self._usable = values, usable
        self._only = [values[usable]] if len(values) <= BLOCK else None

    def __iter__(self) -> Iterator[np.ndarray]:
        if self._only is not None:
            yield from self._only
            return
        for rows in _blocks(0, len(self._values)):
            flags = self._usable[rows]
            if flags.all():
                yield self._values[rows]
            elif flags.any():
                yield self._values[rows][flags]


def _vanished(
    before: Float[np.ndarray, " k"], after: Float[np.ndarray, " k"], scaled_before: Tensor, scaled_after: Tensor
) -> int:
    """How many pairs differ, and no longer do so when they are scaled."""
    return int(np.count_nonzero((before != after) & (scaled_before == scaled_after).numpy()))


def _blocks(first: int, stop: int, size: int = BLOCK) -> Iterator[slice]:
    for start in range(first, stop, size):
        yield slice(start, min(start + size, stop))


def _warn_of_constant(title: str) -> None:
    log.warning("column %s does not vary in the training part: its scale is 1", title)
