import numpy as np
import pytest

from statewise.trading import Trading, trading_figures


def figures(rule, forecast, outcome, **options):
    n = len(forecast)
    given = {"series": np.array([""] * n), "clock": np.arange(n), "scale": np.ones(n), **options}
    return trading_figures(rule, np.asarray(forecast, dtype=float), np.asarray(outcome, dtype=float), **given)


def test_positions_are_signs_and_every_change_costs():
    got = figures(Trading(cost=0.1), [3.0, 2.0, -1.0, 0.0, 5.0], [1.0, 2.0, -3.0, 9.0, 1.0])

    # Held: 1, 1, -1, 0, 1; changed by 1, 0, 2, 1, 1.
    gross = np.array([1.0, 2.0, 3.0, 0.0, 1.0])
    net = gross - 0.1 * np.array([1.0, 0.0, 2.0, 1.0, 1.0])
    assert got["turnover"] == 1.0
    assert got["mean_return"] == pytest.approx(gross.mean())
    assert got["mean_return_after_cost"] == pytest.approx(net.mean())
    assert got["sharpe"] == pytest.approx(gross.mean() / gross.std(ddof=1))
    assert got["sharpe_after_cost"] == pytest.approx(net.mean() / net.std(ddof=1))
    assert "sharpe_per_year" not in got


def test_a_year_has_its_rows():
    got = figures(Trading(cost=0.0, periods_per_year=252.0), *np.random.default_rng(0).normal(size=(2, 50)))
    assert got["sharpe_per_year"] == pytest.approx(got["sharpe"] * np.sqrt(252))
    assert got["sharpe_per_year_after_cost"] == got["sharpe_per_year"]


def test_proportional_positions_are_forecasts_in_standard_deviations():
    rule = Trading(cost=0.0, position="proportional")
    assert rule.positions(np.array([1.0, -4.0, 0.5]), np.array([2.0, 2.0, 2.0])).tolist() == [0.5, -1.0, 0.25]


def test_a_return_that_was_not_observed_is_not_traded():
    got = figures(Trading(cost=0.1), [1.0, -1.0, 1.0], [1.0, np.nan, 2.0])
    assert got["turnover"] == 0.5
    assert got["mean_return"] == 1.5


def test_every_series_begins_without_a_position_and_all_share_the_capital():
    got = figures(
        Trading(cost=0.0),
        [1, 1, -1, -1],
        [1.0, 2.0, 3.0, 4.0],
        series=np.array(["a", "a", "b", "b"]),
        clock=np.array([0, 1, 0, 1]),
    )
    gross = np.array([(1 - 3) / 2, (2 - 4) / 2])
    assert got["turnover"] == 0.5
    assert got["mean_return"] == gross.mean()
    assert np.isnan(got["sharpe"])  # the same at each moment


def test_overlapping_returns_are_held_in_turn():
    rng = np.random.default_rng(0)
    rows, n = 5, 4000
    returns = rng.normal(size=n + rows)
    overlapping = np.convolve(returns, np.ones(rows), "valid")[:n]
    forecast = 0.3 * overlapping + rng.normal(size=n)
    got = figures(Trading(cost=0.0), forecast, overlapping, rows=rows)

    # The same portfolio row by row: at each row the mean of the last five positions, each for one row's return.
    positions = np.sign(forecast)
    held = np.convolve(positions, np.ones(rows) / rows)[: n - rows]
    earned = held[rows:] * returns[rows : n - rows]
    assert got["mean_return"] == pytest.approx(earned.mean(), rel=0.03)
    assert got["turnover"] == pytest.approx(
        np.mean([np.abs(np.diff(positions[k::rows])).mean() for k in range(rows)]) / rows, rel=0.01
    )
    bets = positions[::rows] * overlapping[::rows]
    assert got["sharpe"] == pytest.approx(bets.mean() / bets.std() / np.sqrt(rows), rel=0.1)


def test_the_sharpe_ratio_of_overlapping_returns_is_that_of_rows():
    """Positions that never change earn the same whatever the length of the target."""
    returns = np.random.default_rng(1).normal(0.1, 1.0, size=20_000)
    single = figures(Trading(cost=0.0), np.ones(len(returns)), returns)
    over = np.convolve(returns, np.ones(4), "valid")
    four = figures(Trading(cost=0.0), np.ones(len(over)), over, rows=4)
    assert four["sharpe"] == pytest.approx(single["sharpe"], rel=0.05)
    assert four["mean_return"] == pytest.approx(single["mean_return"], rel=0.01)


def test_windows_that_are_a_stride_apart_are_counted_in_rows():
    overlapping = np.convolve(np.random.default_rng(1).normal(0.1, 1.0, size=20_000), np.ones(4), "valid")
    dense = figures(Trading(cost=0.0), np.ones(len(overlapping)), overlapping, rows=4)
    thinned = figures(Trading(cost=0.0), np.ones(len(overlapping[::2])), overlapping[::2], rows=4, stride=2)
    assert thinned["mean_return"] == pytest.approx(dense["mean_return"], rel=0.01)
    assert thinned["sharpe"] == pytest.approx(dense["sharpe"], rel=0.02)


def test_nothing_observed_is_nothing_earned():
    assert np.isnan(list(figures(Trading(cost=0.0), [1.0, 2.0], [np.nan, np.nan]).values())).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": -1.0}, "evaluate.cost must be at least 0, or null for no trading, got -1.0"),
        ({"cost": float("inf")}, "evaluate.cost must be at least 0"),
        ({"position": "signs"}, "evaluate.position must be one of sign, proportional, got 'signs'; did you mean sign?"),
        ({"periods_per_year": 0.0}, "evaluate.periods_per_year must be above 0, or null, got 0.0"),
    ],
)
def test_rules_without_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match="evaluate") as raised:
        Trading(**options)
    assert message in str(raised.value)


def test_levels_cannot_be_traded():
    with pytest.raises(ValueError, match=r"evaluate\.cost=0\.0001 .* the targets are levels \(close\).*log_return"):
        Trading(cost=1e-4).check(("close",), True)
    Trading(cost=1e-4).check(("log_return(close)",), False)
    Trading().check(("close",), True)
