"""Every function of an expression: its values, its first rows, its causality, and what it does not take."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.features.derive import derive
from statewise.data.features.functions import FUNCTIONS
from statewise.data.tables.table import Table
from statewise.data.tables.understood import Understood

MINUTE = np.timedelta64(1, "m")


def table(*series, start="2024-03-29T00:00", step=37 * MINUTE, **columns):
    """Series one below the other, each as long as its values; `series` are those of the column x."""
    values = [np.asarray(one, dtype=float) for one in series]
    frame = pl.DataFrame(
        {
            "time": np.concatenate([np.datetime64(start, "ns") + np.arange(len(one)) * step for one in values]),
            "symbol": np.repeat([f"s{k}" for k in range(len(values))], [len(one) for one in values]),
            "x": np.concatenate(values),
            **columns,
        }
    )
    return Table.of(frame, "time", "symbol", ["x", *columns])


def every_expression(rows):
    """One of each function, plain and inside one another, found by the registry: new functions are tested, too."""
    plain = []
    for function in FUNCTIONS.values():
        if function.of_time:
            plain.append(f"{function.name}()")
        else:
            plain.append(f"{function.name}(x, {max(rows, function.least)})" if function.least else f"{function.name}(x)")
    nested = [
        f"{name}(log_return(x), {rows + 1})" for name, function in FUNCTIONS.items() if function.least and name != "log_return"
    ]
    return [*plain, *nested]


def read(of, names, **options):
    derived = derive(of, names, **options)
    return {name: derived.read(name) for name in derived.columns}


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_no_function_looks_ahead_or_into_another_series(data):
    rows = data.draw(st.integers(2, 6))
    lengths = data.draw(st.lists(st.integers(10, 30), min_size=2, max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    series = [np.exp(rng.normal(size=length)) * 10.0 ** rng.integers(-3, 6) for length in lengths]
    for one in series:
        one[rng.random(len(one)) < 0.1] = np.nan
    changed = data.draw(st.integers(0, len(series) - 1))
    after = data.draw(st.integers(0, lengths[changed] - 1))
    other = [one.copy() for one in series]
    later = other[changed][after + 1 :]
    other[changed][after + 1 :] = np.where(rng.random(len(later)) < 0.2, np.nan, np.exp(5 * rng.normal(size=len(later))))

    names = every_expression(rows)
    before, behind = read(table(*series), names), read(table(*other), names)
    # The same rows without those that follow: nothing depends on how many there are.
    shorter = [one[: after + 1] if k == changed else one for k, one in enumerate(series)]
    short = read(table(*shorter), names) if after >= 2 * rows else None

    offset = sum(lengths[:changed])
    kept = np.ones(sum(lengths), dtype=bool)
    kept[offset + after + 1 : offset + lengths[changed]] = False
    for name in before:
        assert before[name][kept].tobytes() == behind[name][kept].tobytes(), name
        assert short is None or before[name][kept].tobytes() == short[name].tobytes(), name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_first_rows_of_every_series_have_no_value_and_all_others_have_one(name):
    rng = np.random.default_rng(0)
    of = table(*np.exp(rng.normal(size=(2, 20))))
    for expression in every_expression(4):
        if expression.startswith(f"{name}("):
            step, nested = FUNCTIONS[name], "log_return" in expression and name != "log_return"
            warm_up = step.warm_up(max(4, step.least)) + 2 * nested if step.least else 0
            for values in read(of, [expression]).values():
                gone = np.isnan(values.reshape(2, 20))
                assert gone[:, :warm_up].all(), expression
                assert not gone[:, warm_up:].any(), expression


def test_a_row_that_needs_a_missing_value_has_none():
    x = np.exp(np.random.default_rng(0).normal(size=20))
    x[9] = np.nan
    got = read(table(x), ["log_return(x, 2)", "mean(x, 3)", "log(x)"])

    assert np.flatnonzero(np.isnan(got["log_return(x, 2)"])).tolist() == [0, 1, 9, 11]
    assert np.flatnonzero(np.isnan(got["mean(x, 3)"])).tolist() == [0, 1, 9, 10, 11]
    assert np.flatnonzero(np.isnan(got["log(x)"])).tolist() == [9]


@given(
    st.integers(2, 12), st.floats(-6, 6), st.floats(-6, 3), st.booleans(), st.integers(0, 10_000)
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_rolling_windows_are_those_of_their_definition(rows, level, noise, odd, seed):
    rng = np.random.default_rng(seed)
    x = 10.0**level + 10.0**noise * rng.normal(size=80)
    x[30:50] = x[30]
    if odd:
        x[5] *= 1e9
    got = read(table(x), [f"{name}(x, {rows})" for name in ("mean", "std", "zscore")])
    for row in range(rows - 1, len(x)):
        window = x[row - rows + 1 : row + 1]
        deviation = window.std(ddof=1)
        mean, std, zscore = (got[f"{name}(x, {rows})"][row] for name in ("mean", "std", "zscore"))
        scale = np.abs(window).max()
        assert mean == pytest.approx(window.mean(), abs=1e-12 * scale)
        if np.ptp(window) == 0:
            assert (std, zscore) == (0.0, 0.0)
        else:
            assert std == pytest.approx(deviation, rel=1e-9, abs=1e-15 * scale)
            assert zscore == pytest.approx((x[row] - window.mean()) / deviation, rel=1e-6, abs=1e-6 + 1e-15 * scale / deviation)


def test_a_small_move_on_a_large_price_keeps_its_digits():
    rng = np.random.default_rng(0)
    x = 1e6 + 1e-4 * rng.normal(size=500).round(3)
    got = read(table(x), ["log_return(x)", "std(x, 60)"])

    exact = np.diff(x.astype(np.longdouble)) / x[:-1]  # a logarithm's second term is 1e-20 here
    np.testing.assert_allclose(got["log_return(x)"][1:], exact.astype(float), rtol=1e-9, atol=0)
    windows = np.lib.stride_tricks.sliding_window_view(x - 1e6, 60)
    np.testing.assert_allclose(got["std(x, 60)"][59:], windows.std(axis=1, ddof=1), rtol=1e-9)


def test_returns_differences_and_lags_are_row_by_row_whatever_time_lies_between():
    x = np.array([1.0, 2.0, 2.0, 1e-3, 5.0, 4.0])
    gap = np.datetime64("2024-01-01", "ns") + np.array([0, 1, 2, 9000, 9001, 9002]) * MINUTE
    of = Table.of(pl.DataFrame({"time": gap, "x": x}), "time", None, ["x"])
    got = read(of, ["log_return(x)", "log_return(x, 2)", "difference(x)", "lag(x, 2)", "log(x)"])

    np.testing.assert_allclose(got["log_return(x)"][1:], np.diff(np.log(x)), rtol=1e-14)
    np.testing.assert_allclose(got["log_return(x, 2)"][2:], np.log(x[2:] / x[:-2]), rtol=1e-14)
    assert got["log_return(x)"][2] == 0.0
    assert got["difference(x)"][1:].tolist() == np.diff(x).tolist()
    assert got["lag(x, 2)"][2:].tolist() == x[:-2].tolist()
    np.testing.assert_allclose(got["log(x)"], np.log(x))


def test_time_of_day_and_week_follow_the_local_clock_through_a_change_of_it():
    # On 2024-03-31 Berlin goes from 02:00 to 03:00: 00:30 and 01:30 UTC are 01:30 and 03:30.
    of = table(np.ones(4), start="2024-03-31T00:30", step=60 * MINUTE)
    got = read(of, ["hour()", "weekday()"], timezone="Europe/Berlin")

    hours = np.array([1.5, 3.5, 4.5, 5.5])
    np.testing.assert_allclose(got["hour().sin"], np.sin(hours * np.pi / 12), atol=1e-15)
    np.testing.assert_allclose(got["hour().cos"], np.cos(hours * np.pi / 12), atol=1e-15)
    np.testing.assert_allclose(got["weekday().sin"], np.sin((6 + hours / 24) * 2 * np.pi / 7), atol=1e-14)  # a Sunday
    utc = read(of, ["hour()"])
    np.testing.assert_allclose(utc["hour().sin"], np.sin((hours - [1, 2, 2, 2]) * np.pi / 12), atol=1e-15)


def test_times_before_1970_stand_on_the_same_circle():
    days = table(np.ones(14), start="1969-12-24T18:00", step=1440 * MINUTE)
    got = read(days, ["hour()", "weekday()"])

    np.testing.assert_allclose(got["hour().sin"], -1.0)
    np.testing.assert_allclose(got["weekday().cos"][:7], got["weekday().cos"][7:], atol=1e-14)


def test_a_local_clock_that_nobody_has_named_is_refused():
    naive = Understood(("text",), (), zone="taken as UTC", naive=True)
    of = replace(table(np.ones(5)), understood=naive)
    with pytest.raises(
        ValueError, match=r"set data\.timezone .* because hour\(\)\.sin in data\.features reads the local clock"
    ):
        derive(of, ["hour()"])
    derive(of, ["hour()"], timezone="UTC")
    derive(replace(of, understood=replace(naive, naive=False)), ["hour()"])
    derive(replace(table(np.ones(5), step=1440 * MINUTE), understood=naive), ["weekday()"])


def test_hours_without_times_are_refused():
    of = Table.of(pl.DataFrame({"x": [1.0, 2.0]}), None, None, ["x"])
    with pytest.raises(ValueError, match=r"hour\(\)\.sin needs a time column.*data\.time"):
        derive(of, ["hour()"])


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("log(x)", r"^log\(x\) needs values above 0, but x is -2 at 2024-03-29 00:37:00 of series s1 \(and in 1 more rows\)"),
        ("log_return(x, 2)", r"log_return\(x, 2\) needs values above 0, but x is -2 .*use difference\(x\)$"),
        ("log(difference(x))", r"log\(difference\(x\)\) needs values above 0, but difference\(x\) is 0 at 2024-03-29 00:37:00"),
    ],
)
def test_a_logarithm_of_nothing_is_refused_with_its_place_and_value(expression, message):
    with pytest.raises(ValueError, match=message):
        read(table([1.0, 1.0, 1.0, 2.0], [1.0, -2.0, 0.0, 3.0]), [expression])


def test_an_infinite_value_is_refused_and_never_becomes_nothing():
    with pytest.raises(ValueError, match="column 'x' is infinite at 2024-03-29 00:37:00"):
        read(table([1.0, np.inf, 1.0], [1.0, 2.0, 3.0]), ["difference(x)"])
    with pytest.raises(ValueError, match=r"difference\(x\) is infinite at"):
        read(table([1e308, -1e308, 1.0], [1.0, 2.0, 3.0]), ["zscore(difference(x), 2)"])


def test_a_window_longer_than_every_series_is_refused():
    of = table(np.ones(5), np.ones(8))
    with pytest.raises(ValueError, match=r"mean\(x, 9\) needs 9 rows for its first value, the longest series has 8"):
        derive(of, ["mean(x, 9)"])
    assert np.isnan(read(of, ["mean(x, 6)"])["mean(x, 6)"][:5]).all()


def test_only_the_column_that_is_read_is_computed():
    asked = []

    class Counting:
        names = ("x", "y")

        def read(self, name):
            asked.append(name)
            return np.arange(1.0, 6.0)

    derived = derive(Table(table(np.ones(5)).rows, Counting()), ["log(x)", "difference(y)", "y"])
    assert derived.columns == ("log(x)", "difference(y)", "y")
    assert asked == []
    derived.read("difference(y)")
    assert asked == ["y"]
    assert derived.read("y").dtype == derived.read("log(x)").dtype == np.float64
