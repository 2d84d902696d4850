"""`statewise evaluate`: the table of a run once more."""

import json

import polars as pl
import pytest

from statewise.commands.evaluate import on_new_data, on_split
from statewise.runs import load_run


@pytest.fixture
def data_in_place(of_levels):
    place = of_levels.file.with_name("levels.csv")
    place.symlink_to(of_levels.file)
    yield
    place.unlink()


@pytest.mark.usefixtures("data_in_place")
def test_the_figures_of_levels_are_those_of_the_summary_to_the_bit(of_levels):
    found, summary = on_split(of_levels.folder, "test"), load_run(of_levels.folder).summary
    assert found["test"] == summary["test"]
    assert found["baselines"] == summary["baselines"]
    assert (found["model"], found["data"]) == ("dense_ssm", "file")


def test_the_figures_of_returns_are_those_of_the_summary_to_the_bit(of_returns):
    found, summary = on_split(of_returns.folder, "test"), load_run(of_returns.folder).summary
    assert found["test"] == summary["test"]
    assert found["baselines"] == summary["baselines"]
    assert found["test"]["trading"]


def test_the_validation_rows_have_the_error_that_the_best_checkpoint_was_chosen_by(of_returns, statewise):
    result = statewise("evaluate", of_returns.folder, "--split", "val", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    best = load_run(of_returns.folder).metrics["val/mse"].min()
    assert found["test"]["mse"] == pytest.approx(best, rel=1e-12)
    assert found["rows"] == "validation rows"


def test_the_table_says_which_rows_it_is_of(of_returns, statewise):
    result = statewise("evaluate", of_returns.folder, "--split", "val")
    assert result.exit_code == 0, result.stderr
    assert "file, validation rows, scaled units" in result.stdout
    assert "MSE on validation rows" in result.stdout
    assert "chosen on these rows" in result.stdout
    assert "information coefficient" in result.stdout


def test_a_new_file_is_evaluated_on_all_its_rows_without_the_training_data(of_levels, statewise, levels):
    levels(seed=7).write_csv("new.csv")
    result = statewise("evaluate", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 0, result.stderr
    assert "new.csv, all rows, scaled units" in result.stdout
    assert "the linear baseline is left out" in result.stdout
    found = on_new_data(of_levels.folder, "new.csv")
    assert set(found["baselines"]) == {"last_value"}
    # Of each series: rows 0 to 32, then 36 to 79 up to the gap, and 80 after it.
    assert found["windows"] == 2 * sum(rows - 8 - 3 + 1 for rows in (33, 44, 80))


def test_a_new_file_has_the_errors_that_its_predictions_have(of_returns, statewise, prices):
    prices(seed=9).write_csv("new.csv")
    found = on_new_data(of_returns.folder, "new.csv")
    statewise("predict", of_returns.folder, "--data", "new.csv", "--out", "p.parquet")
    frame = pl.read_parquet("p.parquet").drop_nulls()
    name = next(iter(found["test"]["per_target"]))
    assert found["windows"] == len(frame)
    error = (frame[name] - frame[f"{name}_actual"]).abs().mean()
    assert found["test"]["mae_original_units"] == pytest.approx(error, rel=1e-9)
    assert set(found["baselines"]) == {"zero"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "tests"], "--split must be one of test, val"),
        (["data.timezone=UTC"], "data.timezone=UTC says how a new file is written: it needs --data\n"),
        (["--data", "nothing.csv"], "--data: no file "),
        ([], "data.path: no file "),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_line(arguments, message, of_levels, statewise):
    result = statewise("evaluate", of_levels.folder, *arguments)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(message)


def test_a_new_file_without_the_target_cannot_be_evaluated(of_levels, statewise, levels):
    levels().drop("b").write_csv("new.csv")
    result = statewise("evaluate", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 2
    assert 'new.csv lacks the column "b" that the model reads' in result.stderr


def test_other_units_are_warned_of(of_levels, statewise, levels):
    levels().with_columns(pl.col("b") * 1000.0).write_csv("new.csv")
    result = statewise("evaluate", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: new.csv: 2024-")
