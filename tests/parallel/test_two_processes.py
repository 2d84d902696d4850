"""Two processes do what one does: the same losses, metrics, predictions, findings and checkpoints, in one folder."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

pytestmark = pytest.mark.timeout(600)  # the first test waits for all the runs of the script


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs of the script."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, str(Path(__file__).with_name("two_processes.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def said(runs: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Exit code, output and errors of a run in each of the processes that did it."""
    told = [json.loads((runs / f"{rank}.json").read_text()) for rank in (0, 1)]
    return lambda name: [of_one[name] for of_one in told if name in of_one]


def logged(folder: Path) -> pl.DataFrame:
    return pl.read_csv(folder / "metrics.csv", infer_schema_length=None)


def losses(folder: Path) -> np.ndarray:
    return logged(folder)["train/loss"].drop_nulls().to_numpy()


def predictions(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "predictions.parquet")


def numbers(frame: pl.DataFrame) -> np.ndarray:
    return frame.select(name for name, dtype in frame.schema.items() if dtype.is_float()).to_numpy()


def weights(folder: Path, name: str = "last.ckpt") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "checkpoints" / name)["state_dict"]
    return found


def furthest(first: Path, second: Path) -> float:
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


TRAINED = pytest.mark.parametrize("case", ["uneven", "masked", "streams"])


@TRAINED
def test_two_processes_train_with_the_losses_of_one(runs: Path, case: str) -> None:
    one, two = losses(runs / f"{case}-1"), losses(runs / f"{case}-2")
    assert len(one) == len(two) >= 20
    assert np.abs(one - two).max() < 1e-9
    assert np.ptp(one) > 1e-3  # it trains
    assert furthest(runs / f"{case}-1", runs / f"{case}-2") < 1e-9


@TRAINED
def test_every_logged_metric_is_that_of_all_processes(runs: Path, case: str) -> None:
    one, two = logged(runs / f"{case}-1"), logged(runs / f"{case}-2")
    assert one.columns == two.columns
    assert one.height == two.height
    for name in ("train/loss_epoch", "val/loss", "val/mse", "val/mae", "test/mse", "test/mae"):
        assert np.nanmax(np.abs(one[name].to_numpy() - two[name].to_numpy())) < 1e-9, name


@TRAINED
def test_the_test_windows_are_predicted_once_each_and_in_their_order(runs: Path, case: str) -> None:
    one, two = predictions(runs / f"{case}-1"), predictions(runs / f"{case}-2")
    assert one.columns == two.columns
    assert one["time"].equals(two["time"])
    assert np.nanmax(np.abs(numbers(one) - numbers(two))) < 1e-9


def test_a_batch_without_observed_targets_is_passed_over_by_all_together(runs: Path) -> None:
    lines = [
        [
            line.partition("WARNING ")[2]
            for line in (runs / f"masked-{n}" / "train.log").read_text().splitlines()
            if "skipped" in line
        ]
        for n in (1, 2)
    ]
    assert lines[0] == lines[1]
    assert "training batches held no observed target" in lines[0][0]


@pytest.mark.parametrize("split", ["test", "val"])
def test_the_same_checkpoint_has_the_same_errors_by_two_processes_as_by_one(
    said: Callable[[str], list[dict[str, Any]]], split: str
) -> None:
    one, (two, other) = json.loads(said(f"evaluate-{split}-1")[0]["out"]), said(f"evaluate-{split}-2")
    assert other == {"code": 0, "out": "", "err": ""}
    found = json.loads(two["out"])
    assert found["windows"] == one["windows"]
    assert found["baselines"] == one["baselines"]
    for key in ("mse", "mae", "mse_original_units", "mae_original_units"):
        assert found["test"][key] == pytest.approx(one["test"][key], rel=1e-12, abs=0)
        for target, errors in one["test"]["per_target"].items():
            assert found["test"]["per_target"][target][key] == pytest.approx(errors[key], rel=1e-12, abs=0)


@TRAINED
def test_a_healthy_run_is_healthy_in_two_processes(runs: Path, case: str) -> None:
    health = json.loads((runs / f"{case}-2" / "health.json").read_text())
    assert (health["verdict"], health["findings"]) == ("healthy", [])


@TRAINED
def test_there_is_one_folder_and_only_the_first_process_speaks(
    runs: Path, said: Callable[[str], list[dict[str, Any]]], case: str
) -> None:
    first, second = said(f"{case}-2")
    assert second == {"code": 0, "out": "", "err": ""}
    assert first["out"].count("training health: healthy") == 1
    names = {path.name for path in (runs / f"{case}-1").iterdir()}
    assert {path.name for path in (runs / f"{case}-2").iterdir()} == names
    assert (runs / f"{case}-2" / "train.log").read_text().count("parameters, ") == 1


@pytest.mark.parametrize("case", ["uneven", "streams"])
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 2)])
def test_a_run_that_was_stopped_goes_on_with_another_number_of_processes(
    runs: Path, case: str, first: int, second: int
) -> None:
    whole, resumed = runs / f"{case}-1", runs / f"{case}-resumed-from-{first}-{second}"
    rest = losses(resumed)
    assert len(rest) == len(losses(whole)) - 6
    assert np.abs(rest - losses(whole)[6:]).max() < 1e-9
    # Also of the epoch in whose middle it was stopped.
    of_epochs = logged(resumed)["train/loss_epoch"].drop_nulls().to_numpy()
    assert np.abs(of_epochs - logged(whole)["train/loss_epoch"].drop_nulls().to_numpy()[-len(of_epochs) :]).max() < 1e-9
    assert furthest(whole, resumed) < 1e-9


@pytest.mark.parametrize("case", ["uneven", "streams"])
def test_a_run_of_two_processes_resumes_to_the_bit(runs: Path, case: str) -> None:
    assert furthest(runs / f"{case}-2", runs / f"{case}-resumed-from-2-2") == 0.0


def test_a_signal_to_one_process_stops_both_after_the_same_step_with_a_checkpoint(
    runs: Path, said: Callable[[str], list[dict[str, Any]]]
) -> None:
    first, second = said("signal-2")
    assert (first["code"], second["code"]) == (143, 143)
    assert first["err"].startswith("interrupted by SIGTERM after step 6; continue with: ")
    assert second["err"] == ""
    assert torch.load(runs / "signal-2" / "checkpoints" / "last.ckpt")["global_step"] == 6
    assert furthest(runs / "after-signal-2", runs / "uneven-2") == 0.0


@pytest.mark.parametrize(
    ("case", "code", "line"),
    [
        ("diverged", 1, "the training loss is nan at step 2"),
        ("refused", 2, "data.batch_size=1 is that of all processes together, and there are 2: it must be at least that"),
        ("taken", 2, "already holds a run"),
    ],
)
def test_what_ends_all_processes_is_one_line_of_the_first(
    said: Callable[[str], list[dict[str, Any]]], case: str, code: int, line: str
) -> None:
    first, second = said(f"{case}-2")
    assert (first["code"], second["code"]) == (code, code)
    assert line in first["err"]
    assert first["err"].count("\n") == 1
    assert second["err"] == ""


def test_a_process_that_fails_alone_ends_the_other_in_one_line_too(said: Callable[[str], list[dict[str, Any]]]) -> None:
    first, second = said("lost-2")
    assert (first["code"], second["code"]) == (1, 1)
    assert first["err"] == "another process of this run has ended or does not answer; its own last words say why\n"
    assert second["err"].splitlines()[-1] == "MemoryError: there is no room for this"
