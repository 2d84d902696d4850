"""Every job of a sweep is a process of its own: what becomes of one costs no other one anything."""

import csv
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from statewise.sweeps import launchers
from statewise.train import main

pytestmark = pytest.mark.usefixtures("fake_jobs")


def test_jobs_that_are_killed_exit_or_diverge_cost_only_themselves(sweep):
    swept = sweep("seed=1,109,107,101,170,2", "launcher.n_jobs=3")
    assert swept.code == 1
    assert swept.statuses == ["ok", "failed", "failed", "diverged", "failed", "ok"]
    messages = [record["message"] for record in swept.records.values()]
    assert messages[1].startswith("killed by signal 9 (SIGKILL)")
    assert messages[2].startswith("ended with exit code 7; its last line: asked for seed=107")
    assert messages[3] == "the training loss is nan"
    assert messages[4] == "ended without a result: no summary.json in its folder"
    assert [record["exit_code"] for record in swept.records.values()] == [0, 137, 7, 1, 1, 0]


def test_every_job_has_a_log_of_its_own_and_the_terminal_one_line_as_it_starts_and_as_it_ends(sweep):
    swept = sweep("seed=1,101")
    lines = swept.out.splitlines()
    assert [line for line in lines if "started" in line] == ["job 0 started · seed=1", "job 1 started · seed=101"]
    assert sum(line.startswith("[1/2] job 0 ok · seed=1 · val/mse 0.334") for line in lines) == 1
    assert sum(line.startswith("[2/2] job 1 diverged · seed=101") and "the training loss is nan" in line for line in lines) == 1
    assert "asked for" not in swept.out
    assert (swept.folder / "1" / "job.log").read_text().endswith("seed=101\n")


def test_the_objective_comes_back_with_all_its_digits_and_none_is_never_a_number(sweep):
    swept = sweep("seed=1,160")
    assert swept.records[0]["objective"] == 0.001 + 1 / 3
    assert swept.records[1]["objective"] is None
    assert "objective=val/f1 has no finite value" in swept.records[1]["message"]
    assert swept.code == 1
    with (swept.folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["status"], row["objective"]) for row in rows] == [("ok", repr(0.001 + 1 / 3)), ("failed", "")]


def test_the_end_names_the_jobs_that_failed_and_the_command_that_goes_on(sweep):
    swept = sweep("seed=1,101")
    assert "1 job did not end ok" in swept.err
    assert "python train.py -m sweep.resume=sweep" in swept.err
    assert len(swept.err.strip().splitlines()) == 1
    assert "1  diverged: the training loss is nan" in swept.out


def test_a_sweep_of_which_all_is_well_ends_with_0_and_without_a_word_of_complaint(sweep):
    swept = sweep("seed=1,2")
    assert (swept.code, swept.err) == (0, "")


def test_a_job_over_its_time_is_ended_and_the_others_go_on(sweep):
    swept = sweep("seed=150,1", "launcher.timeout=0.5")
    assert swept.statuses == ["interrupted", "ok"]
    assert swept.records[0]["message"] == "stopped after launcher.timeout=0.5 seconds"
    assert swept.code == 1


