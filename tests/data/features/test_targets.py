import numpy as np
import polars as pl
import pytest

from statewise.data.features.targets import needed_columns, select
from statewise.data.tables.table import Table

HOUR = np.timedelta64(1, "h")


@pytest.fixture
def prices():
    close = np.exp(np.random.default_rng(0).normal(size=40).cumsum() / 10)
    frame = pl.DataFrame(
        {
            "time": np.tile(np.datetime64("2024-01-01", "ns") + np.arange(20) * HOUR, 2),
            "symbol": ["a"] * 20 + ["b"] * 20,
            "close": close,
            "volume": np.arange(40.0),
        }
    )
    return Table.of(frame, "time", "symbol", ["close", "volume"])


def test_names_alone_leave_the_table_as_it_is(prices):
    every = select(prices, None, None)
    assert every.table is prices
    assert every.features == every.targets == ("close", "volume")
    assert (every.targets_are_levels, every.reach) == (True, 0)


def test_a_target_over_several_rows_is_the_return_after_the_last_input(prices):
    source = select(prices, ["log_return(close, 5)"], ["log_return(close, 5)"])

    assert (source.features, source.targets) == (("log_return(close, 5)",), ("next log_return(close, 5)",))
    assert (source.reach, source.targets_are_levels) == (4, False)
    past, following = (source.table.read(name).reshape(2, 20) for name in (*source.features, *source.targets))
    close = prices.read("close").reshape(2, 20)
    np.testing.assert_allclose(past[:, 5:], np.log(close[:, 5:] / close[:, :-5]))
    # At target row t + 1 stands the return from row t to row t + 5.
    np.testing.assert_allclose(following[:, 1:16], np.log(close[:, 5:] / close[:, :-5]))
    assert np.isnan(following[:, 16:]).all()
    assert np.isnan(following[:, 0]).all()


def test_over_one_row_feature_and_target_are_one_column(prices):
    source = select(prices, ["volume", "log_return(close)"], ["log_return(close, 1)"])

    assert source.targets == ("log_return(close)",) == source.features[1:]
    assert source.table.columns == ("volume", "log_return(close)")
    assert (source.reach, source.targets_are_levels) == (0, False)


def test_volatility_over_the_next_rows_is_a_level(prices):
    source = select(prices, None, ["std(log_return(close), 3)"])

    assert (source.targets, source.reach, source.targets_are_levels) == (("next std(log_return(close), 3)",), 2, True)
    returns = np.diff(np.log(prices.read("close")[:20]))
    assert source.table.read(source.targets[0])[6] == pytest.approx(np.std(returns[5:8], ddof=1))


def test_a_target_that_touches_a_missing_price_has_no_value():
    close = np.arange(1.0, 21.0)
    close[10] = np.nan
    of = Table.of(pl.DataFrame({"close": close}), None, None, ["close"])
    values = select(of, ["close"], ["difference(close, 3)"]).table.read("next difference(close, 3)")
    # At row r: close[r + 2] - close[r - 1].
    assert np.flatnonzero(np.isnan(values)).tolist() == [0, 8, 11, 18, 19]


@pytest.mark.parametrize(
    ("features", "targets", "message"),
    [
        (None, ["mean(close, 5)"], "data.targets: mean(close, 5) cannot be predicted: a target is a column, or log_return, "),
        (None, ["hour()"], "data.targets: hour().sin cannot be predicted"),
        (["close", "hour()"], None, "data.targets is not set, so that the features are predicted, too: hour().sin cannot"),
        (None, ["close", "log_return(close)"], "data.targets mixes changes (log_return(close)) and levels (close)"),
        (
            None,
            ["log_return(clsoe)"],
            "data.targets: 'log_return(clsoe)': there is no numeric column 'clsoe'; did you mean close?",
        ),
        (None, ["log_return(close, 19)"], "next log_return(close, 19) needs 38 rows for its first value"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_one_line(prices, features, targets, message):
    with pytest.raises(ValueError, match=r"^data\.") as raised:
        select(prices, features, targets)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_is_asked_for_the_columns_under_the_expressions():
    assert needed_columns(["zscore(volume, 9)", "hour()"], ["log_return(close)"], ["close", "volume"]) == ["volume", "close"]
    assert needed_columns(["volume"], None, ["close", "volume"]) == ["volume"]
