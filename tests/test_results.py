"""The results that the README shows, reproduced: each test is one of its commands. Minutes, not seconds: `make test-slow`."""

import csv
from statistics import fmean, variance

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def train_whole(train):
    """The command as a user types it, with a folder of its own and without the drawing."""

    def run(*overrides):
        outcome = train("report=false", *overrides, tiny=False)
        assert outcome.code == 0, outcome.err
        return outcome

    return run


def logged(outcome, name):
    with (outcome.folder / "metrics.csv").open() as file:
        return [(int(row["step"]), float(row[name])) for row in csv.DictReader(file) if row.get(name)]


def test_the_default_run_beats_the_linear_model_of_the_whole_window_and_trains_smoothly(train_whole):
    outcome = train_whole("trainer.log_every_n_steps=1")
    summary = outcome.summary
    assert summary["health"] == {"verdict": "healthy", "findings": []}
    assert summary["test"]["mse"] <= 0.0290
    assert summary["test"]["mse"] <= 0.99 * summary["baselines"]["linear"]["mse"]
    validation = [value for _, value in logged(outcome, "val/loss")]
    assert validation[-1] < validation[0]
    losses = [value for _, value in logged(outcome, "train/loss")]
    batches = summary["steps"] // len(validation)
    assert len(losses) == summary["steps"]
    for border in range(batches, len(losses), batches):
        before, after = losses[border - 20 : border], losses[border : border + 20]
        three_sigma = 3 * (variance(before) / 20 + variance(after) / 20) ** 0.5
        assert fmean(after) <= fmean(before) + three_sigma, f"the loss jumps at step {border}"


def test_the_original_to_the_letter_is_no_better_than_repeating_the_last_value(train_whole):
    summary = train_whole("experiment=origin").summary
    assert summary["health"]["verdict"] == "healthy"
    assert summary["test"]["mse"] >= 0.98 * summary["baselines"]["last_value"]["mse"]


def test_a_linear_system_is_found_to_the_last_per_cent(train_whole):
    summary = train_whole("experiment=lti").summary
    assert summary["floor"]["mse"] <= summary["test"]["mse"] <= 1.01 * summary["floor"]["mse"]
    assert summary["identification"]["eigenvalue_error"] <= 0.005
    assert summary["identification"]["markov_error"] <= 0.008
    assert summary["identification"]["simulation_nrmse"] <= 0.008


def test_nothing_is_found_in_pure_noise(train_whole):
    coefficient = train_whole("data=market", "data.ic=0").summary["test"]["information_coefficient"]
    assert abs(coefficient["value"]) <= 2 * coefficient["se"]


def test_a_planted_signal_is_found(train_whole):
    coefficient = train_whole("data=market", "data.ic=0.1").summary["test"]["information_coefficient"]
    assert coefficient["planted"] == 0.1
    assert coefficient["value"] >= 0.08


@pytest.mark.parametrize(
    ("model", "above", "below"), [("mamba2", 0.0, 0.005), ("dense_ssm", 0.005, 0.2), ("linear", 0.2, float("inf"))]
)
def test_a_marked_value_is_held_by_a_state_that_the_input_can_open_and_close(train_whole, model, above, below):
    summary = train_whole(f"experiment=sample_and_hold_{model}").summary
    assert summary["health"]["verdict"] == "healthy"
    assert summary["floor"] == {"mse": 0.0}
    assert above < summary["test"]["mse"] < below
