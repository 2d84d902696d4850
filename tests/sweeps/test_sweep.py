"""Sweeps of real runs (case D20): a trial that diverges, a sweep that is killed, and all of it once in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

TINIER = ["health.policy=off", "trainer.max_epochs=1"]
QUICK = [
    "data=lti", "data.steps=400", "data.window=16", "data.batch_size=64", "model.d_model=4", "model.d_state=4",
    "model.n_layers=1", "scheduler.warmup_steps=2", "logger=csv", "report=false",
]  # fmt: skip


def statuses(folder):
    records = {int(path.parent.name): json.loads(path.read_text()) for path in folder.glob("*/job.json")}
    return {number: records[number]["status"] for number in sorted(records)}


def overrides(folder, number):
    return json.loads((folder / str(number) / "job.json").read_text())["overrides"]


def test_a_diverging_trial_of_a_grid_costs_only_itself_and_is_told_by_the_exit_code(train, tmp_path):
    folder = tmp_path / "sweep"
    outcome = train("-m", "launcher=basic", f"hydra.sweep.dir={folder}", "optimizer.lr=1e-3,1e9,1e-2", *TINIER)
    assert outcome.code == 1
    assert statuses(folder) == {0: "ok", 1: "diverged", 2: "ok"}
    reason = json.loads((folder / "1" / "job.json").read_text())["message"]
    assert "lower optimizer.lr" in reason
    assert reason in (folder / "1" / "train.log").read_text()
    assert "lower optimizer.lr" not in (folder / "0" / "train.log").read_text()
    assert "1 job did not end ok" in outcome.err
    values = [json.loads((folder / name / "job.json").read_text())["objective"] for name in "012"]
    assert values[1] is None
    assert values[0] == json.loads((folder / "0" / "summary.json").read_text())["objective"]["value"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_diverging_trial_of_a_search_is_recorded_as_failed_and_the_search_goes_on(train, tmp_path):
    import optuna

    folder = tmp_path / "sweep"
    search = ["sweep=optuna_small", "sweep.n_trials=3", "optimizer.lr=choice(1e-3,1e9)", "model.d_state=4"]
    outcome = train("-m", "launcher=basic", f"hydra.sweep.dir={folder}", *search, *TINIER)
    assert outcome.code == 1
    assert len(statuses(folder)) == 3
    assert set(statuses(folder).values()) == {"ok", "diverged"}
    trials = optuna.load_study(study_name="statewise", storage=f"sqlite:///{folder / 'study.db'}").trials
    known = {"ok": "COMPLETE", "diverged": "FAIL"}
    assert [trial.state.name for trial in trials] == [known[status] for status in statuses(folder).values()]
    failed = next(trial for trial in trials if trial.state.name == "FAIL")
    assert failed.user_attrs["reason"].startswith("diverged: ")


def test_a_sweep_that_ends_after_its_second_job_goes_on_with_what_is_missing(train, tmp_path, monkeypatch):
    """Killed in the middle of the third job, as far as one process can tell of itself."""
    from statewise.interrupts import Interrupted
    from statewise.task import Forecasting

    folder, step = tmp_path / "sweep", Forecasting.training_step

    def killed(self, batch, batch_idx):
        if (folder / "2").exists():
            raise Interrupted(signal.SIGTERM, "interrupted by SIGTERM")
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Forecasting, "training_step", killed)
        outcome = train("-m", "launcher=basic", f"hydra.sweep.dir={folder}", "seed=0,1,2,3", *TINIER)
    assert outcome.code == 143
    assert statuses(folder) == {0: "ok", 1: "ok", 2: "interrupted"}
    assert "1 job did not end ok and 1 job did not begin" in outcome.err
    again = train(f"sweep.resume={folder}", tiny=False)
    assert again.code == 0, again.err
    assert statuses(folder) == {0: "ok", 1: "ok", 2: "interrupted", 3: "ok", 4: "ok"}
    assert "seed=2" in overrides(folder, 3)
    assert "seed=3" in overrides(folder, 4)


def test_a_run_without_the_metric_that_is_minimised_has_failed_in_a_sweep(train, tmp_path):
    folder = tmp_path / "sweep"
    outcome = train("-m", "launcher=basic", f"hydra.sweep.dir={folder}", "objective=val/f1", *TINIER)
    assert outcome.code == 1
    assert statuses(folder) == {0: "failed"}
    assert "objective=val/f1 has no finite value in this run" in outcome.out


def test_several_processes_inside_a_sweep_of_one_process_are_refused_with_the_way_out(train, tmp_path):
    outcome = train("-m", "launcher=basic", f"hydra.sweep.dir={tmp_path / 'sweep'}", "hardware=ddp_cpu")
    assert outcome.code == 2
    assert "launcher=basic runs every job in this one: use launcher=subprocess" in outcome.out + outcome.err


def test_jobs_that_are_all_refused_make_a_refused_sweep(train, tmp_path):
    outcome = train("-m", "launcher=basic", f"hydra.sweep.dir={tmp_path / 'sweep'}", "data.window=0,1000")
    assert outcome.code == 2
    assert statuses(tmp_path / "sweep") == {0: "failed", 1: "failed"}


def test_four_seeds_and_an_absurd_learning_rate_of_which_one_is_killed(tmp_path):
    """The whole of it, as a user has it: real processes, two at once, signal 9 for one of them, and a second start."""
    folder = tmp_path / "sweep"
    program = [sys.executable, "-m", "statewise", "train", "-m"]
    asked = [*QUICK, *TINIER, "seed=0,1,2,3", 'sweep.also=["optimizer.lr=1e9"]', "launcher.n_jobs=2"]
    here = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "text": True}
    here |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = subprocess.Popen([*program, f"hydra.sweep.dir={folder}", *asked], **here)
    victim = _process_of(folder / "1", asleep_until=time.monotonic() + 120)
    os.kill(victim, signal.SIGKILL)
    out, err = started.communicate(timeout=280)
    assert statuses(folder) == {0: "ok", 1: "failed", 2: "ok", 3: "ok", 4: "diverged"}, out + err
    assert started.returncode == 1
    assert "killed by signal 9 (SIGKILL)" in json.loads((folder / "1" / "job.json").read_text())["message"]
    table = out[out.rindex("job   overrides") :].splitlines()[2:7]
    counts = {status: sum(f" {status} " in line for line in table) for status in ("ok", "diverged", "failed")}
    assert counts == {"ok": 3, "diverged": 1, "failed": 1}
    assert err.strip() == "2 jobs did not end ok; to go on: python train.py -m sweep.resume=sweep"
    again = subprocess.run([*program, "sweep.resume=sweep"], **here, check=False)
    assert again.returncode == 1  # the learning rate is as absurd as before
    assert statuses(folder) == {0: "ok", 1: "failed", 2: "ok", 3: "ok", 4: "diverged", 5: "ok", 6: "diverged"}, again.stdout
    assert "seed=1" in overrides(folder, 5)
    assert "optimizer.lr=1e9" in overrides(folder, 6)


def _process_of(folder, asleep_until):
    """The process that works in a run folder, once it is there."""
    wanted = f"hydra.run.dir={folder}".encode()
    while time.monotonic() < asleep_until:
        for number in (name for name in os.listdir("/proc") if name.isdecimal()):
            try:
                with open(f"/proc/{number}/cmdline", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        return int(number)
            except OSError:
                continue
        time.sleep(0.05)
    raise AssertionError(f"nothing works in {folder}")
