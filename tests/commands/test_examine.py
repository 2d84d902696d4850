"""`statewise data`: the command line of the doctor, its exit codes, and nothing left behind."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from statewise import assembly, cli
from statewise.commands import examine as command

SMALL = ["model.d_model=4", "model.d_state=4", "model.n_layers=1"]


@pytest.fixture
def doctor(tmp_path, capsys, monkeypatch):
    """Run the command in an empty folder, which stays as it was, and return (exit code, standard output, standard error)."""
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*arguments, **options):
        before = sorted(folder.rglob("*"))
        capsys.readouterr()
        code = command.main([*arguments, *SMALL], **options)
        said = capsys.readouterr()
        assert sorted(folder.rglob("*")) == before
        return code, said.out, said.err

    run.folder = folder
    return run


def written(folder, rows, name="bars.csv", day=2):
    """One-minute bars."""
    close = 100 * np.exp(np.cumsum(np.random.default_rng(0).normal(size=rows) * 1e-3))
    lines = [f"2024-01-{day:02d} {row // 60:02d}:{row % 60:02d}:00,{value}" for row, value in enumerate(close)]
    (folder / name).write_text("\n".join(["time,close", *lines]))


def test_a_file_is_examined_and_0_says_that_training_would_begin(doctor):
    written(doctor.folder, 400)
    code, out, err = doctor("bars.csv", "data.window=24")
    assert (code, err) == (0, "")
    assert "bars.csv: 400 rows" in out
    assert out.rstrip().endswith("training would begin")


def test_several_files_are_one_data_set_as_json(doctor):
    for day, name in ((2, "symbol=a"), (3, "b")):
        written(doctor.folder, 200, f"{name}.csv", day)
    result = CliRunner().invoke(cli.app, ["data", "symbol=a.csv", "b.csv", "data.window=16", "--json", *SMALL])
    assert result.exit_code == 0, result.output
    page = json.loads(result.stdout)
    assert (page["rows"], page["first_time"], page["last_time"]) == (400, "2024-01-02T00:00:00Z", "2024-01-03T03:19:00Z")
    assert page["refused"] is None


def test_text_in_a_numeric_column_is_refused_and_the_columns_are_told(doctor):
    lines = ["time,close,note", *(f"2024-01-{day:02d},{day},abc" for day in range(1, 29))]
    lines[21] = "2024-01-21,oops,abc"
    (doctor.folder / "bars.csv").write_text("\n".join(lines))

    code, out, err = doctor("bars.csv", as_json=True)
    page = json.loads(out)

    assert (code, err) == (2, f"{page['refused']}\n")
    assert 'row 21 (line 22), column "close": "oops" is not a number' in page["refused"]
    assert (page["format"], page["rows"]) == ("CSV", 28)
    assert [(column["name"], column["role"]) for column in page["columns"]] == [
        ("time", "time"),
        ("close", "number"),
        ("note", "left out"),
    ]
    assert page["first_row"] is None
    assert page["windows"] == {"train": None, "val": None, "test": None}

    code, out, err = doctor("bars.csv")
    assert (code, err) == (2, f"{page['refused']}\n")
    assert "CSV: 28 rows" in out
    assert "training would refuse: the last line says why" in out


def test_what_a_run_refuses_after_its_data_is_refused(doctor):
    written(doctor.folder, 400)
    code, out, err = doctor("bars.csv", "evaluate.cost=1e-4", as_json=True)
    assert code == 2
    assert err.startswith("evaluate.cost=0.0001")
    assert json.loads(out)["windows"]["train"] == 220


def test_nothing_to_read_is_one_line(doctor):
    written(doctor.folder, 5)
    code, out, err = doctor("bras.csv")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "similar names there: bars.csv" in err


def test_what_is_no_question_for_the_doctor_is_answered_in_one_line(doctor):
    assert doctor() == (2, "", f"{command.USAGE}\n")
    for arguments, says in (
        (["bars.csv", "data.path=bars.csv"], "leave out data.path="),
        (["bars.csv", "data=lti"], "leave out --multirun, data= and resume="),
        (["bars.csv", "-m"], "leave out --multirun, data= and resume="),
        (["bars.csv", "data.windw=3"], "did you mean data.window"),
        (["bars.csv", "data.window=0"], "data.window must be at least 1"),
    ):
        code, out, err = doctor(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert says in err


def test_the_leak_audit_says_a_line_for_each_question(doctor):
    written(doctor.folder, 200)
    code, out, err = doctor("bars.csv", "data.window=8", leak_audit=True)
    assert (code, err) == (0, "")
    for name in ("training", "validation", "inputs", "model"):
        assert f"leak: {name:<12}ok  " in out

    code, out, _ = doctor("bars.csv", "data.window=199", leak_audit=True)
    assert code == 2
    assert "leak audit        not made" in out


def test_leaks_are_named_and_give_1(doctor, monkeypatch):
    build = assembly.build_model

    def looking_ahead(config, datamodule):
        model = build(config, datamodule)
        model.register_forward_pre_hook(lambda module, given: (given[0] + given[0].mean(1, keepdim=True), *given[1:]))
        return model

    monkeypatch.setattr(assembly, "build_model", looking_ahead)
    monkeypatch.setattr(
        "statewise.data.preparation.prepared.rows_in", lambda blocks, count, short=0: np.ones(count, dtype=bool)
    )
    written(doctor.folder, 200)

    code, out, err = doctor("bars.csv", "data.window=8", leak_audit=True, as_json=True)

    audit = {leak["name"]: leak for leak in json.loads(out)["leak_audit"]}
    assert code == 1
    assert [name for name, leak in audit.items() if not leak["passed"]] == ["training", "validation", "model"]
    assert audit["training"]["message"].startswith("rows outside the training blocks were changed (times 1000): the scaler's")
    assert audit["model"]["message"].startswith("inputs after time step")
    assert err == "the leak audit found a leak: training, validation, model\n"


def test_an_audit_that_cannot_be_made_is_no_leak(doctor, monkeypatch):
    def audit(*_, **__):
        raise ValueError("no")

    monkeypatch.setattr("statewise.data.doctor.leaks.audit", audit)
    written(doctor.folder, 200)
    code, out, err = doctor("bars.csv", "data.window=8", leak_audit=True)
    assert (code, err) == (2, "the leak audit could not be made: no\n")
    assert "leak" not in out
