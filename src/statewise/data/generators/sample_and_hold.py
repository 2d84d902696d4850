"""Values of which a few are marked, and a target that keeps the marked one: what an input-dependent state is for.

Every sequence is a stream of independent rows. With p the marker rate:
    value_t standard normal        marker_t = 1 with probability p, and at the first row of a sequence, else 0
    held_t = value_s, s the latest row before t with marker_s = 1
The rows before t decide held_t, so the best possible prediction makes no error. A linear one cannot open at a marker and
close after it. The value k rows ago is the held one with probability w_k = p (1 - p)^(k - 1), and is correlated with
nothing else: the best linear prediction is sum_k w_k value_(t - k), and leaves 1 - sum_k w_k^2 = 1 - p / (2 - p) of the
variance, .974 at p = .05. This is the selective copying of Gu and Dao (2023, arXiv 2312.00752, section 3.1) with a memory
of one value.
"""

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from statewise.choices import at_least

COLUMNS = ("value", "marker", "held")
_FIRST = np.datetime64("2000-01-01", "ns")
_STEP = np.timedelta64(1, "s")
_PAUSE = 60  # steps without a row between two sequences: far above what counts as a gap in time


def sample_and_hold(seed: int, *, sequences: int, rows: int, marker_rate: float) -> pl.DataFrame:
    """Draws sequences of so many rows each, one after another in time with a pause between them: time and COLUMNS.

    A first row holds what the sequence before it ended with (0 in the very first): the table is one stream whose
    sequences forget each other, because each begins with a marker.
    """
    at_least(1, data__sequences=sequences)
    at_least(2, rows=rows)
    if not 0 <= marker_rate <= 1:
        raise ValueError(f"data.marker_rate must be a probability between 0 and 1, got {marker_rate}")
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(sequences * rows)
    marked = rng.random((sequences, rows)) < marker_rate
    marked[:, 0] = True
    places = np.arange(sequences)[:, None] * (rows + _PAUSE) + np.arange(rows)
    return pl.DataFrame(
        {
            "time": _FIRST + places.ravel() * _STEP,
            "value": values,
            "marker": marked.ravel().astype(np.float64),
            "held": hold(values, marked.ravel()),
        }
    )


def hold(values: Float[np.ndarray, " r"], marked: Bool[np.ndarray, " r"]) -> Float[np.ndarray, " r"]:
    """The value at the latest marked row before each row, 0 where there is none."""
    latest = np.maximum.accumulate(np.where(marked, np.arange(len(values)), -1))
    held: np.ndarray = np.where(latest >= 0, values[latest], 0.0)
    return np.concatenate([[0.0], held[:-1]])


def best_linear_error(marker_rate: float, window: int) -> float:
    """The mean squared error of the best linear prediction from a window that begins with a sequence, unscaled."""
    lags = np.arange(1, window)
    weights = np.append(marker_rate * (1 - marker_rate) ** (lags - 1), (1 - marker_rate) ** (window - 1))
    return float(1 - weights @ weights)
