"""`statewise runs`: the runs of some folders, sorted, filtered, for people, for programs and as a page."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from statewise import cli


@pytest.fixture
def outputs(tmp_path, run_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    day = tmp_path / "outputs" / "2025-01-31"
    run_folder(day / "12-00-00", ["model=gru", "seed=0"], mse=0.3, val=0.2)
    run_folder(day / "13-00-00", ["model=gru", "seed=1"], mse=0.2, val=0.3)
    run_folder(day / "14-00-00", ["model=nlinear", "seed=1"], status="failed", error="no room on the disk", model="nlinear")
    run_folder(day / "15-00-00", ["model=mamba2"], status=None)
    return day


def statewise_runs(*arguments):
    return CliRunner().invoke(cli.app, ["runs", *map(str, arguments)])


def shown(result) -> list[str]:
    """Names of the folders in the order of the table."""
    return [line.split()[-1] for line in result.stdout.splitlines() if line.endswith(("-00-00", "-00-00 "))]


def test_without_a_folder_it_shows_outputs_best_first_and_reasons_last(outputs):
    result = statewise_runs()

    assert result.exit_code == 0
    assert shown(result) == [f"2025-01-31/{hour}-00-00" for hour in (12, 13, 15, 14)]
    assert "2025-01-31/14-00-00  failed: no room on the disk" in result.stdout
    assert "2025-01-31/15-00-00  unfinished: no result yet, or broken off" in result.stdout
    assert "4 runs: 2 ok, 1 unfinished, 1 failed; ★ lowest val/mse" in result.stdout


def test_rows_are_sorted_filtered_and_cut(outputs):
    assert shown(statewise_runs(outputs, "--sort", "test_mse"))[:2] == ["13-00-00", "12-00-00"]
    assert shown(statewise_runs(outputs, "--sort", "-test_mse"))[:2] == ["12-00-00", "13-00-00"]
    assert shown(statewise_runs(outputs, "--where", "status=ok", "--where", "test_mse<0.25")) == ["13-00-00"]
    assert shown(statewise_runs(outputs, "--where", "model=gru", "--best", 1)) == ["12-00-00"]
    assert shown(statewise_runs(outputs, "--sort", "test_mse", "--best", 1)) == ["13-00-00"]


def test_several_folders_are_one_table_and_no_run_is_in_it_twice(outputs):
    assert "4 runs" in statewise_runs(outputs, outputs / "12-00-00").stdout
    assert shown(statewise_runs(outputs / "12-00-00", outputs / "13-00-00")) == ["12-00-00", "13-00-00"]


def test_for_programs_it_is_strict_json_with_every_field(outputs):
    result = statewise_runs(outputs, "--json")
    found = json.loads(result.stdout, parse_constant=pytest.fail)

    assert [entry["status"] for entry in found] == ["ok", "ok", "unfinished", "failed"]
    assert [entry["best"] for entry in found] == [True, False, False, False]
    assert found[0] == {
        "job": None, "overrides": ["model=gru", "seed=0"], "status": "ok", "folder": str(outputs / "12-00-00"), "model": "gru",
        "data": "lti", "objective": 0.2, "val_mse": 0.2, "test_mse": 0.3, "test_mae": 0.15, "best_baseline": "linear",
        "best_baseline_mse": 0.8, "skill": 1 - 0.3 / 0.8, "health": "not_checked", "seconds": 2.5, "message": "", "best": True,
    }  # fmt: skip
    assert found[2]["test_mse"] is None


def test_a_page_of_those_shown_is_written(outputs, tmp_path):
    result = statewise_runs(outputs, "--where", "status=ok", "--page", tmp_path / "compared.html")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"wrote {tmp_path / 'compared.html'}"
    assert "<title>2 runs: gru on lti</title>" in (tmp_path / "compared.html").read_text()


def test_no_run_that_passes_is_exit_code_1_and_for_programs_an_empty_array(outputs):
    result = statewise_runs(outputs, "--where", "seed=7", "--json")

    assert (result.exit_code, json.loads(result.stdout)) == (1, [])
    assert result.stderr == "none of 4 runs passes --where 'seed=7'\n"
    assert statewise_runs(outputs / "14-00-00", "--best", 3).stderr == "none of 1 runs passes --best 3: none ended ok\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["output"], "output does not exist; did you mean outputs?"),
        (["outputs/2025-01-31/12-00-00/.hydra"], ".hydra holds no run: neither .hydra/config.yaml nor job.json"),
        (["--where", "test_mes<1"], "did you mean test_mse or test_mae?"),
        (["--where", "test_mse~1"], "--where 'test_mse~1' is no comparison"),
        (
            ["--sort", "optimizer.l"],
            "--sort: there is no column and no configuration key 'optimizer.l'; did you mean optimizer.lr?",
        ),
        (["--best", "0"], "--best must be at least 1, got 0"),
        (
            ["--page", "outputs/2025-01-31/12-00-00/report.html"],
            "report.html is the report of a run; give the page another name",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(outputs, arguments, said):
    result = statewise_runs(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_it_starts_without_the_libraries_that_take_seconds(outputs):
    program = """
import sys
from pathlib import Path
from statewise.commands.overview import main
assert main([Path("outputs")], None, [], None, as_json=False, page=None) == 0
assert not {"torch", "lightning", "hydra", "matplotlib", "scipy"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
