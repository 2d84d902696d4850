"""Rows by what they came to and by what they were asked for."""

import pytest

from statewise.sweeps.choosing import known, objective_name, ordered, read_filter, value_of
from statewise.sweeps.rows import rows_of


@pytest.fixture
def rows(tmp_path, run_folder):
    run_folder(tmp_path / "a", ["model=gru", "optimizer.lr=1e-2", "seed=0"], mse=0.3, val=0.2)
    run_folder(tmp_path / "b", ["model=nlinear", "seed=1"], mse=0.2, val=0.3, model="nlinear", config="data:\n  window: 96\n")
    run_folder(tmp_path / "c", ["model=gru", "seed=2"], status="failed", error="no room")
    folder = run_folder(tmp_path / "d", ["model=mamba2", "seed=10"], status=None)
    (folder / ".hydra" / "hydra.yaml").write_text("hydra:\n  runtime:\n    choices:\n      optimizer: adamw\n")
    return rows_of(tmp_path)


def passing(rows, text: str) -> str:
    found = read_filter(text)
    known(found.name, rows, "--where")
    return "".join(row.folder.name for row in rows if found.passes(row))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("status=ok", "ab"),
        ("status==ok", "ab"),
        ("status!=ok", "cd"),
        ("test_mse<0.25", "b"),
        ("test_mse <= 0.3", "ab"),
        ("test_mse>0.2", "a"),
        ("test_mse>=2e-1", "ab"),
        ("test_mse=null", "cd"),
        ("test_mse!=null", "ab"),
        ("val_mse=0.20", "a"),
        ("model=gru", "ac"),
        ("model=m*", "d"),
        ("optimizer.lr=0.01", "a"),
        ("optimizer.lr<0.005", "bcd"),
        ("seed>1", "cd"),
        ("data.window=96", "b"),
        ("data.window=null", "acd"),
        ("optimizer=adamw", "d"),
        ("message=*room*", "c"),
        ("overrides=*seed=1", "b"),
        ("report=false", "abcd"),
    ],
)
def test_a_filter_compares_columns_keys_and_groups(rows, text, names):
    assert passing(rows, text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("foo", r"^--where 'foo' is no comparison; write NAME=VALUE, or one of != < <= > >= instead of =$"),
        ("=3", "is no comparison"),
        ("test_mse<much", r"^--where 'test_mse<much': < compares numbers, and 'much' is none; text is compared by = and !=$"),
        ("status<3", r"^--where 'status<3': status is text, which is compared by = and !=$"),
    ],
)
def test_what_is_no_comparison_is_refused_in_one_line(text, said):
    with pytest.raises(ValueError, match=said):
        read_filter(text)


def test_an_unknown_name_is_refused_with_the_nearest(rows):
    with pytest.raises(
        ValueError, match=r"no configuration key 'test_mes'; did you mean test_mse or test_mae\? \(columns: job, ov"
    ):
        known("test_mes", rows, "--sort")
    with pytest.raises(
        ValueError, match=r"^--sort: there is no column and no configuration key 'optimizer.lrr'; did you mean optimi"
    ):
        known("optimizer.lrr", rows, "--sort")


def test_what_ended_ok_comes_first_by_its_objective(rows):
    assert [row.folder.name for row in ordered(reversed(rows), None)] == ["a", "b", "d", "c"]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("test_mse", "bacd"),
        ("-test_mse", "abcd"),
        ("seed", "abcd"),
        ("-seed", "dcba"),
        ("model", "acdb"),
        ("optimizer.lr", "bcda"),
    ],
)
def test_rows_are_sorted_by_any_name_and_those_without_a_value_come_last(rows, by, names):
    assert "".join(row.folder.name for row in ordered(rows, by)) == names


def test_a_value_comes_from_the_row_then_from_what_was_typed_then_from_the_configuration(rows):
    assert value_of(rows[0], "optimizer.lr") == "1e-2"
    assert value_of(rows[1], "optimizer.lr") == 0.001
    assert value_of(rows[3], "model") == "mamba2"
    assert value_of(rows[3], "objective") is None, "the figure, not the name in the configuration"
    assert value_of(rows[0], "overrides") == "model=gru optimizer.lr=1e-2 seed=0"


def test_the_objective_is_named_where_all_share_it(rows, run_folder, tmp_path):
    assert objective_name(rows) == "val/mse"
    other = run_folder(tmp_path / "e", ["seed=0"], mse=0.1)
    (other / ".hydra" / "config.yaml").write_text("objective: val/loss\n")
    assert objective_name(rows_of(tmp_path)) == "objective"


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "a: !!python/object:os.system x"])
def test_a_configuration_that_cannot_be_read_has_no_keys(rows, text):
    (rows[0].folder / ".hydra" / "config.yaml").write_text(text)
    assert value_of(rows[0], "data.window") is None
