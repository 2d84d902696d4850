"""From a command line to an exit code: what is refused in one line, where relative paths lead, what is written where."""

import errno
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra.core.hydra_config import HydraConfig

from statewise import launch
from statewise.folders import new_folder
from statewise.train import main

ROOT = Path(__file__).parents[1]


def test_two_runs_at_the_same_instant_get_two_folders(tmp_path):
    wanted = str(tmp_path / "outputs" / "2025-01-31" / "12-00-00")
    assert [new_folder(wanted) for _ in range(3)] == [wanted, f"{wanted}-2", f"{wanted}-3"]


def test_a_folder_that_holds_a_run_is_not_written_to_again(train):
    outcome = train("trainer.stop_after_steps=1")
    before = (outcome.folder / ".hydra" / "config.yaml").read_bytes()
    again = train(f"hydra.run.dir={outcome.folder}", "seed=5")
    assert again.code == 2
    assert "already holds a run; choose another hydra.run.dir" in again.err
    assert (outcome.folder / ".hydra" / "config.yaml").read_bytes() == before


REFUSED = {
    "model.d_state=0": "model.d_state must be at least 1, got 0",
    "data.window=0": "data.window must be at least 1, got 0",
    "data.batch_size=0": "data.batch_size must be at least 1, got 0",
    "data.split=[0.99,0.001,0.009]": "no window fits into the val part",
    "data.split=[1.0,0.0,0.0]": "no window fits into the val part",
    "data.window=1000": "window",
    "task.supervision=lst": "did you mean last?",
    "task.loss=mes": "did you mean mse?",
    "model.activation=gelo": "did you mean gelu",
    "hardware.precision=16-mixed": "hardware.precision=16-mixed does not exist on a CPU; use bf16-mixed",
    "hardware.precision=65-true": "'65-true'",
    "trainer.gradient_clip_val=-1": "trainer.gradient_clip_val must be above 0, or null for no clipping, got -1.0",
    "trainer.limit_train_batches=0": "trainer.limit_train_batches=0 leaves no batch to train on",
    "health.policy=eror": "health.policy must be one of error, warn, off, got 'eror'; did you mean error?",
    "trainer.max_epochs=0": "trainer.max_epochs must be at least 1, got 0",
    "trainer.stop_after_steps=0": "trainer.stop_after_steps must be at least 1 or null, got 0",
    "model.anchor=first": "model.anchor",
    "data.path=x": "there is no configuration key 'data.path'",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line_with_exit_code_2(override, train):
    outcome = train(override)
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    assert REFUSED[override] in lines[0]
    assert outcome.code == 2
    assert "Traceback" not in outcome.out + outcome.err


def test_a_health_pattern_that_matches_nothing_stops_the_run_before_its_first_step(train):
    outcome = train("health.frozen=[nothing.*]")
    assert outcome.code == 1
    assert "`nothing.*` matches nothing" in outcome.err
    assert outcome.summary["steps"] == 0


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


ROWS = "\n".join(f"2024-01-01T{hour:02d}:00:00,{hour},{hour * 2}" for hour in range(24))
FILES = {
    "missing": (None, "no file"),
    "empty": ("", "is empty"),
    "header only": ("time,a,b\n", "no rows"),
    "text in a number": (f"time,a,b\n{ROWS}\n2024-01-02T00:00:00,abc,1\n", "abc"),
    "fewer rows than a window": (f"time,a,b\n{ROWS}\n", "window"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(name, train, tmp_path):
    text, said = FILES[name]
    if text is not None:
        write(tmp_path / "bars.csv", text)
    outcome = train("data=file", "data.path=bars.csv", tiny=False)
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    assert str(tmp_path / "bars.csv") in lines[0] or said in lines[0]
    assert said in lines[0]
    assert outcome.code == 2


def test_a_directory_and_an_unknown_target_are_refused_in_one_line(train, tmp_path):
    (tmp_path / "folder").mkdir()
    outcome = train("data=file", "data.path=folder", tiny=False)
    assert (outcome.code, "folder" in outcome.err, len(outcome.err.strip().splitlines())) == (2, True, 1)
    write(tmp_path / "bars.csv", f"time,price,volume\n{ROWS}\n")
    outcome = train("data=file", "data.path=bars.csv", "data.targets=[prise]", tiny=False)
    assert outcome.code == 2
    assert "prise" in outcome.err
    assert "price" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def sine_file(folder: Path) -> Path:
    rows = "\n".join(f"{i},{math.sin(i / 5):.6f}" for i in range(300))
    return write(folder / "bars.csv", f"t,value\n{rows}\n")


SMALL_FILE = [
    "data=file",
    "data.path=bars.csv",
    "data.window=8",
    "data.batch_size=64",
    "model.d_model=4",
    "model.d_state=4",
]


@pytest.mark.parametrize("chdir", ["true", "false"])
def test_a_relative_path_means_the_folder_where_the_command_was_started(chdir, train, tmp_path):
    sine_file(tmp_path)
    outcome = train(*SMALL_FILE, "trainer=smoke", f"hydra.job.chdir={chdir}", "logger=csv", "report=false", tiny=False)
    assert outcome.code == 0, outcome.err
    assert outcome.summary["data"] == "file"


def test_a_relative_path_means_the_same_inside_a_sweep(train, tmp_path):
    sine_file(tmp_path)
    sweep = f"hydra.sweep.dir={tmp_path / 'sweep'}"
    given = ["trainer=smoke", "-m", "launcher=basic", sweep, "hydra.job.chdir=true", "logger=csv", "report=false"]
    outcome = train(*SMALL_FILE, *given, tiny=False)
    assert outcome.code == 0, outcome.err


def test_an_output_folder_that_cannot_be_made_is_named(train, tmp_path):
    write(tmp_path / "file", "in the way")
    outcome = train(f"hydra.run.dir={tmp_path / 'file' / 'run'}")
    assert outcome.code == 2
    assert "the output folder cannot be written" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_a_read_only_outputs_folder_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def read_only(self, *arguments, **keywords):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", read_only)
    assert main(["data=lti"]) == 2
    said = capsys.readouterr().err
    assert "the output folder cannot be written" in said
    assert "Read-only file system" in said
    assert not HydraConfig.initialized()  # nothing of the failed command is left in this process


def test_a_disk_that_fills_up_during_a_run_ends_it_with_one_line(train, monkeypatch):
    def disk_full(*arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", disk_full)
    outcome = train()
    assert outcome.code == 1
    assert "No space left on device" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert outcome.summary["status"] == "failed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_gpu_that_is_not_there_is_refused_in_one_line(train):
    outcome = train("hardware=gpu")
    assert outcome.code == 2
    assert "hardware.accelerator=gpu: PyTorch sees no CUDA device here; use hardware=cpu" in outcome.err


def test_help_and_the_composed_configuration_are_printed_without_importing_lightning():
    """In a process of its own: this one has imported everything."""
    script = (
        "import sys; from statewise.train import main; code = main(sys.argv[1:]);"
        "sys.exit(code or ('lightning' in sys.modules and 3) or ('torch' in sys.modules and 4))"
    )
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "python train.py data=file data.path=bars.csv" in done.stdout
    assert "data:       air_quality, file, lti, market" in done.stdout


def test_without_an_installation_one_line_says_how_to_install(tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / "train.py")],  # -S: no site-packages, so nothing is installed
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 2
    assert "run `make train`" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_installed_command_is_the_same_program_from_any_folder(tmp_path):
    command = Path(sys.executable).with_name("statewise")
    done = subprocess.run([command, "train", "model.d_stat=8"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("there is no configuration key 'model.d_stat'; did you mean model.d_state")


def test_options_may_stand_anywhere_among_the_overrides():
    given = ["model=mine", "--config-dir", "conf", "seed=1", "-m", "~callbacks.dashboard", "--cfg=job"]
    wanted = ["--config-dir", "conf", "-m", "--cfg=job", "model=mine", "seed=1", "~callbacks.dashboard"]
    assert launch.options_first(given) == wanted
    assert launch.options_first(["seed=1", "--cfg"]) == ["--cfg", "seed=1"]
