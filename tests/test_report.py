"""report.html is one page that explains a run from its folder alone, whatever the run has left."""

import html.parser
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statewise import figures, report, runs
from statewise.summary import RETURN_FIGURES, errors_on_test, summarise

FINDING = {
    "id": "graph-cut",
    "severity": "error",
    "step": 3,
    "parameters": ["ssm_0.A"],
    "message": "no gradient reaches <ssm_0.A>",
    "evidence": {"norm": 0.0},
}


def summary(**changed: Any) -> dict[str, Any]:
    errors = {"mse": 0.2, "mae": 0.3, "mse_per_target": [0.1, 0.3], "mae_per_target": [0.2, 0.4]}
    given: dict[str, Any] = {
        "status": "ok",
        "model": "dense_ssm",
        "data": "air_quality",
        "seed": 7,
        "test": errors_on_test(["pm2.5", "TEMP"], errors, {**errors, "mse": 50.0}),
        "baselines": {"last_value": {"mse": 0.5, "mae": 0.6}, "linear": {"mse": 0.25, "mae": 0.35}},
        "health": {"verdict": "healthy", "findings": []},
        "parameters": 1234,
        "steps": 20,
        "seconds": {"setup": 1.0, "fit": 2.0, "test": 0.5},
        "samples_per_second": 100.0,
    }
    return dict(summarise(**{**given, **changed}))


def broken_off(parent: Path) -> Path:
    """A run that ended before it wrote anything of its own."""
    folder = parent / "2025-03-01" / "10-00-00"
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text("seed: 7\nmodel:\n  note: <b>&\n")
    (folder / ".hydra" / "overrides.yaml").write_text("- seed=7\n")
    return folder


