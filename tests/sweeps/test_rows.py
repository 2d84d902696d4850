"""The rows of a folder: every run in it, joined from what the run and whoever watched over it have left."""

import json

import pytest

from statewise.sweeps.job_record import JobRecord
from statewise.sweeps.rows import (
    best_rows,
    common_overrides,
    identity,
    row_of,
    rows_of,
    varied_overrides,
)


def record(folder, number, overrides, status="ok", **given):
    folder.mkdir(parents=True, exist_ok=True)
    JobRecord(number=number, overrides=overrides, status=status, folder=folder, **given).write()


def test_a_run_of_its_own_is_a_row_with_every_figure(tmp_path, run_folder):
    run_folder(tmp_path / "a", ["model=gru", "seed=3"], mse=0.2, val=0.1, baseline=0.8, health={"verdict": "healthy"})
    (row,) = rows_of(tmp_path)

    assert (row.job, row.overrides, row.status, row.folder) == (None, ("model=gru", "seed=3"), "ok", tmp_path / "a")
    assert (row.model, row.data, row.health, row.message) == ("gru", "lti", "healthy", "")
    assert (row.test_mse, row.test_mae, row.val_mse, row.objective) == (0.2, 0.1, 0.1, 0.1)
    assert (row.best_baseline, row.best_baseline_mse, row.seconds) == ("linear", 0.8, 2.5)
    assert row.skill == pytest.approx(0.75)


def test_runs_are_found_down_to_the_folders_of_sweeps_under_a_day(tmp_path, run_folder):
    for place in ("2025-01-31/12-00-00", "2025-01-31/13-00-00/0", "2025-01-31/13-00-00/10", "2025-01-31/13-00-00/9"):
        run_folder(tmp_path / place, [f"seed={place[-1]}"], mse=0.2)
    found = [str(row.folder.relative_to(tmp_path / "2025-01-31")) for row in rows_of(tmp_path)]

    assert found == ["12-00-00", "13-00-00/0", "13-00-00/9", "13-00-00/10"]
    assert len(rows_of(tmp_path / "2025-01-31" / "13-00-00")) == 3
    assert len(rows_of(tmp_path / "2025-01-31" / "13-00-00" / "9")) == 1


def test_a_job_that_left_nothing_but_its_record_is_a_row_with_the_reason(tmp_path):
    record(tmp_path / "4", 4, ["seed=4"], "failed", exit_code=137, message="killed by signal 9 (SIGKILL)", seconds=3.5)
    (row,) = rows_of(tmp_path)

    assert (row.job, row.status, row.message, row.seconds) == (4, "failed", "killed by signal 9 (SIGKILL)", 3.5)
    assert row.objective is row.test_mse is row.val_mse is row.skill is row.health is None


def test_who_watched_over_a_job_knows_its_end_better_than_the_job(tmp_path, run_folder):
    folder = run_folder(tmp_path / "0", ["seed=0"], mse=0.2, val=0.1)
    record(folder, 0, ["seed=0"], "failed", message="killed by signal 11")
    assert (row_of(folder).status, row_of(folder).message, row_of(folder).objective) == ("failed", "killed by signal 11", None)

    # The record says that it runs where its launcher was killed with it before it could say more.
    record(folder, 0, ["seed=0"], "running")
    assert (row_of(folder).status, row_of(folder).message, row_of(folder).objective) == ("ok", "", 0.1)


def test_a_run_without_a_result_is_called_unfinished_and_says_when_it_last_wrote(tmp_path, run_folder):
    run_folder(tmp_path / "a", ["seed=0"], status=None, curve=[0.5, 0.3, 0.4])
    record(tmp_path / "b", 1, ["seed=1"], "running")
    unfinished, running = rows_of(tmp_path)

    assert (unfinished.status, running.status) == ("unfinished", "running")
    assert unfinished.message.startswith("no result yet, or broken off; last written 20")
    assert unfinished.val_mse == 0.3, "the best so far, from metrics.csv"
    assert unfinished.objective is running.objective is None


@pytest.mark.parametrize("text", ["", "epoch,step,val/mse\n0,10,", "epoch,step\n0,1,2,3\n", "epoch,step,val/mse\n0,10,nan\n"])
def test_metrics_that_are_being_written_cost_only_their_figure(tmp_path, run_folder, text):
    folder = run_folder(tmp_path / "a", ["seed=0"], status=None)
    (folder / "metrics.csv").write_text(text)

    assert row_of(folder).val_mse is None


def test_one_broken_summary_does_not_cost_the_table(tmp_path, run_folder):
    run_folder(tmp_path / "a", ["seed=0"], mse=0.2)
    (run_folder(tmp_path / "b", ["seed=1"], mse=0.2) / "summary.json").write_text("{")
    good, broken = rows_of(tmp_path)

    assert good.status == "ok"
    assert broken.status == "unfinished"
    assert "is not valid JSON" in broken.message


