import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.datasets import File
from statewise.data.generators.market import ORDER, bar_features, market_bars, signal_weights, write_bars
from statewise.data.tables.table import read_table


def log_returns(frame: pl.DataFrame) -> np.ndarray:
    return bar_features(frame)["log_return"].to_numpy()


@pytest.fixture(scope="module")
def bars():
    return market_bars(seed=0, ic=0.1, bars=20_000)


@pytest.mark.parametrize("ic", [0.05, 0.1, 0.5])
def test_the_best_forecast_has_the_planted_correlation_with_the_next_return(ic):
    planted = market_bars(seed=1, ic=ic)
    known = ~np.isnan(planted.expected_return)
    returns, forecast = log_returns(planted.frame)[known], planted.expected_return[known]
    assert len(planted.frame) == 400_000
    # The standard error of a correlation, raised by what the changing volatility costs.
    assert np.corrcoef(returns, forecast)[0, 1] == pytest.approx(ic, abs=3 * 1.1 / np.sqrt(known.sum()))
    # Unbiased in scale, too: a regression of the return on its forecast has the slope 1.
    slope = returns @ forecast / (forecast @ forecast)
    assert slope == pytest.approx(1, abs=3 * 1.1 / (ic * np.sqrt(known.sum())))


@given(st.floats(0, 0.99))
@settings(max_examples=40, deadline=None)
def test_the_weights_explain_exactly_the_square_of_the_coefficient(ic):
    phi = signal_weights(ic)
    # Yule-Walker by brute force: the impulse response of the autoregression sums to its variance.
    response = np.zeros(20_000)
    response[0] = 1
    for t in range(1, len(response)):
        recent = response[max(0, t - ORDER) : t][::-1]
        response[t] = phi[: len(recent)] @ recent
        if t > 50 and np.abs(response[t - 20 : t]).max() < 1e-9:
            break
    assert 1 - 1 / np.sum(response**2) == pytest.approx(ic**2, abs=1e-6)


def test_the_forecast_is_linear_in_the_last_five_returns_and_in_nothing_else(bars):
    returns, weights = log_returns(bars.frame), signal_weights(0.1)
    for start in (0, 20_000):
        rows = slice(start, start + 20_000)
        r, forecast = returns[rows], bars.expected_return[rows]
        assert np.isnan(forecast[: ORDER + 1]).all()
        lags = np.stack([r[ORDER + 1 - lag : len(r) - lag] for lag in range(1, ORDER + 1)], axis=1)
        np.testing.assert_allclose(lags @ weights, forecast[ORDER + 1 :], atol=1e-13)


def test_pure_noise_has_a_forecast_of_zero():
    noise = market_bars(seed=0, ic=0.0, bars=2_000)
    known = noise.expected_return[~np.isnan(noise.expected_return)]
    assert len(known) == 2 * (2_000 - ORDER - 1)
    assert (known == 0).all()


def test_bars_are_possible(bars):
    frame = bars.frame
    top, bottom = pl.max_horizontal("open", "close"), pl.min_horizontal("open", "close")
    assert frame.select(((pl.col("high") >= top) & (pl.col("low") <= bottom) & (pl.col("low") > 0)).all()).item()
    assert frame.select((pl.col("volume") >= 1).all()).item()
    assert frame.null_count().row(0) == (0,) * frame.width


def test_sessions_have_390_minutes_on_weekdays_and_nights_between(bars):
    times = bars.frame.filter(pl.col("symbol") == "SYN00")["ts"]
    days = times.dt.date()
    per_day = days.value_counts(sort=False).sort("ts")["count"]
    assert set(per_day[:-1]) == {390}
    assert set(days.dt.weekday()) == {1, 2, 3, 4, 5}
    assert set(times.dt.time().filter(days.is_first_distinct()).dt.to_string("%H:%M")) == {"14:30"}
    gaps = times.diff().drop_nulls().dt.total_minutes()
    assert set(gaps) == {1, 1440 - 389, 3 * 1440 - 389}


def test_prices_jump_overnight_and_only_then(bars):
    frame = bars.frame.filter(pl.col("symbol") == "SYN00")
    jump = (frame["open"] / frame["close"].shift(1)).log().abs()[1:]
    night = frame["ts"].diff().dt.total_minutes()[1:] > 1
    assert jump.filter(~night).max() < 1e-12
    assert jump.filter(night).min() > 0


