"""Jobs in a queue: submitit gets the very command of an ordinary job, and what is null is left to the cluster."""

import builtins
import json

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from statewise import schemas
from statewise.sweeps import submitted
from statewise.sweeps.job import Job
from statewise.sweeps.submitted import Queued, Submission, parameters


def launcher(*overrides):
    schemas.register()
    OmegaConf.register_new_resolver("new_folder", str, replace=True)
    with initialize_config_module("statewise.conf", version_base="1.3"):
        return compose("train", overrides=list(overrides)).launcher


def test_the_settings_reach_the_queue_under_submitits_names():
    given = ["launcher.partition=gpu", "launcher.nodes=2", "launcher.timeout=90", "launcher.setup=['module load cuda']"]
    assert parameters(launcher("launcher=slurm", *given), "s-0") == {
        "slurm_partition": "gpu",
        "slurm_setup": ["module load cuda"],
        "nodes": 2,
        "tasks_per_node": 1,
        "timeout_min": 2,
        "slurm_signal_delay_s": 30,
        "name": "s-0",
    }


def test_every_setting_is_one_that_submitit_knows():
    """In earnest: submitit writes the batch script, and no SLURM is needed for that."""
    from submitit.slurm.slurm import _make_sbatch_string

    given = {
        "partition": "p", "account": "a", "qos": "q", "constraint": "c", "exclude": "e", "gpus_per_node": 4, "cpus_per_task": 8,
        "mem_gb": 64, "nodes": 2, "tasks_per_node": 4, "setup": "['module load x']",
    }  # fmt: skip
    overrides = [f"launcher.{key}={value}" for key, value in given.items()]
    overrides.append("launcher.additional_parameters={mail-user: me}")
    found = parameters(launcher("launcher=slurm", *overrides), "name")
    settings = {key.removeprefix("slurm_"): value for key, value in found.items()}
    settings["time"], settings["mem"], settings["ntasks_per_node"] = (
        settings.pop("timeout_min"), f"{settings.pop('mem_gb')}GB", settings.pop("tasks_per_node"),
    )  # fmt: skip
    settings["job_name"] = settings.pop("name")
    text = _make_sbatch_string(command="true", folder="/f", **settings)
    for line in ("--partition=p", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--mail-user=me", "module load x"):
        assert line in text


def test_a_job_whose_time_is_over_goes_on_from_where_it_stopped(tmp_path):
    job = Job(0, [], tmp_path, ["python", "-m", "statewise", "train", "resume=x", "seed=1"], {})
    delayed = Submission(job, 5.0).checkpoint()
    assert delayed.function.job.command == ["python", "-m", "statewise", "train", "seed=1", "resume=auto"]


class FromTheQueue:
    """What submitit hands back for a job."""

    job_id, state = "12_3", "OUT_OF_MEMORY"

    def __init__(self, *codes, error=None):
        self.codes = list(codes)
        self.error = error
        self.cancelled = False

    def done(self):
        return True

    def results(self):
        if self.error:
            raise self.error
        return self.codes

    def cancel(self, check=True):
        self.cancelled = True


@pytest.mark.parametrize(("codes", "code"), [((0,), 0), ((0, 0), 0), ((0, 143), 143), ((1, 0), 1), ((-9,), -9)])
def test_the_code_is_that_of_the_first_process_that_failed(codes, code):
    queued = Queued(FromTheQueue(*codes))
    assert queued.has_ended()
    assert queued.code == code


def test_a_job_that_the_queue_ended_says_so():
    said = "trace:\n---\nsubmitit.UncompletedJobError: timed-out too often\n---\nlogs:\n - /path"
    queued = Queued(FromTheQueue(error=RuntimeError(said)))
    assert queued.has_ended()
    assert queued.code is None
    assert queued.gone == "the queue ended it (job 12_3, OUT_OF_MEMORY): timed-out too often"


def test_a_job_is_cancelled_in_the_queue():
    job = FromTheQueue()
    Queued(job).ask_to_end(15)
    assert job.cancelled


def test_without_submitit_one_line_says_what_to_install(sweep, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name == "submitit":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    swept = sweep("seed=1", "launcher=submitit_local")
    assert swept.code == 2
    assert swept.err == "launcher: submitit is not installed; a queue needs pip install 'statewise[slurm]'\n"


@pytest.mark.slow
def test_the_local_queue_runs_real_jobs(train, tmp_path):
    """Two runs, one of which diverges, through submitit's own processes."""
    folder = tmp_path / "sweep"
    outcome = train(
        "-m", f"hydra.sweep.dir={folder}", "launcher=submitit_local", "optimizer.lr=1e-3,1e9", "health.policy=off",
    )  # fmt: skip
    assert outcome.code == 1
    records = [json.loads((folder / name / "job.json").read_text()) for name in "01"]
    assert [record["status"] for record in records] == ["ok", "diverged"]
    assert records[0]["objective"] == json.loads((folder / "0" / "summary.json").read_text())["objective"]["value"]
    assert "lower optimizer.lr" in records[1]["message"]
    assert "lower optimizer.lr" in (folder / "1" / "job.log").read_text()


def test_fake_jobs_go_through_the_local_queue(sweep, fake_jobs, monkeypatch):
    monkeypatch.setattr(submitted, "POLL", 0.05)
    swept = sweep("launcher=submitit_local", "seed=1,109,101", "launcher.n_jobs=3")
    assert swept.code == 1
    assert swept.statuses == ["ok", "failed", "diverged"]
    assert swept.records[1]["message"].startswith("killed by signal 9 (SIGKILL)")


def test_a_machine_without_slurm_is_told_so_before_anything_is_submitted(sweep, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    swept = sweep("seed=1", "launcher=slurm")
    assert swept.code == 2
    assert swept.err.startswith("launcher=slurm: there is no srun here; start it on a login node")
    assert len(swept.err.strip().splitlines()) == 1