def test_of_a_job_done_again_only_its_latest_attempt_counts(tmp_path, run_folder):
    for number, (overrides, status) in enumerate(
        [
            (["seed=0", "model=gru"], "ok"),
            (["seed=1", "model=gru"], "failed"),
            (["seed=2", "model=gru"], "diverged"),
            (["model=gru", "seed=1", "sweep.resume=/a", "launcher.n_jobs=3"], "ok"),
            (["seed=2", "model=gru", "launcher=basic", "hydra.verbose=true"], "failed"),
        ]
    ):
        record(tmp_path / str(number), number, overrides, status)

    assert [(row.job, row.status) for row in rows_of(tmp_path)] == [(0, "ok"), (3, "ok"), (4, "failed")]


def test_the_same_overrides_in_another_sweep_or_in_runs_of_their_own_are_results_of_their_own(tmp_path, run_folder):
    for sweep in ("a", "b"):
        record(tmp_path / sweep / "0", 0, ["seed=0"])
    for name in ("c", "d"):
        run_folder(tmp_path / name, ["seed=0"], mse=0.2)

    assert len(rows_of(tmp_path)) == 4


def test_jobs_that_left_no_record_have_the_number_of_their_folder(tmp_path, run_folder):
    (tmp_path / "multirun.yaml").touch()
    for number in range(2):
        run_folder(tmp_path / str(number), [f"seed={number}"], mse=0.2)

    assert [row.job for row in rows_of(tmp_path)] == [0, 1]


def test_what_a_job_does_is_the_last_value_of_each_key_in_any_order():
    assert identity(["a=1", "b=2", "a=3"]) == identity(["a=3", "b=2"]) == identity(["b=2", "a=1", "a=3"])
    assert identity(["a=1"]) != identity(["a=2"]) != identity(["+a=2"])
    assert identity(["sweep=grid", "sweep.also=[x]", "launcher=basic", "hydra.sweep.dir=x", "hydra/launcher=basic"]) == set()
    assert identity(["sweeper=1", "~callbacks.x"]) == {"sweeper=1", "~callbacks.x"}


def test_rows_show_what_they_do_not_share(tmp_path, run_folder):
    run_folder(tmp_path / "a", ["data=lti", "seed=0", "sweep.resume=x"], mse=0.2)
    run_folder(tmp_path / "b", ["seed=1", "data=lti", "optimizer.lr=1e-2"], mse=0.2)
    rows = rows_of(tmp_path)

    assert common_overrides(rows) == ("data=lti",)
    assert [varied_overrides(row, ["data=lti"]) for row in rows] == [("seed=0",), ("seed=1", "optimizer.lr=1e-2")]
    assert common_overrides(rows[:1]) == ("data=lti", "seed=0")
    assert common_overrides([]) == ()


def test_the_best_row_ended_ok_and_has_the_lowest_objective(tmp_path, run_folder):
    for name, val, status in (("a", 0.3, "ok"), ("b", 0.2, "ok"), ("c", 0.1, "unhealthy"), ("d", None, "failed")):
        run_folder(tmp_path / name, [f"seed={name}"], mse=val, val=val, status=status)
    rows = rows_of(tmp_path)

    assert [row.folder.name for row in best_rows(rows)] == ["b"]
    assert best_rows(rows[2:]) == []


def test_errors_on_other_data_or_another_fold_are_never_compared(tmp_path, run_folder):
    for name, data, fold in (("a", "lti", 0), ("b", "lti", 0), ("c", "lti", 1), ("d", "market", 0), ("e", "market", 0)):
        run_folder(tmp_path / name, [f"data.fold={fold}", f"seed={name}"], mse=0.1, val=0.1 + 0.1 * (name in "ad"), data=data)
    rows = rows_of(tmp_path)

    assert [row.folder.name for row in best_rows(rows)] == ["b", "c", "e"]
    assert best_rows([rows[0], rows[2], rows[3]]) == [], "each is the only one of its kind"


def test_a_folder_without_a_run_is_told_in_one_line(tmp_path):
    (tmp_path / "outputs").mkdir()
    with pytest.raises(FileNotFoundError, match=r"/output does not exist; did you mean outputs\?$"):
        rows_of(tmp_path / "output")
    with pytest.raises(
        FileNotFoundError, match=r"/outputs holds no run: neither .hydra/config.yaml nor job.json, down to three"
    ):
        rows_of(tmp_path / "outputs")


def test_a_run_leaves_its_best_validated_error_in_its_summary(train):
    outcome = train("health.policy=off")
    row = row_of(outcome.folder)

    assert outcome.summary["val"]["mse"] == row.val_mse == row.objective
    assert 0 < outcome.summary["val"]["step"] <= outcome.summary["steps"]
    assert row.test_mse == json.loads((outcome.folder / "summary.json").read_text())["test"]["mse"]
    assert (row.seconds or 0.0) > 0
