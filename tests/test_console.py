"""What is said at the end reads well without a terminal: no number, name or path is ever shortened."""

from collections.abc import Callable
from typing import Any

import pytest

from statewise import console
from statewise.summary import errors_on_test, summarise

Said = Callable[[dict[str, Any]], list[str]]
LONG_FOLDER = "/very/long/path/" + "outputs/" * 20 + "10-00-00"


def summary(**changed: Any) -> dict[str, Any]:
    errors = {"mse": 0.0284567, "mae": 0.0912345, "mse_per_target": [0.01, 0.05], "mae_per_target": [0.1, 0.1]}
    given: dict[str, Any] = {
        "status": "ok",
        "model": "dense_ssm",
        "data": "air_quality",
        "seed": 0,
        "test": errors_on_test(["pm2.5", "[red]TEMP"], errors, errors),
        "baselines": {"last_value": {"mse": 0.0324, "mae": 0.1}, "linear": {"mse": 0.0293, "mae": 0.095}},
        "health": {"verdict": "healthy", "findings": []},
    }
    return dict(summarise(**{**given, **changed}))


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def printed(summary: dict[str, Any]) -> list[str]:
        console.print_results(summary, LONG_FOLDER)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return printed


def cells(lines: list[str], name: str) -> list[str]:
    return next(line for line in lines if line.startswith(name)).removeprefix(name).split()


@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_numbers_and_the_folder_are_whole_however_narrow_the_output(
    columns: str, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = said(summary())
    assert cells(lines, "dense_ssm") == ["0.02846", "0.09123", "+2.88", "%"]
    assert cells(lines, "last value") == ["0.03240", "0.10000", "-10.58", "%"]
    assert cells(lines, "linear") == ["0.02930", "0.09500", "+0.00", "%"]
    assert cells(lines, "folder") == [LONG_FOLDER]
    assert not any("…" in line for line in lines)


def test_plain_output_has_no_escape_codes(said: Said) -> None:
    assert not any("\x1b" in line for line in said(summary()))


def test_zero_and_the_best_possible_have_lines_only_where_the_data_has_them(said: Said) -> None:
    without, with_both = (
        said(summary()),
        said(summary(baselines={"zero": {"mse": 0.5, "mae": 0.5}}, floor=0.028)),
    )
    assert not any(line.startswith(("zero", "best possible")) for line in without)
    assert cells(with_both, "zero") == ["0.50000", "0.50000", "+0.00", "%"]
    assert cells(with_both, "best possible")[:2] == ["0.02800", "–"]
    assert any("1.63 % above the best possible predictor (0.02800)" in line for line in with_both)


def test_each_target_is_listed_where_they_are_few(said: Said) -> None:
    lines = said(summary())
    assert cells(lines, "pm2.5") == ["0.01000", "0.10000", "0.01000", "0.10000"]
    assert cells(lines, "[red]TEMP")[0] == "0.05000"
    many = [f"v{i}" for i in range(50)]
    errors = {"mse": 1.0, "mae": 1.0, "mse_per_target": [1.0] * 50, "mae_per_target": [1.0] * 50}
    assert not any(line.startswith("v0") for line in said(summary(test=errors_on_test(many, errors, errors))))


def test_the_verdict_and_every_finding_are_said(said: Said) -> None:
    finding = {"id": "graph-cut", "severity": "error", "step": 1, "parameters": [], "message": "no gradient at [A]"}
    lines = said(summary(status="unhealthy", health={"verdict": "error", "findings": [finding]}))
    assert cells(lines, "training") == ["error,", "1", "finding"]
    assert any(line.strip() == "error graph-cut: no gradient at [A]" for line in lines)
    assert cells(lines, "status") == ["unhealthy"]
    assert cells(said(summary()), "training") == ["healthy"]


def of_returns() -> dict[str, Any]:
    errors = {"mse": 1.0, "mae": 1.0, "mse_per_target": [1.0] * 2, "mae_per_target": [1.0] * 2}
    step = {
        "information_coefficient": {"value": 0.04, "se": 0.01},
        "rank_correlation": {"value": None, "se": 0.01},
        "directional_accuracy": {"value": 0.51, "se": None},
        "r2_against_zero": {"value": 0.001, "se": 0.003},
    }
    earned = {
        "turnover": 0.5,
        "mean_return": 0.002,
        "mean_return_after_cost": 0.0015,
        "sharpe": 0.1,
        "sharpe_after_cost": 0.05,
    }
    return dict(
        errors_on_test(
            ["first", "second"],
            errors,
            errors,
            rank_correlation={"value": 0.05, "se": 0.01},
            r2_against_zero={"value": 0.002, "se": 0.001},
            returns_per_target={name: [{"step": 1, **step}, {"step": 2, **step}] for name in ("first", "second")},
            trading={"first": earned},
        )
    )


def test_known_answers_are_said_beside_what_was_found(said: Said) -> None:
    errors = {"mse": 1.0, "mae": 1.0, "mse_per_target": [1.0], "mae_per_target": [1.0]}
    market = errors_on_test(
        ["r"],
        errors,
        errors,
        information_coefficient={"value": 0.09, "se": 0.004, "planted": 0.1},
        directional_accuracy={"value": 0.52, "se": None},
    )
    lines = said(summary(test=market, identification={"eigenvalue_error": 0.002}))
    assert " ".join(cells(lines, "information coefficient")) == "0.09000, ± 0.00400 (standard error), planted 0.10000"
    assert cells(lines, "directional accuracy") == ["0.52000"]
    assert cells(lines, "identification") == ["eigenvalue", "error", "0.00200"]


def test_a_run_without_a_test_result_says_why_and_shows_no_table(said: Said) -> None:
    lines = said(dict(summarise(status="failed", model="m", data="d", seed=0, error="data.path is a folder")))
    assert cells(lines, "result") == ["No", "test", "result:", "data.path", "is", "a", "folder"]
    assert not any("MSE" in line for line in lines)
    assert cells(lines, "status") == ["failed"]


def test_returns_and_trading_have_tables_of_their_own(said: Said) -> None:
    lines = said(summary(test=of_returns()))
    assert " ".join(cells(lines, "rank correlation")) == "0.05000, ± 0.01000 (standard error)"
    assert cells(lines, "R2 against zero")[0] == "0.00200,"
    assert " ".join(cells(lines, "second, step 2")) == "0.04000 ± 0.01000 – ± 0.01000 0.51000 0.00100 ± 0.00300"
    assert cells(lines[-9:], "first") == ["0.50000", "0.00200", "0.00150", "0.10000", "0.05000"]


def test_both_r2_of_a_level_are_said_and_never_one_alone(said: Said) -> None:
    errors = {"mse": 1.0, "mae": 1.0, "mse_per_target": [1.0] * 2, "mae_per_target": [1.0] * 2}
    r2 = {"first": {"r2": 0.99, "r2_against_last_value": -0.25}, "second": {"r2": 0.98, "r2_against_last_value": None}}
    lines = said(summary(test=errors_on_test(["first", "second"], errors, errors, r2_of_levels=r2)))
    assert any(line.split()[-5:] == ["R2", "R2", "against", "last", "value"] for line in lines)
    assert cells(lines, "first")[-2:] == ["0.99000", "-0.25000"]
    assert "0.98000" not in cells(lines, "second")
