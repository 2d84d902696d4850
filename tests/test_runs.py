"""The run folder: what is written reads back equal, and what is missing or damaged ends in one clear line."""

import json
import math
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl
import pytest
import torch

from statewise import runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "outputs" / "2025-03-01" / "10-00-00"
    (path / ".hydra").mkdir(parents=True)
    (path / ".hydra" / "config.yaml").write_text("seed: 3\nmodel:\n  d_state: 8\n  width: ${model.d_state}\n")
    (path / ".hydra" / "overrides.yaml").write_text("- model.d_state=8\n- seed=3\n")
    return path


def test_every_digit_of_a_float_survives_the_summary(tmp_path: Path) -> None:
    values = {"a": 1 + 1e-9, "b": np.float64(0.1) + 0.2, "c": torch.tensor(1 / 3, dtype=torch.float64)}
    runs.write_json(tmp_path / "x.json", values)
    read = json.loads((tmp_path / "x.json").read_text())
    assert read == {"a": 1 + 1e-9, "b": 0.1 + 0.2, "c": 1 / 3}


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    runs.write_json(tmp_path / "x.json", {"a": [math.nan, np.inf], "b": np.array([1.0, -np.inf]), 3: (True, Path("p"))})
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == {"a": [None, None], "b": [1.0, None], "3": [True, "p"]}
    assert "NaN" not in text
    assert "Infinity" not in text


def fill_up(file: BinaryIO) -> None:
    file.write(b"half of i")
    raise RuntimeError("disk")


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    runs.write_json(path, {"status": "ok"})
    with pytest.raises(RuntimeError, match="disk"), runs.atomic_file(path) as file:
        fill_up(file)
    assert json.loads(path.read_text()) == {"status": "ok"}
    assert os.listdir(tmp_path) == ["summary.json"]


def test_predictions_read_back_in_long_form_with_unobserved_truth_null(folder: Path) -> None:
    times = np.array([["2024-01-01T00:01", "2024-01-01T00:02"], ["2024-01-01T00:02", "2024-01-01T00:03"]], "M8[ns]")
    truth = np.arange(8.0).reshape(2, 2, 2)
    truth[1, 0, 1] = np.nan
    runs.write_predictions(
        folder / runs.PREDICTIONS,
        series=np.array(["a", "b"]),
        times=times,
        names=["x", "y"],
        truth=truth,
        prediction=truth + 0.5,
        baselines={"linear": truth - 1},
    )
    frame = runs.load_run(folder).predictions
    assert frame is not None
    assert frame.columns == ["series", "time", "variable", "step", "target", "prediction", "linear"]
    assert frame["series"].to_list() == ["a"] * 4 + ["b"] * 4
    assert frame["variable"].to_list() == ["x", "y"] * 4
    assert frame["step"].to_list() == [1, 1, 2, 2] * 2
    assert frame["time"].to_numpy().tolist() == times.reshape(-1).repeat(2).tolist()
    assert frame["target"].to_list() == [0.0, 1.0, 2.0, 3.0, 4.0, None, 6.0, 7.0]
    assert frame["prediction"][0] == 0.5


def test_row_numbers_serve_as_time_where_the_data_has_none(folder: Path) -> None:
    runs.write_predictions(
        folder / runs.PREDICTIONS,
        series=np.array(["", ""]),
        times=np.array([[5], [6]]),
        names=["x"],
        truth=np.zeros((2, 1, 1)),
        prediction=np.ones((2, 1, 1)),
    )
    frame = runs.load_run(folder).predictions
    assert frame is not None
    assert frame["time"].to_list() == [5, 6]


def test_predictions_of_another_shape_are_refused(folder: Path) -> None:
    arrays = {"series": np.array(["a"]), "times": np.array([[1]]), "names": ["x"], "truth": np.zeros((1, 1, 1))}
    with pytest.raises(ValueError, match="prediction must have the shape of truth"):
        runs.write_predictions(folder / "p", **arrays, prediction=np.zeros((1, 1, 2)))
    with pytest.raises(ValueError, match="needs 1 series"):
        runs.write_predictions(folder / "p", **{**arrays, "names": ["x", "y"]}, prediction=np.zeros((1, 1, 1)))


