"""What became of a job, from what it left: a number that is none is never a value, and every reason is a line."""

import json
import math

import pytest

from statewise.sweeps.outcome import outcome


def leave(folder, **summary):
    (folder / "summary.json").write_text(json.dumps(summary))


def found(folder, code, **more):
    return outcome(number=3, overrides=["seed=1"], folder=folder, log=folder / "job.log", code=code, seconds=1.5, **more)


def test_a_job_that_went_well_has_its_objective_with_all_digits(tmp_path):
    value = 0.1 + 0.2
    leave(tmp_path, status="ok", objective={"name": "val/mse", "value": value})
    record = found(tmp_path, 0)
    assert (record.status, record.exit_code, record.objective, record.message) == ("ok", 0, value, "")
    record.write()
    assert json.loads((tmp_path / "job.json").read_text())["objective"] == value


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_without_a_finite_objective_a_job_has_failed(value, tmp_path):
    leave(tmp_path, status="ok", objective={"name": "val/f1", "value": value})
    record = found(tmp_path, 0)
    assert (record.status, record.exit_code, record.objective) == ("failed", 1, None)
    assert "objective=val/f1 has no finite value" in record.message


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        (-9, 137, "killed by signal 9 (SIGKILL); nobody asked for it here, so the system may have run out of memory"),
        (-11, 139, "killed by signal 11 (SIGSEGV); a crash inside a compiled library"),
        (-1, 129, "killed by signal 1 (SIGHUP)"),
        (7, 7, "ended with exit code 7; its last line: the last word"),
        (1, 1, "the last word"),
        (2, 2, "the last word"),
        (0, 1, "ended without a result: no summary.json in its folder"),
        (None, 1, "the queue lost it"),
    ],
)
def test_a_job_that_left_no_summary_failed_for_a_reason_that_its_end_tells(code, exit_code, said, tmp_path):
    (tmp_path / "job.log").write_text("first\nthe last word\n\n")
    record = found(tmp_path, code, gone="the queue lost it")
    assert (record.status, record.exit_code, record.message) == ("failed", exit_code, said)


def test_a_job_without_a_word_failed_with_its_code(tmp_path):
    assert found(tmp_path, 1).message == "ended with exit code 1"


def test_the_runs_own_word_is_kept_where_it_has_one(tmp_path):
    leave(tmp_path, status="diverged", error="the training loss is nan", objective=None)
    record = found(tmp_path, 1)
    assert (record.status, record.message, record.objective) == ("diverged", "the training loss is nan", None)


def test_a_job_that_the_sweep_ended_is_interrupted_and_says_how_to_go_on(tmp_path):
    assert found(tmp_path, -9, ended_by_us="stopped after 5 seconds").message == "stopped after 5 seconds"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(b"")
    record = found(tmp_path, 143, ended_by_us="stopped after 5 seconds")
    assert (record.status, record.exit_code) == ("interrupted", 143)
    assert record.message == f"stopped after 5 seconds; it goes on with resume={tmp_path}"


def test_a_job_that_the_queue_stopped_is_interrupted_where_it_had_time_to_save(tmp_path):
    assert found(tmp_path, None, gone="out of time").status == "failed"
    leave(tmp_path, status="interrupted", error="interrupted by SIGTERM")
    assert found(tmp_path, None, gone="out of time").status == "interrupted"


def test_a_job_that_ended_well_before_it_could_be_stopped_is_ok(tmp_path):
    leave(tmp_path, status="ok", objective={"name": "val/mse", "value": 0.5})
    assert found(tmp_path, 0, ended_by_us="interrupted by SIGINT").status == "ok"


def test_a_summary_that_is_none_counts_for_nothing(tmp_path):
    (tmp_path / "summary.json").write_text("{broken")
    assert found(tmp_path, 0).status == "failed"
