"""The same command starts a job, goes on with it, and sees that it is done."""

import json

import pytest
import torch

from statewise.attempts import Complete, attempts, next_attempt


def folder_with(path, *, checkpoint=False, status=None):
    (path / ".hydra").mkdir(parents=True)
    if checkpoint:
        (path / "checkpoints").mkdir()
        (path / "checkpoints" / "last.ckpt").touch()
    if status is not None:
        (path / "summary.json").write_text(json.dumps({"status": status}))
    return path


def ask(tmp_path, place="job"):
    return next_attempt(["seed=1", "resume=auto", f"hydra.run.dir={place}"], tmp_path)


def test_a_free_folder_is_where_the_job_begins(tmp_path):
    arguments, line = ask(tmp_path, "outputs/job")
    assert arguments == ["seed=1", f"hydra.run.dir={tmp_path}/outputs/job"]
    assert (tmp_path / "outputs" / "job").is_dir()
    assert line == f"resume=auto: attempt 1 in {tmp_path}/outputs/job"


@pytest.mark.parametrize("status", [None, "interrupted", "failed", "diverged", "unhealthy"])
def test_a_run_that_was_broken_off_is_continued_in_the_next_folder(status, tmp_path):
    first = folder_with(tmp_path / "job", checkpoint=True, status=status)
    arguments, line = ask(tmp_path)
    assert arguments == ["seed=1", f"resume={first}", f"hydra.run.dir={tmp_path}/job-2"]
    assert line == f"resume=auto: attempt 2 in {tmp_path}/job-2 continues {first}"


def test_without_a_checkpoint_the_job_starts_anew_and_nothing_is_overwritten(tmp_path):
    folder_with(tmp_path / "job")
    arguments, line = ask(tmp_path)
    assert arguments == ["seed=1", f"hydra.run.dir={tmp_path}/job-2"]
    assert "starts anew: no attempt before it has come to a checkpoint" in line


def test_the_newest_attempt_counts_and_the_newest_checkpoint_is_continued(tmp_path):
    folder_with(tmp_path / "job", checkpoint=True, status="interrupted")
    for number in range(2, 11):
        folder_with(tmp_path / f"job-{number}", checkpoint=number == 9)
    (tmp_path / "job-11").mkdir()  # killed before it had a configuration
    (tmp_path / "job-x").mkdir()
    (tmp_path / "other-12").mkdir()
    assert [number for number, _ in attempts(tmp_path / "job")] == list(range(1, 12))
    arguments, _ = ask(tmp_path)
    assert arguments[1:] == [f"resume={tmp_path}/job-9", f"hydra.run.dir={tmp_path}/job-12"]


def test_a_job_that_has_ended_well_is_complete(tmp_path):
    folder_with(tmp_path / "job", checkpoint=True, status="interrupted")
    last = folder_with(tmp_path / "job-2", checkpoint=True, status="ok")
    with pytest.raises(Complete, match=f"{last} has ended well: nothing is left to do"):
        ask(tmp_path)
    assert not (tmp_path / "job-3").exists()


def test_a_run_that_stopped_before_its_plan_because_it_was_asked_to_goes_on(train, tmp_path):
    first = train("trainer.stop_after_steps=3")
    assert first.summary["stopped"].startswith("after step 3")
    second = train(f"hydra.run.dir={first.folder}", "resume=auto")
    assert second.code == 0, second.err
    summary = json.loads((first.folder.with_name(f"{first.folder.name}-2") / "summary.json").read_text())
    assert summary["steps"] == 10
    assert "stopped" not in summary


def test_what_killed_attempts_left_half_written_is_removed(tmp_path):
    first = folder_with(tmp_path / "job", checkpoint=True)
    partial = first / "checkpoints" / ".last.ckpt.123.partial"
    partial.write_bytes(b"half")
    ask(tmp_path)
    assert not partial.exists()


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"holds no run and is not empty: resume=auto needs a hydra.run.dir of its own"):
        ask(tmp_path)


def auto(train, folder, *overrides):
    return train("resume=auto", f"hydra.run.dir={folder}", *overrides)


def test_a_job_that_is_started_three_times_with_one_command_ends_as_if_started_once(train, tmp_path):
    whole = train()
    job = tmp_path / "job"
    one = auto(train, job, "trainer.stop_after_steps=3", "seed=0")
    assert one.code == 0
    assert f"resume=auto: attempt 1 in {job}" in one.out
    summary = json.loads((job / "summary.json").read_text())
    (job / "summary.json").write_text(json.dumps(summary | {"status": "interrupted"}))
    two = auto(train, job)
    assert two.code == 0, two.err
    assert f"resume=auto: attempt 2 in {job}-2 continues {job}" in two.out
    last = [torch.load(f / "checkpoints" / "last.ckpt")["state_dict"] for f in (whole.folder, tmp_path / "job-2")]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])
    three = auto(train, job)
    assert three.code == 0
    assert three.out.strip() == f"{job}-2 has ended well: nothing is left to do"
    assert not (tmp_path / "job-3").exists()


def test_it_needs_a_folder_and_one_run(train, tmp_path):
    from statewise.train import main

    assert main(["resume=auto"]) == 2
    several = train("-m", "seed=0,1", "resume=auto")
    assert several.code == 2
    assert several.err.strip() == "resume=auto continues one run; a sweep is continued with sweep.resume=FOLDER"