def test_the_history_of_the_callbacks_reads_back_equal(folder: Path) -> None:
    matrix = np.array([[1.0, np.nan], [0.25, 3e-17]])
    spectrum = [
        (0, "ssm_0", np.array([0.5 + 0.5j, 0.5 - 0.5j])),
        (0, "ssm_1", np.array([0.1 + 0j])),
        (4, "ssm_0", np.array([0.9, -0.9])),
    ]
    runs.write_history(folder, gradient_norms=([1, 5], ["a.A", "a.B"], matrix), eigenvalues=spectrum)
    run = runs.load_run(folder)
    assert run.gradient_norms is not None
    assert run.gradient_norms.steps.tolist() == [1, 5]
    assert run.gradient_norms.names == ["a.A", "a.B"]
    np.testing.assert_array_equal(run.gradient_norms.matrix, matrix)
    assert [(entry.step, entry.layer) for entry in run.eigenvalues] == [(0, "ssm_0"), (0, "ssm_1"), (4, "ssm_0")]
    for entry, (_, _, values) in zip(run.eigenvalues, spectrum, strict=True):
        np.testing.assert_array_equal(entry.values, values)


def test_a_run_that_broke_off_loads_with_none_for_what_it_never_wrote(folder: Path) -> None:
    runs.write_history(folder)
    run = runs.load_run(folder)
    assert (run.summary, run.health, run.metrics, run.predictions, run.gradient_norms) == (None,) * 5
    assert run.eigenvalues == []
    assert run.best is None
    assert run.last is None


def test_the_configuration_reads_back_plain_and_resolved(folder: Path) -> None:
    run = runs.load_run(str(folder))
    assert run.config == {"seed": 3, "model": {"d_state": 8, "width": 8}}
    assert type(run.config["model"]) is dict
    assert run.overrides == ["model.d_state=8", "seed=3"]


def test_a_configuration_that_only_hydra_can_resolve_still_reads(folder: Path) -> None:
    (folder / ".hydra" / "config.yaml").write_text("path: ${unknown_resolver:x}\n")
    assert runs.load_run(folder).config == {"path": "${unknown_resolver:x}"}


def test_metrics_read_back_as_numbers_with_null_where_nothing_was_logged(folder: Path) -> None:
    (folder / runs.METRICS).write_text(
        "epoch,lr,step,train/loss,val/loss\n0,0.001,1,1.000000001,\n0,,1,,nan\n1,0.0001,2,inf,0.25\n"
    )
    metrics = runs.load_run(folder).metrics
    assert metrics is not None
    assert metrics.columns == ["epoch", "lr", "step", "train/loss", "val/loss"]
    assert metrics.schema["step"] == pl.Int64
    assert metrics["train/loss"].to_list() == [1 + 1e-9, None, math.inf]
    assert math.isnan(metrics["val/loss"][1])
    assert metrics["val/loss"][0] is None


def test_the_newest_best_and_last_checkpoint_are_found(folder: Path) -> None:
    checkpoints = folder / runs.CHECKPOINTS
    checkpoints.mkdir()
    for age, name in enumerate(["last-v1.ckpt", "last.ckpt", "best-e001.ckpt"]):
        (checkpoints / name).touch()
        os.utime(checkpoints / name, (1000 - age, 1000 - age))
    run = runs.load_run(folder)
    assert run.best == checkpoints / "best-e001.ckpt"
    assert run.last == checkpoints / "last-v1.ckpt"


def test_a_wrong_folder_is_answered_with_the_nearest_run_folders(folder: Path) -> None:
    missing = folder.with_name("10-00-01")
    with pytest.raises(FileNotFoundError, match=r"10-00-01 does not exist; nearest run folders: .*10-00-00") as error:
        runs.load_run(missing)
    assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"outputs is not a run folder .*10-00-00"):
        runs.load_run(folder.parent.parent)


def test_a_folder_without_any_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no run folder under"):
        runs.load_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no run folder under"):
        runs.load_run("/no-such-folder-anywhere/run")


@pytest.mark.parametrize("content", ['{"status": ', "[1]"])
def test_a_damaged_summary_is_one_line_that_names_the_file(folder: Path, content: str) -> None:
    (folder / runs.SUMMARY).write_text(content)
    with pytest.raises(ValueError, match=r"summary\.json") as error:
        _ = runs.load_run(folder).summary
    assert "\n" not in str(error.value)
