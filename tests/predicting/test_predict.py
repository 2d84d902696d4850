"""`statewise predict` on a whole file."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from statewise.commands.predict import exit_code
from statewise.predicting import whole
from statewise.predicting.asked import Asked
from statewise.predicting.new_file import open_new
from statewise.predicting.whole import prediction_columns
from statewise.restore import load_trained, restore
from statewise.runs import load_run


def beside_the_run(trained, new):
    """The test predictions of a run and those of the command for the same rows."""
    run = load_run(trained.folder).predictions.pivot(
        on="variable", index=["series", "time", "step"], values=["prediction", "target"], separator=" of "
    )
    return run.join(new, on=["series", "time", "step"], how="inner", maintain_order="left"), run


def test_the_file_of_the_run_gives_the_predictions_of_the_run_to_the_bit(of_levels, statewise):
    result = statewise("predict", of_levels.folder, "--data", of_levels.file)
    assert result.exit_code == 0, result.stderr
    both, run = beside_the_run(of_levels, pl.read_parquet("predictions.parquet"))
    assert len(both) == len(run) > 100
    for name in "ab":
        assert both[f"prediction of {name}"].equals(both[name])
        assert both[f"target of {name}"].equals(both[f"{name}_actual"])


def test_the_rows_after_the_end_of_a_file_are_predicted_and_their_times_go_on(of_levels, statewise):
    result = statewise("predict", of_levels.folder, "--data", of_levels.file, "--out", "p.parquet")
    frame = pl.read_parquet("p.parquet")
    last = frame.filter(series="BBB").tail(3)
    end = pl.Series(["2024-01-07T20:00:00"]).str.to_datetime(time_unit="ns")[0]
    assert last["origin_time"].unique().to_list() == [end]
    assert [(moment - end).total_seconds() / 3600 for moment in last["time"]] == [1.0, 2.0, 3.0]
    assert last["step"].to_list() == [1, 2, 3]
    assert last["a_actual"].null_count() == 3
    assert last["a"].null_count() == 0
    assert frame.columns == ["series", "origin_time", "time", "step", "a", "a_actual", "b", "b_actual"]
    assert "of rows the file does not have" in result.stdout


def test_a_gap_ends_what_is_known_and_no_window_crosses_it(of_levels, statewise):
    statewise("predict", of_levels.folder, "--data", of_levels.file, "--out", "p.parquet")
    frame = pl.read_parquet("p.parquet").filter(series="AAA")
    before = pl.Series(["2024-01-04T07:00:00"]).str.to_datetime(time_unit="ns")[0]
    of_last = frame.filter(origin_time=before)
    assert [moment.hour for moment in of_last["time"]] == [8, 9, 10]
    assert of_last["a_actual"].null_count() == 3
    after = frame.filter(pl.col("origin_time") > before)["origin_time"].min()
    assert (after - before).total_seconds() / 3600 == 6 + 7


def test_errors_stand_beside_the_last_value_in_scaled_and_original_units(of_levels, statewise):
    result = statewise("predict", of_levels.folder, "--data", of_levels.file, "--json")
    found = json.loads(result.stdout)
    frame = pl.read_parquet("predictions.parquet")
    error = (frame["a"] - frame["a_actual"]).drop_nulls()
    assert found["errors"]["per_target"]["a"]["mae_original_units"] == pytest.approx(error.abs().mean(), rel=1e-12)
    assert set(found["baselines"]) == {"last_value"}
    assert found["per_series"] == dict(frame.group_by("series", maintain_order=True).len().iter_rows())
    assert (found["predictions"], found["windows"]) == (len(frame), len(frame) // 3)
    # One, two and three rows behind the last three of them, at the gap and at the end of each series.
    assert found["beyond_the_file"] == 2 * 2 * (1 + 2 + 3)


def test_derived_features_and_their_target_are_those_of_the_run(of_returns, statewise):
    result = statewise("predict", of_returns.folder, "--data", of_returns.file)
    assert result.exit_code == 0, result.stderr
    run = load_run(of_returns.folder).predictions
    name = run["variable"][0]
    both = run.join(pl.read_parquet("predictions.parquet"), on=["series", "time", "step"], how="left", maintain_order="left")
    assert both["prediction"].equals(both[name])
    assert both["target"].equals(both[f"{name}_actual"])
    assert "zero" in result.stdout


def test_a_file_without_the_target_is_predicted_without_errors(of_returns, statewise, tmp_path, prices):
    prices().write_csv(tmp_path / "new.csv")
    trained = load_trained(of_returns.folder)
    asked = Asked.by(trained)
    lacking = Asked(**{**vars(asked), "targets": ("log_return(other)",)})
    new = open_new(trained, lacking, str(tmp_path / "new.csv"))
    assert not bool(new.truth_after(slice(0, 5), 8, 1)[1].any())


def test_csv_is_written_where_the_name_says_so(of_levels, statewise):
    assert statewise("predict", of_levels.folder, "--data", of_levels.file, "--out", "p.csv").exit_code == 0
    frame = pl.read_csv("p.csv")
    assert frame["time"][0] == "2024-01-01T08:00:00Z"
    assert frame["a_actual"].dtype == pl.Float64


def test_a_missing_column_is_named_with_the_nearest_one(of_levels, statewise, levels):
    levels().rename({"a": "A_"}).write_csv("new.csv")
    result = statewise("predict", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 2
    assert result.stderr == (
        'new.csv lacks the column "a" that the model reads; did you mean A_?; it has time, symbol, A_, note, b\n'
    )
    assert not list(of_levels.folder.glob("new*"))


def test_another_frequency_is_refused_with_both(of_levels, statewise, levels):
    levels(step="15m").write_csv("new.csv")
    result = statewise("predict", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 2
    assert result.stderr == (
        "new.csv has another frequency: its rows are 0:15:00 apart, those of the training data 1:00:00, and the model counts "
        "in rows: bring the file to the frequency of the training data, or train on this one\n"
    )


def test_other_units_are_warned_of_with_column_row_and_value(of_levels, statewise, levels):
    levels().with_columns(pl.col("b") * 1000.0).write_csv("new.csv")
    result = statewise("predict", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("warning: new.csv: 2024-01-")
    assert ' of series BBB, column "b": ' in lines[0]
    assert "standard deviations from the mean of training" in lines[0]
    assert "other units? (training: mean 20" in lines[0]
    refused = statewise("predict", of_levels.folder, "--data", "new.csv", "--strict", "--out", "never.parquet")
    assert refused.exit_code == 2
    assert refused.stderr.splitlines()[-1] == "nothing was predicted, because --strict refuses what is warned of"


def test_a_series_that_training_did_not_know_is_warned_of(of_levels, statewise, levels):
    levels(symbols=("AAA", "NEW")).write_csv("new.csv")
    result = statewise("predict", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 0
    assert result.stderr == "warning: not in the training data, so scaled by the scale of all series: NEW\n"


def test_too_few_rows_for_one_window_are_refused_with_the_counts(of_levels, statewise, levels):
    levels().filter(symbol="AAA").head(7).write_csv("new.csv")
    result = statewise("predict", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "new.csv: no window fits, it has 7 rows, and the model reads data.window=8 rows without a gap"
    )
    assert "(the longest run has 7)" in result.stderr


def test_exactly_one_window_gives_one_forecast(of_levels, statewise, levels):
    levels().filter(symbol="AAA").head(8).write_csv("new.csv")
    result = statewise("predict", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 0, result.stderr
    assert "none, because the file has no target for a predicted row" in result.stdout
    assert len(pl.read_parquet("predictions.parquet")) == 3


def test_times_without_a_zone_are_told_apart_from_those_of_training(of_levels, statewise, levels):
    levels().with_columns(pl.col("time").str.strip_chars("Z")).write_csv("new.csv")
    result = statewise("predict", of_levels.folder, "--data", "new.csv")
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: the times of new.csv carry no zone and are taken as UTC, those of the training data had one: say "
        "data.timezone\n"
    )
    said = statewise("predict", of_levels.folder, "--data", "new.csv", "data.timezone=UTC")
    assert (said.exit_code, said.stderr) == (0, "")


def test_a_file_written_in_another_way_is_read_with_options(of_levels, statewise, levels):
    text = levels().write_csv(separator=";").replace(".", ",")
    Path("new.csv").write_text(text)
    plain = statewise("predict", of_levels.folder, "--data", of_levels.file, "--out", "one.parquet")
    other = statewise("predict", of_levels.folder, "--data", "new.csv", "--out", "two.parquet", "data.decimal=,")
    assert (plain.exit_code, other.exit_code) == (0, 0), other.stderr
    assert pl.read_parquet("one.parquet").equals(pl.read_parquet("two.parquet"))
    wrong = statewise("predict", of_levels.folder, "--data", "new.csv", "data.decimals=,")
    assert wrong.exit_code == 2
    assert "did you mean" in wrong.stderr


def test_errors_of_the_reader_name_the_option(of_levels, statewise):
    result = statewise("predict", of_levels.folder, "--data", "nothing.csv")
    assert result.exit_code == 2
    assert result.stderr.startswith("--data: no file ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --data FILE, or --stream for bars from standard input\n"),
        (["--data", "x.csv", "--stream"], "give either --data FILE, or --stream for bars from standard input\n"),
        (["--data", "x.csv", "--out", "p.txt"], "the end of --out"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, message, of_levels, statewise):
    result = statewise("predict", of_levels.folder, *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)


def test_the_predictions_of_the_run_itself_are_not_overwritten(of_levels, statewise):
    own = of_levels.folder / "predictions.parquet"
    before = own.read_bytes()
    result = statewise("predict", of_levels.folder, "--data", of_levels.file, "--out", own)
    assert result.exit_code == 2
    assert "holds the test predictions of the run itself" in result.stderr
    assert own.read_bytes() == before


def test_a_prediction_that_is_not_finite_fails_and_leaves_nothing(of_levels, statewise, monkeypatch):
    whole_predict = whole.predict
    monkeypatch.setattr(whole, "predict", lambda *arguments: whole_predict(*arguments) * torch.inf)
    result = statewise("predict", of_levels.folder, "--data", of_levels.file, "--out", "p.parquet")
    assert result.exit_code == 1
    assert result.stderr.startswith("the prediction from 2024-01-01T07:00:00")
    assert list(Path.cwd().iterdir()) == []


def test_a_folder_that_cannot_be_written_ends_in_one_line(of_levels, statewise):
    Path("file").write_text("x")
    result = statewise("predict", of_levels.folder, "--data", of_levels.file, "--out", "file/p.parquet")
    assert result.exit_code == 1
    assert result.stderr.startswith("a file could not be read or written: ")


def test_a_checkpoint_is_enough_to_have_the_model_back(of_returns):
    model, datamodule = restore(of_returns.folder)
    trained = load_trained(of_returns.folder)
    assert trained.form == datamodule.form
    assert trained.scaler.equals(datamodule.scaler)
    inputs = next(datamodule.evaluation_batches("test")).inputs
    with torch.inference_mode():
        assert torch.equal(model(inputs)[0], trained.model(inputs)[0])


def test_a_checkpoint_that_does_not_know_its_data_has_them_read_once_more(of_returns, tmp_path):
    run = shutil.copytree(of_returns.folder, tmp_path / "run")
    (path,) = run.glob("checkpoints/best*.ckpt")
    checkpoint = torch.load(path)
    del checkpoint["File"]["form"]
    torch.save(checkpoint, path)
    assert load_trained(run).form == load_trained(of_returns.folder).form


def test_a_checkpoint_of_another_model_is_refused_in_one_line(of_returns, tmp_path):
    run = shutil.copytree(of_returns.folder, tmp_path / "run")
    config = run / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("d_model: 4", "d_model: 5"))
    with pytest.raises(ValueError, match=r"best\.ckpt does not fit this model: input_proj\.weight is \[") as refused:
        load_trained(run)
    assert "\n" not in str(refused.value)


def test_a_run_without_a_checkpoint_says_so_in_words_of_its_own(of_levels, statewise, tmp_path):
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    (tmp_path / "run" / ".hydra" / "config.yaml").write_text((of_levels.folder / ".hydra" / "config.yaml").read_text())
    result = statewise("predict", tmp_path / "run", "--data", "x.csv")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / 'run'} holds no checkpoint, so no trained model: ")
    for command in (load_trained, restore):
        with pytest.raises(FileNotFoundError, match="holds no checkpoint, so no trained model"):
            command(tmp_path / "run")


def test_a_target_called_like_a_place_keeps_its_column():
    assert prediction_columns(["time", "a", "a_actual"]) == [
        ("time_predicted", "time_actual"),
        ("a", "a_actual"),
        ("a_actual_predicted", "a_actual_actual"),
    ]


def test_an_interruption_is_130():
    def interrupted():
        raise KeyboardInterrupt

    assert exit_code(interrupted) == 130


def test_windows_of_a_new_file_are_those_of_the_data_module(of_returns):
    trained = load_trained(of_returns.folder)
    new = open_new(trained, Asked.by(trained), str(of_returns.file))
    _, datamodule = restore(of_returns.folder)
    starts = datamodule.prepared.part("test").starts
    assert np.isin(starts, new.starts).all()
    assert torch.equal(new.scaled[8:, :4], datamodule.prepared.scaled[8:, :4])
