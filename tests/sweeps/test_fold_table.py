"""The end of a sweep over data.fold: one line for each fold, mean and standard error, in the terminal and in two files."""

import csv
import io
import json
import math

import pytest
from rich.console import Console

from statewise.sweeps.fold_table import fold_groups, fold_table, write_folds
from statewise.sweeps.rows import rows_of


def printed(table) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return out.getvalue()


@pytest.fixture
def four(tmp_path, run_folder):
    """Four folds in a mixed order, the last of them failed."""
    for place, (fold, mse) in enumerate({2: 0.6, 0: 0.4, 1: 0.5}.items()):
        run_folder(tmp_path / str(place), ["data.folds.n=4", f"data.fold={fold}"], mse=mse)
    run_folder(tmp_path / "3", ["data.folds.n=4", "data.fold=3"], status="diverged")
    return rows_of(tmp_path)


def test_the_folds_stand_in_order_with_their_mean_and_standard_error(four):
    (group,) = fold_groups(four)

    assert group.overrides == ""
    assert [fold["fold"] for fold in group.folds] == [0, 1, 2, 3]
    assert [fold["test_mse"] for fold in group.folds] == [0.4, 0.5, 0.6, None]
    assert {fold["best_baseline"] for fold in group.folds} == {"linear"}
    means, errors = group.over_folds()
    assert means == pytest.approx({"test_mse": 0.5, "test_mae": 0.25, "best_baseline_mse": 0.8, "skill": 0.375})
    assert errors["test_mse"] == pytest.approx(0.1 / math.sqrt(3))
    assert errors["best_baseline_mse"] == pytest.approx(0.0, abs=1e-12)


def test_the_terminal_shows_a_line_for_each_fold_and_the_two_of_all(four):
    lines = printed(fold_table(fold_groups(four))).splitlines()

    assert [line.split()[0] for line in lines if line.strip() and "─" not in line] == ["fold", "0", "1", "2", "3", "mean", "±"]
    mean, error = lines[-2:] if lines[-1].strip() else lines[-3:-1]
    assert mean.split() == ["mean", "of", "3", "0.50000", "0.25000", "0.80000", "+37.50", "%"]
    assert "0.05774" in error
    assert "diverged" in printed(fold_table(fold_groups(four)))


def test_both_files_hold_every_fold_and_the_figures_of_all(four, tmp_path):
    write_folds(fold_groups(four), tmp_path)

    with (tmp_path / "folds.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["fold"] for line in lines] == ["0", "1", "2", "3", "mean", "standard_error"]
    assert [line["test_mse"] for line in lines[:4]] == ["0.4", "0.5", "0.6", ""]
    assert [line["folder"] for line in lines] == ["1", "2", "0", "3", "", ""]
    (entry,) = json.loads((tmp_path / "folds.json").read_text())
    assert len(entry["folds"]) == 4
    assert entry["mean"]["test_mse"] == pytest.approx(0.5)
    assert entry["folds"][3]["status"] == "diverged"


def test_other_things_that_were_swept_make_groups(tmp_path, run_folder):
    for model, mse in (("gru", 0.5), ("nlinear", 0.7)):
        for fold in (0, 1):
            run_folder(tmp_path / f"{model}{fold}", ["data.folds.n=2", f"model={model}", f"data.fold={fold}"], mse=mse)
    groups = fold_groups(rows_of(tmp_path))

    assert [group.overrides for group in groups] == ["model=gru", "model=nlinear"]
    assert [group.over_folds()[0]["test_mse"] for group in groups] == pytest.approx([0.5, 0.7])
    assert "model=nlinear" in printed(fold_table(groups))


def test_how_the_jobs_were_run_makes_no_groups(tmp_path, run_folder):
    """A sweep that was started again with another launcher is still one way to train."""
    run_folder(tmp_path / "a", ["seed=1", "data.fold=0", "launcher.n_jobs=4"], mse=0.5)
    run_folder(tmp_path / "b", ["data.fold=1", "seed=1", "sweep.resume=/a"], mse=0.5)

    assert [group.overrides for group in fold_groups(rows_of(tmp_path))] == [""]


def test_a_sweep_of_something_else_has_no_such_table(tmp_path, run_folder):
    for name, overrides in (("a", ["seed=0", "data.fold=1"]), ("b", ["data.fold=1", "seed=2"]), ("c", ["seed=1"])):
        run_folder(tmp_path / name, overrides, mse=0.1)

    assert fold_groups(rows_of(tmp_path)) == []
    assert fold_groups([]) == []


def test_a_fold_alone_has_no_standard_error(tmp_path, run_folder):
    run_folder(tmp_path / "0", ["data.fold=0"], mse=0.4)
    run_folder(tmp_path / "1", ["data.fold=1"], status="failed")
    (group,) = fold_groups(rows_of(tmp_path))

    assert group.over_folds()[0]["test_mse"] == 0.4
    assert group.over_folds()[1] == {"test_mse": None, "test_mae": None, "best_baseline_mse": None, "skill": None}


def test_a_sweep_over_the_folds_ends_with_the_table_and_its_files(train, tmp_path):
    sweep = tmp_path / "sweep"
    outcome = train(
        "-m", "launcher=basic", f"hydra.sweep.dir={sweep}", "data.folds.n=2", "data.fold=0,1", "trainer.max_epochs=1",
        "health.policy=off",
    )  # fmt: skip

    assert outcome.code == 0, outcome.err + outcome.out[-3000:]
    assert "± standard error" in outcome.out
    (entry,) = json.loads((sweep / "folds.json").read_text())
    assert [fold["fold"] for fold in entry["folds"]] == [0, 1]
    summaries = [json.loads((sweep / str(number) / "summary.json").read_text()) for number in (0, 1)]
    assert [fold["test_mse"] for fold in entry["folds"]] == [summary["test"]["mse"] for summary in summaries]
    assert summaries[0]["test"]["mse"] != summaries[1]["test"]["mse"]
    assert "fold 1 of 2" in (sweep / "1" / "train.log").read_text()


def test_a_fold_that_does_not_exist_is_refused_before_any_work(train):
    outcome = train("data.folds.n=2", "data.fold=2")

    assert outcome.code == 2
    assert outcome.err.strip() == "data.fold must be from 0 to 1, because data.folds.n=2, got 2"
