"""What forecasts of returns would have earned, before and after cost.

After the last input row of a window a position is taken, and held for the rows of the target. Where these are several,
windows overlap: every n-th moment is then a run of its own, the n runs (each begins one row later) are averaged, and all
figures are per row, as if 1/n of the capital were in each run. Several series are held in equal parts at each moment.

    position   sign: -1, 0 or 1      proportional: the forecast in standard deviations of the training target, at most 1
    earned     position * return - cost * |position - the one before|      every series begins without a position

A position earns its share of the target as it is: a log return is not turned into a simple one.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from statewise.choices import one_of

POSITIONS = ("sign", "proportional")


@dataclass(frozen=True)
class Trading:
    """The node `evaluate`.

    Attributes:
        cost: of changing a position by 1, in the units of the target (1e-4 is a basis point of a return); None: nothing
            is traded.
        position: what a forecast becomes: `sign` or `proportional`.
        periods_per_year: rows in a year, for the annual Sharpe ratio; None leaves it out.
    """

    cost: float | None = None
    position: str = "sign"
    periods_per_year: float | None = None

    def __post_init__(self) -> None:
        one_of("evaluate.position", self.position, POSITIONS)
        if self.cost is not None and not 0.0 <= self.cost < math.inf:
            raise ValueError(f"evaluate.cost must be at least 0, or null for no trading, got {self.cost}")
        if self.periods_per_year is not None and not 0.0 < self.periods_per_year < math.inf:
            raise ValueError(f"evaluate.periods_per_year must be above 0, or null, got {self.periods_per_year}")

    def check(self, target_names: tuple[str, ...], targets_are_levels: bool) -> None:
        """Raises ValueError where there is something to trade and no return to earn."""
        if self.cost is not None and targets_are_levels:
            raise ValueError(
                f"evaluate.cost={self.cost:g} asks for positions that earn returns, but the targets are levels "
                f"({', '.join(target_names[:8])}): predict log_return(...) or difference(...) of a price in data.targets, or "
                "set evaluate.cost=null"
            )

    def positions(self, forecast: Float[np.ndarray, " n"], scale: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """What is held for each forecast, from -1 to 1."""
        held = np.sign(forecast) if self.position == "sign" else np.clip(forecast / scale, -1.0, 1.0)
        return np.asarray(held)


def trading_figures(
    rule: Trading,
    forecast: Float[np.ndarray, " n"],
    outcome: Float[np.ndarray, " n"],
    *,
    series: Shaped[np.ndarray, " n"],
    clock: Shaped[np.ndarray, " n"],
    scale: Float[np.ndarray, " n"],
    rows: int = 1,
    stride: int = 1,
) -> dict[str, float]:
    """Figures of one target, per row.

    Args:
        forecast, outcome: in original units, by series, then time; an outcome is NaN where it was not observed, and then
            nothing is held.
        clock: the time of each window (or its row number).
        scale: the standard deviation of the training target.
        rows: of the target: 5 for the return over 5 rows.
        stride: rows from one window to the next.

    Returns:
        `turnover` (mean |change of position|), `mean_return` and `sharpe` (mean over standard deviation) before and after
        cost, these per year, too, where that is asked for. NaN where a figure is not defined.
    """
    assert rule.cost is not None
    seen = np.isfinite(outcome)
    position = rule.positions(forecast, scale)[seen]
    earned = position * outcome[seen]
    _, moment = np.unique(clock[seen], return_inverse=True)
    own = series[seen]
    apart = -(-rows // stride)  # windows from one bet to the next of a run
    runs = [
        _one_run(rule.cost, position[bets], earned[bets], own[bets], moment[bets] // apart)
        for bets in (np.flatnonzero(moment % apart == first) for first in range(apart))
        if len(bets)
    ]
    if not runs:
        runs = [np.full(5, math.nan)]
    held = apart * stride  # rows from one bet to the next
    turnover, before, after, sharpe, sharpe_after = np.mean(runs, axis=0)
    figures = {
        "turnover": turnover / held,
        "mean_return": before / held,
        "mean_return_after_cost": after / held,
        "sharpe": sharpe / math.sqrt(held),
        "sharpe_after_cost": sharpe_after / math.sqrt(held),
    }
    if rule.periods_per_year is not None:
        year = math.sqrt(rule.periods_per_year)
        figures |= {"sharpe_per_year": figures["sharpe"] * year}
        figures |= {"sharpe_per_year_after_cost": figures["sharpe_after_cost"] * year}
    return {name: float(value) for name, value in figures.items()}


def _one_run(
    cost: float,
    position: Float[np.ndarray, " k"],
    earned: Float[np.ndarray, " k"],
    series: Shaped[np.ndarray, " k"],
    moment: Shaped[np.ndarray, " k"],
) -> Float[np.ndarray, " five"]:
    """Turnover, mean before and after cost, and Sharpe ratio before and after cost, of bets that do not overlap."""
    first = np.append(True, series[1:] != series[:-1])
    before = np.where(first, 0.0, np.append(0.0, position[:-1]))
    turnover = np.abs(position - before)
    moments, place, counts = np.unique(moment, return_inverse=True, return_counts=True)

    def together(values: np.ndarray) -> np.ndarray:
        return np.bincount(place, weights=values, minlength=len(moments)) / counts

    gross, traded = together(earned), together(turnover)
    net = gross - cost * traded
    return np.array([traded.mean(), gross.mean(), net.mean(), _sharpe(gross), _sharpe(net)])


def _sharpe(returns: Float[np.ndarray, " k"]) -> float:
    if len(returns) < 2:
        return math.nan
    deviation = float(returns.std(ddof=1))
    # Returns that are all the same differ by their rounding only.
    return float(returns.mean()) / deviation if deviation > 1e-12 * float(np.abs(returns).max()) else math.nan
