"""Where metrics go: metrics.csv always; MLflow and W&B are asked for by name, and said to be missing in one line."""

import importlib.util
import math
import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import pytest


def metrics(folder: Path) -> pl.DataFrame:
    return pl.read_csv(folder / "metrics.csv", infer_schema_length=None)


@pytest.mark.parametrize("logger", ["csv", "tensorboard"])
def test_the_csv_is_always_written_and_events_where_they_are_asked_for(train: Any, logger: str) -> None:
    outcome = train(f"logger={logger}")
    assert outcome.code == 0
    assert {"train/loss", "val/mse", "test/mse"} <= set(metrics(outcome.folder).columns)
    assert any(outcome.folder.glob("events.out.tfevents.*")) == (logger == "tensorboard")


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_logger_whose_package_is_missing_is_refused_in_one_line(
    train: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked, *rest: None if asked == name else found(asked, *rest))
    outcome = train(f"logger={name}")
    assert outcome.code == 2
    line = f"logger={name} needs a package that is not installed: pip install 'statewise[{name}]'"
    assert outcome.err.strip().splitlines() == [line]


def test_a_misspelt_setting_of_a_logger_is_refused(train: Any) -> None:
    outcome = train("logger=mlflow", "logger.mlflow.experimnt=x")
    assert outcome.code == 2
    assert "there is no configuration key 'logger.mlflow.experimnt'; did you mean logger.mlflow.experiment" in outcome.err


others = pytest.mark.filterwarnings("ignore")  # of packages that are not ours


@others
@pytest.mark.slow
def test_mlflow_keeps_good_and_diverged_runs_in_one_store_with_all_digits(train: Any, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="pip install 'statewise[mlflow]'")
    store = tmp_path / "outputs" / "runs.db"
    choice = ("logger=mlflow", f"logger.mlflow.store={store}", "logger.mlflow.experiment=trial")
    good, diverged = train(*choice), train(*choice, "optimizer.lr=1e9")
    assert (good.code, diverged.code) == (0, 1)
    with sqlite3.connect(store) as database:
        runs = dict(database.execute("select run_uuid, status from runs"))
        (experiment,) = {name for (name,) in database.execute("select name from experiments where name != 'Default'")}
        tested = list(database.execute("select value, run_uuid from metrics where key = 'test/mse'"))
        settings = dict(database.execute("select run_uuid, value from params where key = 'optimizer.lr'"))
    database.close()
    assert experiment == "trial"
    assert sorted(runs.values()) == ["FAILED", "FINISHED"]
    ((mse, run),) = tested
    assert runs[run] == "FINISHED"
    assert mse == metrics(good.folder)["test/mse"].drop_nulls()[0]  # float64 in both
    assert sorted(map(float, settings.values()))[1] == 1e9
    assert not (tmp_path / "mlruns").exists()


@others
@pytest.mark.slow
def test_wandb_writes_an_offline_run_into_each_run_folder(train: Any) -> None:
    pytest.importorskip("wandb", reason="pip install 'statewise[wandb]'")
    for outcome in (train("logger=wandb"), train("logger=wandb", "seed=1")):
        assert outcome.code == 0
        (run,) = outcome.folder.glob("wandb/offline-run-*/run-*.wandb")
        content = run.read_bytes()
        mse = metrics(outcome.folder)["test/mse"].drop_nulls()[0]
        assert math.isfinite(mse)
        assert b"test/mse" in content
        assert repr(mse).encode() in content  # float64
        assert b"optimizer.lr" in content
