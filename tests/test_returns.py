"""Figures of returns against independent implementations, and their standard errors against simulated spreads."""

import numpy as np
import pytest
import scipy.signal
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.returns import directional_accuracy, information_coefficient, r2_against_zero, rank_correlation
from statewise.standard_errors import time_blocks

FIGURES = (information_coefficient, rank_correlation, directional_accuracy, r2_against_zero)


def test_the_information_coefficient_is_the_pooled_correlation_of_observed_entries():
    rng = np.random.default_rng(0)
    target = rng.normal(size=(500, 1, 2))
    prediction = 0.5 * target + rng.normal(size=target.shape)
    observed = rng.random(target.shape) < 0.8
    result = information_coefficient(torch.as_tensor(prediction), target, observed)
    assert result["value"] == pytest.approx(np.corrcoef(prediction[observed], target[observed])[0, 1], rel=1e-12)
    assert result["se"] == pytest.approx(1 / np.sqrt(observed.sum() - 1))
    scaled = information_coefficient(prediction * 1e-170, target * 1e170, observed)
    assert scaled["value"] == pytest.approx(result["value"], rel=1e-12)


def test_the_standard_error_is_the_spread_of_the_coefficient_of_unrelated_series():
    rng = np.random.default_rng(1)
    seen = np.ones((50, 1), dtype=bool)
    draws = [information_coefficient(*rng.normal(size=(2, 50, 1)), seen) for _ in range(2000)]
    assert np.std([draw["value"] for draw in draws]) == pytest.approx(draws[0]["se"], rel=0.06)
    coins = [directional_accuracy(*rng.normal(size=(2, 50, 1)), seen) for _ in range(2000)]
    assert np.std([coin["value"] for coin in coins]) == pytest.approx(coins[0]["se"], rel=0.06)


def test_a_constant_forecast_has_no_information_coefficient():
    seen = np.ones((5, 1), dtype=bool)
    assert np.isnan(information_coefficient(np.zeros((5, 1)), np.arange(5.0)[:, None], seen)["value"])
    assert np.isnan(information_coefficient(np.zeros((5, 1)), np.zeros((5, 1)), ~seen)["se"])


def test_directional_accuracy_counts_signs_of_outcomes_that_are_not_zero():
    target = np.array([[1.0], [-1.0], [0.0], [2.0], [5.0]])
    prediction = np.array([[0.1], [0.1], [1.0], [0.0], [-9.0]])
    observed = np.array([[True], [True], [True], [True], [False]])
    result = directional_accuracy(prediction, target, observed)
    assert result["value"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert result["se"] == pytest.approx(0.5 / np.sqrt(3))
    assert np.isnan(directional_accuracy(prediction, np.zeros_like(target), observed)["value"])


@pytest.mark.parametrize("figure", FIGURES)
def test_shapes_that_differ_are_refused_not_broadcast(figure):
    with pytest.raises(ValueError, match=r"must have one shape, got \[4, 1\], \[4\], \[4\]"):
        figure(np.zeros((4, 1)), np.zeros(4), np.ones(4, dtype=bool))
    with pytest.raises(ValueError, match="block must be one number for each of the 4 windows"):
        figure(*np.zeros((2, 4)), np.ones(4, dtype=bool), np.zeros(3, dtype=np.int64))


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(-1e3, 1e3)), min_size=3, max_size=40))
@settings(max_examples=50, deadline=None)
def test_correlations_are_those_of_scipy_also_where_values_are_equal(pairs):
    p, t = np.array(pairs, dtype=float).T
    seen = np.ones(len(p), dtype=bool)
    # Values that vary by their rounding only have no correlation to compare.
    if np.ptp(p) > 0 and np.ptp(t) > 1e-6:
        assert information_coefficient(p, t, seen)["value"] == pytest.approx(scipy.stats.pearsonr(p, t).statistic, abs=1e-9)
        assert rank_correlation(p, t, seen)["value"] == pytest.approx(scipy.stats.spearmanr(p, t).statistic, abs=1e-9)


def test_an_outlier_moves_the_correlation_and_hardly_that_of_ranks():
    rng = np.random.default_rng(0)
    p, seen = rng.normal(size=300), np.ones(300, dtype=bool)
    t = 0.5 * p + rng.normal(size=300)
    p[7], t[7] = 1e4, -1e4
    assert information_coefficient(p, t, seen)["value"] < -0.9
    assert rank_correlation(p, t, seen)["value"] > 0.3


def test_r2_against_zero_is_the_share_of_the_squares_that_is_saved():
    t = np.array([1.0, -2.0, 0.5, np.nan])
    seen = np.isfinite(t)
    assert r2_against_zero(np.zeros(4), t, seen)["value"] == 0.0
    assert r2_against_zero(t, t, seen)["value"] == 1.0
    assert r2_against_zero(-t, t, seen)["value"] == -3.0
    assert r2_against_zero(0.5 * t * 1e-170, t * 1e-170, seen)["value"] == pytest.approx(0.75)
    assert np.isnan(r2_against_zero(t, np.zeros(4), seen)["value"])


@pytest.mark.parametrize("figure", FIGURES)
def test_the_standard_error_of_overlapping_returns_is_the_spread_of_the_figure(figure):
    """Five-row returns of white noise, forecast by something persistent that knows nothing."""
    rng = np.random.default_rng(2)
    n, rows = 1500, 5
    block, seen = time_blocks(np.arange(n), shared=rows - 1), np.ones(n, dtype=bool)
    values, errors = [], []
    for _ in range(250):
        returns = np.convolve(rng.normal(size=n + rows), np.ones(rows), "valid")[:n]
        forecast = 0.1 * scipy.signal.lfilter([1.0], [1.0, -0.95], rng.normal(size=n + 100))[100:]
        found = figure(forecast, returns, seen, block)
        values.append(found["value"])
        errors.append(found["se"])
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)
    if figure is not r2_against_zero:
        assert figure(forecast, returns, seen)["se"] < 0.7 * np.std(values)  # as if they were independent


def test_series_that_move_together_count_as_fewer():
    rng = np.random.default_rng(3)
    moments, series = 300, 10
    clock = np.tile(np.arange(moments), series)
    block, seen = time_blocks(clock, shared=0), np.ones(len(clock), dtype=bool)
    values, errors = [], []
    for _ in range(200):
        forecast, market = (np.tile(rng.normal(size=moments), series) for _ in range(2))
        found = information_coefficient(forecast, market + 0.1 * rng.normal(size=len(clock)), seen, block)
        values.append(found["value"])
        errors.append(found["se"])
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)
    assert np.mean(errors) == pytest.approx(1 / np.sqrt(moments), rel=0.1)