@pytest.mark.parametrize(("name", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_jobs_that_run_and_the_sweep_says_how_to_go_on(name, code, sweep, tmp_path):
    threading.Thread(target=_signalled_once_there_is, args=(tmp_path / "sweep" / "0" / "job.log", name)).start()
    swept = sweep("seed=150,2", "sweep.also=['seed=3','seed=4']")
    assert swept.code == code
    assert swept.statuses == ["interrupted"]
    assert swept.records[0]["message"] == f"interrupted by {name.name}"
    assert "1 job did not end ok and 3 jobs did not begin" in swept.err


def _signalled_once_there_is(log, name):
    for _ in range(6000):
        if log.is_file() and log.read_text():
            os.kill(os.getpid(), name)
            return
        time.sleep(0.01)


def test_jobs_see_gpus_of_their_own_only_where_they_compute_on_them(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    from omegaconf import OmegaConf

    share = launchers.SubprocessLauncher.share
    gpu = OmegaConf.create({"accelerator": "gpu", "devices": "auto", "threads": None})
    cpu = OmegaConf.create({"accelerator": "cpu", "devices": 2, "threads": None})
    assert share(None, gpu, 1, 2) == {"CUDA_VISIBLE_DEVICES": "6,7"}
    assert share(None, cpu, 1, 2) == {"OMP_NUM_THREADS": "2"}
    assert share(None, OmegaConf.merge(cpu, {"threads": 3}), 1, 2) == {}


def test_a_job_is_told_what_the_command_line_says_of_hydra_and_of_configuration(sweep, monkeypatch, tmp_path):
    given = []
    real = launchers.command

    def noted(overrides, folder, **more):
        given.append(more)
        return real(overrides, folder, **more)

    monkeypatch.setattr(launchers, "command", noted)
    (tmp_path / "mine").mkdir()
    sweep("seed=1", "hydra.job.chdir=true", "--config-dir", str(tmp_path / "mine"))
    assert given[0]["options"] == ["--config-dir", str(tmp_path / "mine")]
    assert "hydra.job.chdir=true" in given[0]["of_hydra"]


def test_a_subfolder_that_the_command_names_is_kept(sweep):
    swept = sweep("seed=1,2", "hydra.sweep.subdir=seed_${seed}")
    assert {path.name for path in swept.folder.iterdir() if path.is_dir()} == {"seed_1", "seed_2"}


def test_sweeps_started_in_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hydra.core.utils.datetime", _StandsStill)
    for _ in range(4):
        assert main(["-m", "seed=1"]) == 0
    folders = sorted(path.parent.name for path in Path("outputs").glob("*/*/multirun.yaml"))
    assert folders == ["12-00-00", "12-00-00-2", "12-00-00-3", "12-00-00-4"]
    assert len(list(Path("outputs").glob("*/*/*/job.json"))) == 4


class _StandsStill:
    @staticmethod
    def now():
        from datetime import datetime

        return datetime(2025, 1, 31, 12)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("launcher.n_job=2", "there is no configuration key 'launcher.n_job'; did you mean launcher.n_jobs"),
        ("launcher.n_jobs=two", "launcher.n_jobs must be a whole number, got 'two'"),
        ("launcher.n_jobs=0", "launcher.n_jobs must be at least 1, got 0"),
        ("launcher.timeout=0", "launcher.timeout must be above 0 seconds, or null for no limit, got 0"),
        ("launcher=subproces", "there is no launcher 'subproces'; did you mean subprocess? launcher can be basic, slurm"),
        ("sweep.resum=x", "there is no configuration key 'sweep.resum'; did you mean sweep.resume"),
        ("sweep.also=3", "sweep.also"),
        ("model.d_stat=3", "there is no configuration key 'model.d_stat'; did you mean model.d_state"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_line_before_any_job(override, said, sweep):
    swept = sweep("seed=1,2", override)
    assert swept.code == 2
    assert said in swept.err
    assert len(swept.err.strip().splitlines()) == 1
    assert not swept.folder.exists() or not any(swept.folder.glob("*/job.json"))


def test_a_job_that_was_interrupted_goes_on_from_its_checkpoint_and_one_that_failed_begins_anew(sweep, monkeypatch):
    first = sweep("seed=150,107", "launcher.timeout=0.5")
    assert first.statuses == ["interrupted", "failed"]
    for number in ("0", "1"):
        (first.folder / number / "checkpoints").mkdir()
        (first.folder / number / "checkpoints" / "last.ckpt").write_bytes(b"")
    given, real = [], launchers.command

    def noted(overrides, folder, **more):
        given.append(overrides)
        return real(["seed=1"], folder, **more)

    monkeypatch.setattr(launchers, "command", noted)
    again = sweep(f"sweep.resume={first.folder}")
    assert again.code == 0
    assert [entry for entry in given[0] if entry.startswith("resume=")] == [f"resume={first.folder / '0'}"]
    assert not any(entry.startswith("resume=") for entry in given[1])
    assert not any("resume" in entry for entry in again.records[2]["overrides"])  # it is the same job as before
