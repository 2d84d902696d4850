"""The table of a sweep: sweep.csv, which grows, and what the terminal shows."""

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from statewise.sweeps.job_record import JobRecord
from statewise.sweeps.rows import Row, rows_of
from statewise.sweeps.table import COLUMNS, print_sweep, row_line, sweep_table, write_sweep_csv


def printed(show, width: int = 200) -> list[str]:
    out = io.StringIO()
    show(Console(file=out, width=width))
    return out.getvalue().splitlines()


@pytest.fixture
def sweep(tmp_path, run_folder):
    """Three ok, one diverged, one killed."""
    (tmp_path / "multirun.yaml").touch()
    for number, val in enumerate([0.1 + 1e-17, 0.123456789012345678, 0.05]):
        run_folder(tmp_path / str(number), ["model=gru", f"seed={number}"], mse=2 * val, val=val, health={"verdict": "healthy"})
    run_folder(tmp_path / "3", ["model=gru", "optimizer.lr=1e9"], status="diverged", error="the loss is not finite")
    JobRecord(4, ["model=gru", "seed=4"], "failed", tmp_path / "4", exit_code=137, message="killed by signal 9").write()
    return tmp_path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_file_has_a_line_for_each_job_and_floats_with_all_digits(sweep):
    assert write_sweep_csv(sweep) == sweep / "sweep.csv"
    lines = read(sweep / "sweep.csv")

    assert tuple(lines[0]) == COLUMNS
    assert [line["job"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert [line["status"] for line in lines] == ["ok", "ok", "ok", "diverged", "failed"]
    assert [float(line["val_mse"]) for line in lines[:3]] == [0.1 + 1e-17, 0.123456789012345678, 0.05]
    assert lines[1]["objective"] == repr(0.123456789012345678)
    assert lines[0]["best_baseline"] == "linear"
    assert [line["folder"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert [line["message"] for line in lines[3:]] == ["the loss is not finite", "killed by signal 9"]
    assert all(line[name] == "" for line in lines[3:] for name in ("objective", "test_mse", "test_mae", "skill"))
    assert "nan" not in (sweep / "sweep.csv").read_text().lower()


def test_the_file_grows_with_every_job_and_is_never_half_written(sweep, run_folder):
    write_sweep_csv(sweep)
    run_folder(sweep / "5", ["model=gru", "seed=5"], mse=0.5)
    write_sweep_csv(sweep)

    assert len(read(sweep / "sweep.csv")) == 6
    assert not list(sweep.glob(".*partial"))


def test_overrides_in_the_file_can_be_pasted_into_a_shell(tmp_path, run_folder):
    run_folder(tmp_path / "a", ["'data.path=my bars.csv'", "'health.frozen=[a.*]'", "seed=0"], mse=0.1)
    write_sweep_csv(tmp_path)

    assert read(tmp_path / "sweep.csv")[0]["overrides"] == "'data.path=my bars.csv' 'health.frozen=[a.*]' seed=0"


def test_the_terminal_shows_what_varies_and_says_once_what_does_not(sweep):
    lines = printed(lambda to: print_sweep(rows_of(sweep), sweep, objective="val/mse", to=to))

    assert lines[0] == "all with: model=gru"
    assert " ".join(lines[1].split()) == "job overrides status val/mse test MSE test MAE skill health seconds"
    assert " ".join(lines[3].split()) == "0 seed=0 ok 0.10000 0.20000 0.10000 +75.00 % healthy 2.5"
    assert " ".join(lines[5].split()) == "★ 2 seed=2 ok 0.05000 0.10000 0.05000 +87.50 % healthy 2.5"
    assert " ".join(lines[6].split()) == "3 optimizer.lr=1e9 diverged – – – – not checked 2.5"
    assert " ".join(lines[7].split()) == "4 seed=4 failed – – – – – 0.0"
    assert lines[8:10] == ["3  diverged: the loss is not finite", "4  failed: killed by signal 9"]
    assert lines[10] == "best baseline, of all on the same test rows: linear, MSE 0.80000"
    assert lines[11] == f"5 runs: 3 ok, 1 diverged, 1 failed; ★ lowest val/mse of those that ended ok; folder: {sweep}"


def test_the_best_row_is_bold(sweep):
    assert [row.style for row in sweep_table(rows_of(sweep)).rows] == [None, None, "bold", None, None]


def test_folders_are_shown_where_they_are_not_the_numbers_of_the_jobs(tmp_path, run_folder):
    for place in ("a/0", "b/0"):
        run_folder(tmp_path / place, [f"seed={place[0]}"], mse=0.1)
    lines = printed(lambda to: print_sweep(rows_of(tmp_path), tmp_path, to=to))

    assert lines[0].split()[-1] == "folder"
    assert [line.split()[-1] for line in lines[2:4]] == ["a/0", "b/0"]


def test_models_and_data_have_columns_where_there_are_several(tmp_path, run_folder):
    for name, model, data in (("a", "gru", "lti"), ("b", "nlinear", "market")):
        run_folder(tmp_path / name, ["seed=0"], mse=0.1, val=0.1, model=model, data=data)
    head, _, *lines = printed(lambda to: to.print(sweep_table(rows_of(tmp_path), below=tmp_path)))

    assert head.split()[:3] == ["model", "data", "overrides"]
    assert [line.split()[:2] for line in lines] == [["gru", "lti"], ["nlinear", "market"]]


def test_a_reason_that_many_runs_share_is_said_once():
    rows = [Row(number, (f"seed={number}",), "failed", Path(f"/s/{number}"), message="no room") for number in range(20)]
    lines = printed(lambda to: print_sweep(rows, Path("/s"), to=to))

    assert "0, 1, 2, 3, 4, 5, 6, 7 and 12 more  failed: no room" in lines


def test_brackets_are_text_and_not_markup(tmp_path, run_folder):
    for number in range(2):
        run_folder(tmp_path / str(number), [f"data.targets=[red,x{number}]"], status="failed", error="no [bold] column")
    lines = printed(lambda to: print_sweep(rows_of(tmp_path), tmp_path, to=to))

    assert any("data.targets=[red,x1]" in line for line in lines)
    assert any(line.endswith("failed: no [bold] column") for line in lines)


def test_a_job_that_ended_is_said_in_a_line():
    row = Row(3, ("seed=3", "launcher.n_jobs=2"), "ok", Path("/s/3"), objective=0.1, test_mse=0.2, seconds=12.34)
    assert row_line(row, objective="val/mse") == "job 3 ok · seed=3 · val/mse 0.10000 · test MSE 0.20000 · 12.3 s"
    row = Row(4, (), "failed", Path("/s/4"), message="killed by signal 9")
    assert row_line(row) == "job 4 failed · killed by signal 9"
