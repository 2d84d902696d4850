"""The `statewise` command."""

import pytest
from typer.testing import CliRunner

from statewise import cli, train
from statewise.commands import examine
from statewise.data.tables.table import read_table


@pytest.mark.parametrize("name", ["bars.csv", "bars.parquet", "bars.dbn.zst"])
def test_market_writes_bars_that_the_reader_reads(name, tmp_path):
    path = tmp_path / name
    result = CliRunner().invoke(cli.app, ["market", str(path), "--bars", "400"])
    assert result.exit_code == 0, result.output
    assert f"wrote 800 bars to {path}" in result.output.replace("\n", "")
    table = read_table(name, folder=tmp_path)
    assert (table.series, len(table.frame)) == ("symbol", 800)


def test_market_refuses_another_kind_of_file_in_one_line(tmp_path):
    result = CliRunner().invoke(cli.app, ["market", str(tmp_path / "bars.txt"), "--bars", "400"])
    assert result.exit_code == 2
    assert "bars are written to a .csv, .parquet, .dbn or .dbn.zst file" in result.output


def test_train_hands_its_arguments_on_and_its_exit_code_back(monkeypatch):
    given = []

    def main(arguments):
        given.extend(arguments)
        return 7

    monkeypatch.setattr(train, "main", main)
    result = CliRunner().invoke(cli.app, ["train", "-m", "model.d_state=8", "--cfg", "job"])
    assert result.exit_code == 7
    assert given == ["-m", "model.d_state=8", "--cfg", "job"]


def test_data_hands_paths_and_keys_on_in_any_order(monkeypatch):
    given = {}

    def main(arguments, **options):
        given.update(options, arguments=arguments)
        return 2

    monkeypatch.setattr(examine, "main", main)
    result = CliRunner().invoke(cli.app, ["data", "bars.csv", "--json", "data.window=9", "--config-dir=conf", "--leak-audit"])
    assert result.exit_code == 2
    assert given == {"arguments": ["bars.csv", "data.window=9", "--config-dir=conf"], "as_json": True, "leak_audit": True}
