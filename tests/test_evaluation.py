"""The figures of whole runs: what returns have, what levels have, and what is refused before anything is trained."""

import numpy as np
import polars as pl
import pytest

from statewise.summary import RETURN_FIGURES

FILE = [
    "data=file",
    "data.path=bars.parquet",
    "data.window=8",
    "data.cache=off",
    "model.d_model=4",
    "model.d_state=4",
    "model.n_layers=1",
    "trainer.max_epochs=1",
    "scheduler.warmup_steps=2",
    "logger=csv",
]


@pytest.fixture
def bars(tmp_path):
    rng = np.random.default_rng(0)
    rows = 600
    one = {
        "time": np.datetime64("2024-01-01", "ns") + np.arange(rows) * np.timedelta64(1, "h"),
        "close": 100 * np.exp(0.01 * rng.normal(size=rows).cumsum()),
        "volume": rng.random(rows),
    }
    pl.DataFrame(one).write_parquet(tmp_path / "bars.parquet")


@pytest.mark.usefixtures("bars")
def test_a_run_on_returns_has_all_their_figures(train):
    run = train(
        *FILE,
        "data.features=['log_return(close)','zscore(volume, 6)']",
        "data.targets=['log_return(close)','log_return(close, 5)']",
        "evaluate.cost=1e-4",
        "evaluate.periods_per_year=8760",
        "report=false",
        tiny=False,
    )
    assert run.code == 0, run.err
    summary = run.summary
    test = summary["test"]
    assert set(test["per_target"]) == set(test["trading"]) == {"log_return(close)", "next log_return(close, 5)"}
    assert summary["baselines"]["zero"] is not None
    for key in RETURN_FIGURES:
        assert np.isfinite(test[key]["value"])
        assert test[key]["se"] > 0
    assert "r2_of_levels" not in test
    for entries in test["returns_per_target"].values():
        assert [entry["step"] for entry in entries] == [1]
    # What a model saves against zero, as the table says it of errors.
    errors = pl.read_parquet(run.folder / "predictions.parquet")
    own = errors.filter(pl.col("variable") == "log_return(close)")
    by_hand = 1 - ((own["target"] - own["prediction"]) ** 2).sum() / (own["target"] ** 2).sum()
    assert test["returns_per_target"]["log_return(close)"][0]["r2_against_zero"]["value"] == pytest.approx(by_hand)
    single, five = test["trading"].values()
    assert 0 <= five["turnover"] <= 2 / 5
    assert single["mean_return_after_cost"] == pytest.approx(single["mean_return"] - 1e-4 * single["turnover"])
    assert single["sharpe_per_year"] == pytest.approx(single["sharpe"] * np.sqrt(8760))
    assert "trading, per row" in run.out
    assert "rank correlation" in run.out


@pytest.mark.usefixtures("bars")
def test_a_level_has_no_r2_without_the_one_against_the_last_value(train):
    run = train(*FILE, "data.features=[close,volume]", "report=false", tiny=False)
    assert run.code == 0, run.err
    test = run.summary["test"]
    assert set(test["r2_of_levels"]) == {"close", "volume"}
    errors = pl.read_parquet(run.folder / "predictions.parquet").filter(pl.col("variable") == "close")
    error = ((errors["target"] - errors["prediction"]) ** 2).mean()
    assert test["r2_of_levels"]["close"]["r2"] == pytest.approx(1 - error / errors["target"].var(ddof=0))
    assert not set(RETURN_FIGURES) & set(test)
    assert "R2 against last value" in run.out


@pytest.mark.usefixtures("bars")
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluate.cost=1e-4", "evaluate.cost=0.0001 asks for positions that earn returns, but the targets are levels (close)"),
        ("evaluate.position=both", "evaluate.position must be one of sign, proportional, got 'both'"),
        ("evaluate.costs=1", "evaluate.costs"),
        ("data.targets=['log_retrun(close)']", "data.targets: 'log_retrun(close)': there is no function 'log_retrun'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_training(train, override, message):
    run = train(*FILE, "data.features=[close]", override, tiny=False)
    assert run.code == 2
    assert message in run.out + run.err
