"""The command of a job: what the sweep was told, without what only a sweep needs."""

import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from statewise.sweeps.job import command, fair_share_of_threads, options_of_jobs, quoted


def test_a_job_is_an_ordinary_run_in_a_folder_that_is_given():
    typed = command(["seed=1", "model=gru"], Path("/o/0"), options=["--config-dir", "mine"], of_hydra=["hydra.job.chdir=true"])
    wanted = ["seed=1", "model=gru", "hydra.job.chdir=true", "hydra.run.dir=/o/0"]
    assert typed == [sys.executable, "-m", "statewise", "train", "--config-dir", "mine", *wanted]


@pytest.mark.parametrize(
    "override",
    [
        "hydra.mode=MULTIRUN",
        "hydra.sweep.dir=x",
        "hydra.run.dir=x",
        "hydra/launcher=x",
        "hydra.launcher.n=1",
        "hydra/sweeper=x",
    ],
)
def test_what_says_how_a_sweep_is_done_is_not_said_to_a_job(override):
    assert override not in command([], Path("/o"), of_hydra=[override])


def test_only_the_options_that_say_where_configuration_is_found_are_handed_on():
    typed = ["-m", "--config-dir", "conf", "--config-name=other", "seed=1", "--multirun", "-cd", "more"]
    assert options_of_jobs(typed) == ["--config-dir", "conf", "--config-name=other", "-cd", "more"]


@pytest.mark.parametrize(
    "path",
    [
        "/plain/path-1_2.3",
        "/with a space/x",
        "/it's/here",
        "/a,b/[c]/{d}",
        "/back\\slash",
        "/end\\",
        "/both\\'s",
        "/käse",
        "/a=b",
    ],
)
def test_any_folder_survives_the_grammar_of_overrides(path):
    override = OverridesParser.create().parse_override(f"hydra.run.dir={quoted(path)}")
    assert override.value() == path


def test_jobs_that_run_at_once_share_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert fair_share_of_threads(2, 1, {}) == {"OMP_NUM_THREADS": "4"}
    assert fair_share_of_threads(2, 2, {}) == {"OMP_NUM_THREADS": "2"}
    assert fair_share_of_threads(20, 1, {}) == {"OMP_NUM_THREADS": "1"}
    assert fair_share_of_threads(2, 1, {"OMP_NUM_THREADS": "3"}) == {}
