"""The end of a multirun, from what its jobs have left, wherever they ran."""

import pytest

from statewise.sweeps.conclusion import conclude


def test_a_sweep_ends_with_its_table_and_its_file(tmp_path, run_folder, capsys):
    for number in range(2):
        run_folder(tmp_path / str(number), [f"seed={number}"], mse=0.1 + number, val=0.1 + number)
    rows = conclude(tmp_path)
    said = capsys.readouterr().out

    assert [row.status for row in rows] == ["ok", "ok"]
    assert "★" in said
    assert "standard error" not in said
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["sweep.csv"]


def test_a_sweep_of_runs_with_reports_gets_one_of_its_own_and_one_over_folds_their_files(tmp_path, run_folder, capsys):
    for fold in range(2):
        folder = run_folder(tmp_path / str(fold), [f"data.fold={fold}"], mse=0.1 + fold, val=0.1 + fold)
        config = folder / ".hydra" / "config.yaml"
        config.write_text(config.read_text().replace("report: false", "report: true"))
    conclude(tmp_path)
    said = capsys.readouterr().out

    assert "± standard error" in said
    assert f"all of them on one page: {tmp_path / 'report.html'}" in said
    files = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert files == ["folds.csv", "folds.json", "report.html", "sweep.csv"]


def test_what_cannot_be_written_is_said_and_costs_nothing_else(tmp_path, run_folder, caplog, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    run_folder(tmp_path / "0", ["seed=0"], mse=0.1)
    monkeypatch.setattr("statewise.sweeps.conclusion.write_sweep_csv", full)

    assert len(conclude(tmp_path)) == 1
    assert "seed=0" in capsys.readouterr().out
    assert "what is kept of the sweep could not be written: [Errno 28] No space left on device" in caplog.text


def test_a_folder_without_a_job_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        conclude(tmp_path)
