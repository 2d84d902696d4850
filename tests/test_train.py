"""A whole run from the command line: what it leaves in its folder, how it ends, and that it can be repeated."""

import csv
import json

import polars as pl
import pytest
import torch
import yaml

from statewise import checkpoints
from statewise.callbacks.checkpoints import BestAndLast


def test_a_run_leaves_everything_needed_to_reload_evaluate_resume_and_explain_it(train):
    outcome = train("logger=tensorboard", "report=true")
    assert outcome.code == 0, outcome.err
    left = {str(path.relative_to(outcome.folder)) for path in outcome.folder.rglob("*") if path.is_file()}
    assert {
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
        "train.log",
        "metrics.csv",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "predictions.parquet",
        "health.json",
        "report.html",
        "summary.json",
    } <= left
    assert any("events.out.tfevents" in name for name in left)
    summary = outcome.summary
    assert summary["status"] == "ok"
    assert summary["health"] == {"verdict": "healthy", "findings": []}
    assert set(summary) >= {"model", "data", "test", "baselines", "floor", "identification", "parameters", "steps"}
    assert set(summary["seconds"]) == {"setup", "fit", "test"}
    assert summary["steps"] == 10
    assert summary["floor"]["mse"] <= min(summary["test"]["mse"], summary["baselines"]["linear"]["mse"])
    predictions = pl.read_parquet(outcome.folder / "predictions.parquet")
    errors = (predictions["prediction"] - predictions["target"]) ** 2
    per_target = predictions.with_columns(errors.alias("error")).group_by("variable").agg(pl.col("error").mean())
    assert per_target["error"].mean() == pytest.approx(summary["test"]["mse_original_units"], rel=1e-12)


def test_the_checkpoint_loads_with_plain_torch_and_holds_the_configuration(train):
    outcome = train()
    checkpoint = torch.load(outcome.folder / "checkpoints" / "best.ckpt")  # weights_only is the default
    assert checkpoint["statewise"]["config"]["model"]["d_state"] == 4
    assert checkpoint["statewise"]["schema_version"] == checkpoints.SCHEMA_VERSION
    assert yaml.safe_load((outcome.folder / ".hydra" / "config.yaml").read_text()) == checkpoint["statewise"]["config"]