def test_range_and_volume_follow_the_volatility_and_not_the_sign(bars):
    features = bar_features(bars.frame).drop_nans()
    change = features["log_return"].to_numpy()
    for name in ("log_range", "log_volume"):
        values = features[name].to_numpy()
        assert np.corrcoef(values, np.abs(change))[0, 1] > 0.1
        assert abs(np.corrcoef(values, np.sign(change))[0, 1]) < 4 / np.sqrt(len(change))
    volume = features["log_volume"].to_numpy()
    assert np.corrcoef(volume[1:], volume[:-1])[0, 1] > 0.5


def test_instruments_are_independent_and_differ_in_volatility(bars):
    returns = log_returns(bars.frame).reshape(2, -1)[:, 1:]
    assert abs(np.corrcoef(returns)[0, 1]) < 4 / np.sqrt(returns.shape[1])
    assert returns[1].std() / returns[0].std() == pytest.approx(1.2, rel=0.05)
    assert returns[0].std() == pytest.approx(5e-4, rel=0.05)


def test_features_do_not_cross_from_one_symbol_to_the_next(bars):
    features = bar_features(bars.frame)
    assert np.flatnonzero(np.isnan(features["log_return"].to_numpy())).tolist() == [0, 20_000]
    by_hand = np.log(bars.frame["close"][5] / bars.frame["close"][4])
    assert features["log_return"][5] == pytest.approx(by_hand, abs=1e-15)
    assert features["log_range"].min() > 0


PRICES = ("open", "high", "low", "close")
KINDS = ["bars.csv", "bars.parquet", "bars.dbn", "bars.dbn.zst"]


@pytest.mark.parametrize("name", KINDS)
def test_written_bars_read_back_with_prices_rounded_to_the_ninth_digit(bars, tmp_path, name):
    if "dbn" in name:
        pytest.importorskip("databento_dbn")
    write_bars(bars.frame, tmp_path / name)
    table = read_table(name, folder=tmp_path)
    assert (table.time, table.series) == ("ts_event" if "dbn" in name else "ts", "symbol")
    assert table.columns == (*PRICES, "volume")
    rounded = {price: [round(value, 9) for value in bars.frame[price].to_list()] for price in PRICES}
    wanted = bars.frame.with_columns(pl.col("volume").cast(pl.Float64), **{k: pl.Series(v) for k, v in rounded.items()})
    assert table.frame.rename({table.time: "ts"}).equals(wanted)


def test_bars_make_the_same_tensors_from_every_kind_of_file(bars, tmp_path):
    pytest.importorskip("databento_dbn")
    found = []
    for name in KINDS:
        write_bars(bars.frame, tmp_path / name)
        module = File(path=str(tmp_path / name), window=8, horizon=1)
        module.setup("fit")
        found.append(module.prepared.scaled)
    assert found[0].shape == (40_000, 5)
    assert all(torch.equal(scaled, found[0]) for scaled in found)


def test_the_same_seed_gives_the_same_bars():
    first, again = market_bars(seed=5, ic=0.1, bars=500), market_bars(seed=5, ic=0.1, bars=500)
    assert first.frame.equals(again.frame)
    assert not first.frame.equals(market_bars(seed=6, ic=0.1, bars=500).frame)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ic": 1.0}, "ic must be at least 0 and below 1, got 1.0"),
        ({"ic": -0.1}, "ic must be at least 0"),
        ({"bars": 0}, "bars must be at least 1, got 0"),
        ({"instruments": 0}, "instruments must be at least 1, got 0"),
        ({"volatility": 0.0}, "volatility must be above 0"),
    ],
)
def test_impossible_bars_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        market_bars(**{"seed": 0, "ic": 0.1, "bars": 10, **wrong})


def test_bars_are_written_to_known_kinds_of_files_only(bars, tmp_path):
    with pytest.raises(ValueError, match=r"\.csv, \.parquet, \.dbn or \.dbn\.zst file, got bars\.txt"):
        write_bars(bars.frame, tmp_path / "bars.txt")