def complete(parent: Path) -> Path:
    bare = broken_off(parent)
    runs.write_json(bare / runs.SUMMARY, summary())
    runs.write_json(bare / runs.HEALTH, {"verdict": "healthy", "findings": [], "checks": []})
    (bare / runs.METRICS).write_text(
        "epoch,lr,spectral_radius/ssm_0,step,train/loss,val/mse\n"
        "0,0.001,0.5,1,1.0,\n0,0.001,0.6,2,0.5,\n0,,,2,,0.6\n1,0.0005,0.7,3,0.4,\n"
    )
    rows = np.arange(12)
    times = (np.datetime64("2024-01-01", "ns") + rows * np.timedelta64(3600, "s"))[:, None]
    truth = np.stack([np.sin(rows), np.cos(rows)], axis=1)[:, None]
    runs.write_predictions(
        bare / runs.PREDICTIONS,
        series=np.array([""] * 12),
        times=times,
        names=["pm2.5", "TEMP"],
        truth=truth,
        prediction=truth * 0.9,
        baselines={"linear": truth * 0.8},
    )
    runs.write_history(
        bare,
        gradient_norms=([1, 2], ["ssm_0.A", "ssm_0.B"], np.array([[1.0, 0.5], [0.5, 0.1]])),
        eigenvalues=[(0, "ssm_0", np.array([0.5 + 0.1j])), (3, "ssm_0", np.array([0.7 + 0.1j]))],
    )
    return bare


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    return broken_off(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return complete(tmp_path)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a complete run; drawn once, because drawing takes seconds."""
    folder = complete(tmp_path_factory.mktemp("complete"))
    path = report.build_report(folder)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


class Page(html.parser.HTMLParser):
    """Checks that tags are balanced and collects the ids of figures and the text of table rows."""

    VOID = frozenset({"meta", "br", "hr", "img", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.figures: list[str] = []
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [value for key, value in attrs if key in {"href", "src", "xlink:href"} and value]
        if tag == "figure":
            self.figures.append(str(given["id"]))
        if tag == "tr":
            self.rows.append([])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"td", "th"}:
            self.rows[-1].append(data)

    def row(self, name: str) -> list[str]:
        return next(row for row in self.rows if row and row[0] == name)


def test_the_report_of_a_whole_run_shows_everything_and_refers_to_nothing_outside(text: str) -> None:
    page = Page(text)
    assert page.figures == [
        "losses",
        "predictions_1",
        "eigenvalues",
        "spectral_radii",
        "gradient_norms",
        "learning_rate",
    ]
    assert text.count("<svg") == 6
    assert [link for link in page.links if not link.startswith(("#", "data:"))] == []
    assert not re.search(r"url\((?!#)|@import|<script|<link", text)
    assert "prefers-color-scheme: dark" in text


def test_the_tables_hold_the_numbers_of_the_summary(text: str) -> None:
    page = Page(text)
    assert page.row("dense_ssm") == ["dense_ssm", "0.20000", "0.30000", "+20.00 %"]
    assert page.row("last value") == ["last value", "0.50000", "0.60000", "-100.00 %"]
    assert page.row("linear") == ["linear", "0.25000", "0.35000", "+0.00 %"]
    assert page.row("pm2.5") == ["pm2.5", "0.10000", "0.20000", "0.10000", "0.20000"]
    assert page.row("mean") == ["mean", "0.20000", "0.30000", "50.000", "0.30000"]


def test_the_lead_says_how_the_model_compares(text: str) -> None:
    assert "<title>dense_ssm on air_quality</title>" in text
    assert "Test MSE 0.20000, 20.00 % below the best baseline (linear, 0.25000)." in text
    assert "1,234 parameters · 20 optimiser steps · 2.0 s of training · 100 samples/s · seed 7" in text


def test_known_answers_are_shown_where_the_data_has_them(bare: Path) -> None:
    errors = {"mse": 1.0, "mae": 1.0, "mse_per_target": [1.0], "mae_per_target": [1.0]}
    found = {"value": 0.095, "se": 0.005, "planted": 0.1}
    runs.write_json(
        bare / runs.SUMMARY,
        summary(
            test=errors_on_test(["r"], errors, errors, information_coefficient=found),
            floor=0.99,
            identification={"eigenvalue_error": 0.002, "markov_error": None, "simulation_nrmse": 0.004},
        ),
    )
    text = report.build_report(bare).read_text(encoding="utf-8")
    page = Page(text)
    assert page.row("largest error of an eigenvalue")[:2] == ["largest error of an eigenvalue", "0.00200"]
    assert page.row("error of the Markov parameters")[1] == "–"
    assert page.row("information coefficient") == ["information coefficient", "0.09500", "± 0.00500", "0.10000"]
    assert page.row("best possible")[1] == "0.99000"
    assert "1.01 % above the best possible predictor (0.99000)" in text


def test_figures_of_returns_and_of_levels_are_shown(bare: Path) -> None:
    errors = {"mse": 0.99, "mae": 0.7, "mse_per_target": [0.99] * 2, "mae_per_target": [0.7] * 2}
    step = {key: {"value": 0.02, "se": 0.005} for key in RETURN_FIGURES}
    test = errors_on_test(
        ["a", "b"],
        errors,
        errors,
        **step,
        returns_per_target={name: [{"step": 1, **step}] for name in "ab"},
        trading={"a": {"turnover": 0.5, "sharpe": 0.11, "sharpe_after_cost": None}},
    )
    runs.write_json(bare / runs.SUMMARY, summary(test=test))
    text = report.build_report(bare).read_text(encoding="utf-8")
    page = Page(text)
    assert page.row("R2 against zero") == ["R2 against zero", "0.02000", "± 0.00500"]
    assert "Forecasts of returns" in text
    assert "Against the known answer" not in text
    assert "0.02000 ± 0.00500" in text
    assert all(words in text for words in ("Each target of returns", "Trading, per row", "Sharpe ratio", "0.11000"))

    r2 = {"a": {"r2": 0.97, "r2_against_last_value": -0.1}, "b": {"r2": 0.96, "r2_against_last_value": None}}
    runs.write_json(bare / runs.SUMMARY, summary(test=errors_on_test(["a", "b"], errors, errors, r2_of_levels=r2)))
    text = report.build_report(bare).read_text(encoding="utf-8")
    assert Page(text).row("a")[-2:] == ["0.97000", "-0.10000"]
    assert "0.96000" not in text


def test_findings_are_listed_and_everything_is_escaped(bare: Path) -> None:
    health = {"verdict": "error", "findings": [FINDING], "checks": []}
    runs.write_json(bare / runs.HEALTH, health)
    runs.write_json(bare / runs.SUMMARY, summary(status="unhealthy", health=health, data="<script>"))
    text = report.build_report(bare).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "no gradient reaches &lt;ssm_0.A&gt;" in text
    assert "<script>" not in text
    assert "note: &lt;b&gt;&amp;" in text
    assert '<span class="badge bad">unhealthy</span>' in text


def test_a_run_that_left_nothing_still_gets_a_page(bare: Path) -> None:
    text = report.build_report(bare).read_text(encoding="utf-8")
    assert Page(text).figures == []
    assert "broken off" in text
    assert "seed: 7" in text


def test_a_failed_run_says_why(bare: Path) -> None:
    failed = summarise(status="diverged", model="m", data="d", seed=0, error="ssm_0.A is not finite", parent="/old")
    runs.write_json(bare / runs.SUMMARY, failed)
    text = report.build_report(bare).read_text(encoding="utf-8")
    Page(text)
    assert "ssm_0.A is not finite" in text
    assert "continues /old" in text


def test_radii_come_from_the_eigenvalues_where_no_metric_holds_them(folder: Path) -> None:
    (folder / runs.METRICS).unlink()
    run = runs.load_run(folder)
    assert [name for name, _, _ in report.pictures(run)] == [
        "predictions_1", "eigenvalues", "spectral_radii", "gradient_norms",
    ]  # fmt: skip
    steps, radii = report._radii(run)["ssm_0"]
    assert steps.tolist() == [0, 3]
    np.testing.assert_allclose(radii, np.abs([0.5 + 0.1j, 0.7 + 0.1j]))


def test_a_long_horizon_shows_its_last_step_too(bare: Path) -> None:
    runs.write_predictions(
        bare / runs.PREDICTIONS,
        series=np.array(["a"] * 4),
        times=np.arange(4)[:, None] + np.arange(3),
        names=["x"],
        truth=np.ones((4, 3, 1)),
        prediction=np.ones((4, 3, 1)),
    )
    assert [name for name, _, _ in report.pictures(runs.load_run(bare))] == ["predictions_1", "predictions_3"]


def test_a_picture_that_cannot_be_drawn_costs_only_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise FloatingPointError("odd run")

    monkeypatch.setattr(figures, "eigenvalues", broken)
    page = Page(report.build_report(folder).read_text(encoding="utf-8"))
    assert "eigenvalues" not in page.figures
    assert len(page.figures) == 5
    assert "the picture eigenvalues could not be drawn" in caplog.text


def test_no_report_is_built_outside_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        report.build_report(tmp_path)
    assert list(tmp_path.iterdir()) == []
