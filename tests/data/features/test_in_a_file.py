"""Expressions as keys of data=file: what reaches the windows, and what does not."""

import numpy as np
import polars as pl
import pytest

from statewise.data.datasets import File
from statewise.data.segments.gaps import Gap

FEATURES = ["log_return(close)", "zscore(volume, 6)", "hour()"]
TARGETS = ["log_return(close, 5)"]
BORDER = 5 + 136  # the first validation row, after five rows without a z-score


def bars(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    times = np.datetime64("2024-01-01", "ns") + np.arange(rows) * np.timedelta64(1, "h")
    close = 100 * np.exp(0.01 * rng.normal(size=rows).cumsum())
    return pl.DataFrame({"time": times, "close": close, "volume": rng.random(rows)})


def ready(folder, frame, features=FEATURES, targets=TARGETS, **options):
    frame.write_parquet(folder / "bars.parquet")
    given = {"path": "bars.parquet", "window": 8, "timezone": "UTC", "cache": "off", **options}
    module = File(folder=str(folder), features=features, targets=targets, **given)
    module.setup()
    return module


def test_a_target_with_a_horizon_is_the_return_after_the_last_input(tmp_path):
    frame = bars()
    module = ready(tmp_path, frame)

    assert module.feature_names == ("log_return(close)", "zscore(volume, 6)", "hour().sin", "hour().cos")
    assert module.target_names == ("next log_return(close, 5)",)
    assert module.target_inputs is None
    assert not module.targets_are_levels
    close, times = frame["close"].to_numpy(), frame["time"].to_numpy()
    # Of the 195 rows that are left.
    ends = {"train": BORDER, "val": 5 + 156, "test": 200}
    for split in ("train", "val", "test"):
        truth = module.to_original(split, module.last_step(split)[0].numpy())[:, 0, 0]
        last = np.searchsorted(times, module.target_positions(split)[1][:, 0]) - 1
        np.testing.assert_allclose(truth, np.log(close[last + 5] / close[last]), rtol=1e-9)
        assert last.max() + 5 == ends[split] - 1  # what a target is made of lies on its own side
    assert any("dropped 5 leading row(s)" in note for note in module.notes)


def test_over_one_row_the_target_is_an_input_and_has_a_last_value(tmp_path):
    module = ready(tmp_path, bars(), ["volume", "log_return(close)"], ["log_return(close)"])
    assert module.target_inputs == (1,)
    assert module.n_windows("test") == 40


def test_several_steps_ahead_each_predict_their_own_returns(tmp_path):
    frame = bars()
    module = ready(tmp_path, frame, horizon=3)
    close = frame["close"].to_numpy()
    truth = module.to_original("test", module.last_step("test")[0].numpy())[0, :, 0]
    np.testing.assert_allclose(truth, [np.log(close[160 + h + 5] / close[160 + h]) for h in range(3)], rtol=1e-9)
    assert module.n_windows("test") == 39 - 3 + 1 - 4


def test_training_knows_nothing_of_the_rows_after_it(tmp_path):
    before, after = bars(), bars()
    later = (pl.int_range(pl.len()) >= BORDER).alias("later")
    after = after.with_columns(
        pl.when(later).then(pl.col(name) * 3 + 1).otherwise(pl.col(name)) for name in ("close", "volume")
    )
    one, other = (ready(tmp_path, frame) for frame in (before, after))

    assert one.scaler.equals(other.scaler)
    for mine, theirs in zip(one.evaluation_batches("train"), other.evaluation_batches("train"), strict=True):
        for left, right in zip(mine, theirs, strict=True):
            assert left.numpy().tobytes() == right.numpy().tobytes()


def test_a_return_that_touches_a_missing_price_is_no_target(tmp_path):
    frame = bars().with_columns(pl.when(pl.int_range(pl.len()) == 180).then(None).otherwise("close").alias("close"))
    module = ready(tmp_path, frame, ["volume"], TARGETS)
    observed = module.last_step("test")[1].numpy()[:, 0, 0]
    rows = np.searchsorted(frame["time"].to_numpy(), module.target_positions("test")[1][:, 0])
    # Row r is made of the prices at r - 1 and r + 4.
    assert sorted(rows[~observed]) == [176, 181]


def test_a_column_called_like_an_expression_is_that_column(tmp_path):
    frame = bars().rename({"volume": "log_return(close)"})
    module = ready(tmp_path, frame, ["close", "log_return(close)"], ["close"])
    np.testing.assert_array_equal(module.prepared.source.table.read("log_return(close)"), frame["log_return(close)"])


@pytest.mark.parametrize(
    ("features", "targets", "message"),
    [
        (["log_return(clsoe)"], None, r"clsoe.*did you mean close\?"),
        (["log_retrun(close)"], None, r"^data\.features: .*no function 'log_retrun'; did you mean log_return\?"),
        (["close"], ["log_retrun(close)"], r"^data\.targets: .*no function 'log_retrun'"),
        (None, ["log_return(time)"], r"^data\.targets: .*no numeric column 'time'"),
        (["close", "hour()"], ["hour()"], r"^data\.targets: hour\(\)\.sin cannot be predicted"),
        (["lag(close)", "lag(close, 1)"], ["close"], r"data\.features names a column twice: lag\(close\), lag\(close\)"),
        (["difference(close, 200)"], None, r"difference\(close, 200\) needs \d+ rows .* the longest series has 200"),
    ],
)
def test_what_a_key_cannot_mean_ends_in_one_line(tmp_path, features, targets, message):
    with pytest.raises(ValueError, match=message) as raised:
        ready(tmp_path, bars(), features, targets)
    assert "\n" not in str(raised.value)


def test_hours_of_times_without_a_zone_ask_for_one(tmp_path):
    bars().write_csv(tmp_path / "bars.csv", datetime_format="%Y-%m-%d %H:%M:%S")
    with pytest.raises(ValueError, match=r"data\.timezone.*hour\(\)\.sin"):
        ready(tmp_path, bars(), path="bars.csv", timezone=None)


def test_absent_rows_that_are_inserted_are_rows_of_a_return(tmp_path):
    frame = bars().filter(pl.int_range(pl.len()) != 100)
    module = ready(tmp_path, frame, ["log_return(close)"], ["log_return(close)"], gap=Gap(policy="forward_fill"))
    values = module.prepared.source.table.read("log_return(close)")
    assert values[100] == 0.0
    assert values[101] == pytest.approx(np.log(bars()["close"][101] / bars()["close"][99]))
    scaled = module.prepared.scaler.inverse(module.prepared.scaled.numpy().astype(np.float64), np.zeros(len(values), dtype=int))
    assert scaled[100, 0] == pytest.approx(0.0, abs=1e-15)
