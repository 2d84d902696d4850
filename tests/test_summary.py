"""The summary of a run: the promised keys, whatever the run came to, and the sentences and rows that people read."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise import summary as summaries


def scores(offset: float = 0.0) -> dict[str, object]:
    return {
        "mse": torch.tensor(0.25 + offset, dtype=torch.float64),
        "mae": torch.tensor(0.5 + offset, dtype=torch.float64),
        "mse_per_target": torch.tensor([0.25 + offset, math.nan], dtype=torch.float64),
        "mae_per_target": torch.tensor([0.5 + offset, math.nan], dtype=torch.float64),
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
@settings(max_examples=50, deadline=None)
def test_plain_leaves_plain_values_alone_and_json_reads_them_back_equal(value: object) -> None:
    assert json.loads(json.dumps(summaries.plain(value), allow_nan=False)) == value


def test_the_summary_has_exactly_the_promised_keys_for_a_run_that_went_well() -> None:
    summary = summaries.summarise(
        status="ok",
        model="dense_ssm",
        data="lti",
        seed=0,
        test=summaries.errors_on_test(["pm2.5", "TEMP"], scores(), scores(100.0)),
        baselines={"last_value": {"mse": 0.5, "mae": 0.6}, "linear": {"mse": 0.3, "mae": 0.4}},
        floor=0.2,
        identification={"eigenvalue_error": 0.001, "markov_error": 0.002, "simulation_nrmse": math.inf},
        health={"verdict": "healthy", "findings": [], "checks": ["lr"]},
        parameters=100,
        steps=7,
        seconds={"fit": 2.0},
        samples_per_second=10.5,
    )
    assert list(summary) == [
        "status", "model", "data", "val", "objective", "test", "baselines", "floor", "identification", "health", "parameters",
        "steps", "seconds", "samples_per_second", "versions", "seed",
    ]  # fmt: skip
    assert summary["test"]["per_target"]["TEMP"] == {
        "mse": None, "mae": None, "mse_original_units": None, "mae_original_units": None,
    }  # fmt: skip
    assert summary["test"]["mse_original_units"] == 100.25
    assert summary["baselines"] == {
        "last_value": {"mse": 0.5, "mae": 0.6}, "zero": None, "linear": {"mse": 0.3, "mae": 0.4},
    }  # fmt: skip
    assert summary["floor"] == {"mse": 0.2}
    assert summary["identification"] is not None
    assert summary["identification"]["simulation_nrmse"] is None
    assert summary["health"] == {"verdict": "healthy", "findings": []}
    assert summary["seconds"] == {"setup": None, "fit": 2.0, "test": None}
    assert summary["versions"]["torch"].startswith("2.")


def test_the_summary_of_a_failed_run_has_the_same_keys_and_one_line_of_reason() -> None:
    summary = summaries.summarise(status="failed", model="m", data="d", seed=None, error="no\n  room", parent="/parent")
    assert summary["test"]["mse"] is None
    assert summary["test"]["per_target"] == {}
    assert summary["health"]["verdict"] == "not_checked"
    assert summary["error"] == "no room"
    assert summary["parent"] == "/parent"


def test_market_figures_appear_only_where_they_are_given() -> None:
    plain = summaries.errors_on_test(["r", "s"], scores(), scores())
    market = summaries.errors_on_test(
        ["r", "s"], scores(), scores(), information_coefficient={"value": 0.1, "se": 0.01, "planted": 0.1}
    )
    assert "information_coefficient" not in plain
    assert market["information_coefficient"]["planted"] == 0.1
    assert "directional_accuracy" not in market
    with pytest.raises(TypeError, match="no figure 'sharpe'"):
        summaries.errors_on_test(["r", "s"], scores(), scores(), sharpe=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"status": "fine"}, "status must be one of ok"), ({"status": "ok", "baselines": {"gru": None}}, "got 'gru'")],
)
def test_a_summary_outside_the_agreed_words_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summaries.summarise(**{"model": "m", "data": "d", "seed": 0, **arguments})


def test_skill_is_measured_against_the_best_baseline() -> None:
    summary = summaries.summarise(
        status="ok",
        model="dense_ssm",
        data="lti",
        seed=0,
        test=summaries.errors_on_test(["a", "b"], scores(), scores()),
        baselines={"last_value": {"mse": 1.0, "mae": 1.0}, "linear": {"mse": 0.5, "mae": 0.7}},
        floor=0.125,
    )
    rows = {row.name: row for row in summaries.result_rows(summary)}
    assert summaries.best_baseline(summary) == ("linear", 0.5)
    assert rows["dense_ssm"].skill == 0.5
    assert rows["last value"].skill == -1.0
    assert rows["linear"].skill == 0.0
    assert rows["best possible"].skill == 0.75
    assert "zero" not in rows


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0.00000"), (0.0291, "0.02910"), (1.5e-4, "1.500e-04"), (12345.6, "12,345.6"), (3.7e101, "3.700e+101")],
)
def test_a_number_of_any_size_fits_into_a_cell(value: float | None, shown: str) -> None:
    assert summaries.number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (0.125, "+12.50 %"), (-167.996, "-16799.60 %"), (-1e101, "-1.00e+103 %")]
)
def test_a_share_of_any_size_fits_into_a_cell(value: float | None, shown: str) -> None:
    assert summaries.percent(value) == shown