def logged(outcome, name):
    with (outcome.folder / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def test_the_best_checkpoint_is_the_one_that_is_tested(train):
    outcome = train("optimizer.lr=0.5", "trainer.max_epochs=4", "health.policy=off")
    validated = logged(outcome, "val/mse")
    assert len(validated) == 4
    best = torch.load(outcome.folder / "checkpoints" / "best.ckpt")
    assert best["callbacks"]["BestAndLast"]["best_value"] == min(validated)


def test_testing_an_early_best_checkpoint_takes_nothing_from_what_was_seen_after_it(train, monkeypatch):
    judge = BestAndLast.on_validation_end
    monkeypatch.setattr(
        BestAndLast, "on_validation_end", lambda self, *at: judge(self, *at) if self.best_step is None else None
    )
    outcome = train("trainer.max_epochs=4")
    assert torch.load(outcome.folder / "checkpoints" / "best.ckpt")["global_step"] == 5
    assert pl.read_parquet(outcome.folder / "gradient_norms.parquet")["optimizer_step"].max() == 20
    assert pl.read_parquet(outcome.folder / "eigenvalues.parquet")["step"].max() == 20


def test_metrics_csv_train_log_and_summary_keep_float64(train):
    outcome = train()
    log = (outcome.folder / "train.log").read_text()
    for value in logged(outcome, "val/loss"):
        assert f"val/loss {value!r}" in log
        assert repr(value) not in outcome.out
    losses = logged(outcome, "train/loss")
    assert losses
    assert any(loss != float(torch.tensor(loss, dtype=torch.float32)) for loss in losses)
    assert outcome.summary["test"]["mse"] != float(torch.tensor(outcome.summary["test"]["mse"], dtype=torch.float32))


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(train):
    one, same, other = train(), train(), train("seed=1")
    assert one.summary["test"] == same.summary["test"]
    assert one.summary["test"]["mse"] != other.summary["test"]["mse"]


def test_a_sweep_runs_every_combination_in_its_own_folder_and_ends_with_a_table(train, tmp_path):
    outcome = train("-m", "launcher=basic", f"hydra.sweep.dir={tmp_path / 'sweep'}", "model.d_state=2,3", "seed=0,1")
    assert outcome.code == 0, outcome.err
    found = [yaml.safe_load((tmp_path / "sweep" / str(job) / ".hydra" / "config.yaml").read_text()) for job in range(4)]
    assert [(config["model"]["d_state"], config["seed"]) for config in found] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert outcome.out.count("model.d_state=3") >= 2


def test_a_failing_job_of_a_sweep_lets_the_others_run(train, tmp_path):
    folder = f"hydra.sweep.dir={tmp_path / 'sweep'}"
    outcome = train("-m", "launcher=basic", folder, "optimizer.lr=1e-3,1e300,1e-2", "health.policy=off")
    assert outcome.code == 1
    statuses = [(tmp_path / "sweep" / str(job) / "summary.json").read_text() for job in range(3)]
    assert ['"status": "ok"' in text for text in statuses] == [True, False, True]
    assert '"status": "diverged"' in statuses[1]


def test_a_run_that_diverges_keeps_its_best_checkpoint_and_says_where(train, monkeypatch):
    from statewise.task import Forecasting

    shared_step = Forecasting.training_step

    def poisoned(self, batch, batch_idx):
        if self.global_step == 8:
            batch = batch._replace(inputs=batch.inputs * float("nan"))
        return shared_step(self, batch, batch_idx)

    monkeypatch.setattr(Forecasting, "training_step", poisoned)
    outcome = train("trainer.max_epochs=3")
    assert outcome.code == 1
    assert outcome.summary["status"] == "diverged"
    assert len(outcome.err.strip().splitlines()) == 1
    assert "step 9" in outcome.err or "step 8" in outcome.err
    best = torch.load(outcome.folder / "checkpoints" / "best.ckpt")
    assert best["global_step"] == 5
    assert all(torch.isfinite(tensor).all() for tensor in best["state_dict"].values())


def test_a_run_that_cannot_learn_is_stopped_before_its_first_step(train, monkeypatch):
    from statewise.models.forecaster import Forecaster

    forward = Forecaster.forward
    monkeypatch.setattr(Forecaster, "forward", lambda self, x, *a, **k: forward(self, x.detach(), *a, **k))
    frozen = Forecaster.__init__

    def freeze_b(self, *arguments, **keywords):
        frozen(self, *arguments, **keywords)
        self.ssm_0.B.requires_grad_(False)

    monkeypatch.setattr(Forecaster, "__init__", freeze_b)
    outcome = train()
    assert outcome.code == 1
    assert outcome.summary["status"] == "unhealthy"
    assert outcome.summary["health"]["verdict"] == "error"
    assert outcome.summary["steps"] == 0
    assert "ssm_0.B" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


OPTIONS = {
    "zoh": ["model.discretization=zoh"],
    "skip and linear skip": ["model.skip=true", "model.linear_skip=3"],
    "bare": ["model.norm=none", "model.activation=none", "model.glu=false", "model.residual=false", "model.anchor=none"],
    "origin": ["model.init=uniform", "model.residual=false", "model.glu=false", "optimizer=adam", "scheduler=constant"],
    "dropout and accumulation": ["model.dropout=0.2", "trainer.accumulate_grad_batches=2"],
    "huber on all steps": ["task.loss=huber", "task.supervision=all", "task.burn_in=2"],
    "horizon": ["data.horizon=3"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_kind_of_run_is_healthy_even_where_warnings_would_stop_it(name, train):
    outcome = train("health=strict", *OPTIONS[name])
    assert outcome.code == 0, outcome.err
    assert outcome.summary["health"] == {"verdict": "healthy", "findings": []}


def test_a_run_on_returns_reports_what_it_found_and_what_was_planted(train):
    small = ["data.bars=1500", "data.batch_size=256", "model.d_model=4", "trainer.max_epochs=1", "report=false", "logger=csv"]
    outcome = train("data=market", "data.ic=0.1", "health=strict", *small, tiny=False)
    assert outcome.code == 0, outcome.err
    test = outcome.summary["test"]
    assert test["information_coefficient"]["planted"] == 0.1
    assert abs(test["information_coefficient"]["value"]) <= 1
    assert 0 < test["directional_accuracy"]["se"] < 0.1
    assert outcome.summary["baselines"]["zero"]["mse"] < outcome.summary["baselines"]["last_value"]["mse"]


def test_rows_of_earlier_blocks_masked_in_validation_are_not_taken_for_another_supervision(train):
    """The first validation windows reach back into the training rows, whose targets carry no validation loss."""
    outcome = train("task.supervision=all", "task.burn_in=3", "data.batch_size=8", "trainer.max_epochs=1")
    assert outcome.code == 0, outcome.err
    assert outcome.summary["health"] == {"verdict": "healthy", "findings": []}
    checks = json.loads((outcome.folder / "health.json").read_text())["checks"]
    assert {"name": "supervision-mismatch", "ran": True, "why": ""} in checks


def test_callbacks_can_be_switched_off(train):
    outcome = train("callbacks=none")
    assert outcome.code == 0, outcome.err
    assert outcome.summary["health"]["verdict"] == "not_checked"
