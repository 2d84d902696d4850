"""Rows of one series and time: an error, or the first or the last of them, and always counted."""

from pathlib import Path

import pytest

from statewise.data.files.reading import Reading
from statewise.data.tables.table import read_table

COPIES = "ts,x\n2024-01-02 10:00,1\n2024-01-02 10:01,2\n2024-01-02 10:01,2\n2024-01-02 10:02,3\n"
OTHERS = "ts,x\n2024-01-02 10:01,1\n2024-01-02 10:00,2\n2024-01-02 10:01,3\n2024-01-02 10:01,4\n2024-01-02 10:00,2\n"


def read(folder: Path, text: str, **keys):
    (folder / "bars.csv").write_text(text)
    return read_table("bars.csv", folder=folder, reading=Reading(**keys))


def refusal(folder: Path, text: str, **keys) -> str:
    with pytest.raises(ValueError, match=r"data\.path") as error:
        read(folder, text, **keys)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_identical_copies_are_refused_and_the_remedy_drops_them(tmp_path):
    message = refusal(tmp_path, COPIES)

    assert "row 2 (line 3) and " in message
    assert "row 3 (line 4) have the same time 2024-01-02 10:01:00 (1 repeated rows in all)" in message
    assert message.endswith("identical copies: data.duplicates=first drops them")
    assert read(tmp_path, COPIES, duplicates="first").read("x").tolist() == [1, 2, 3]


def test_rows_that_differ_are_told_apart_from_copies(tmp_path):
    message = refusal(tmp_path, OTHERS)

    assert "3 repeated rows in all" in message
    assert "identical copies: 1, with other values: 2; remove the repeated rows" in message
    assert message.endswith("or choose which counts with data.duplicates=first or last")


@pytest.mark.parametrize(("policy", "kept"), [("first", [2, 1]), ("last", [2, 4])])
def test_the_first_or_the_last_in_the_order_of_the_file_counts(tmp_path, policy, kept):
    table = read(tmp_path, OTHERS, duplicates=policy)

    assert table.read("x").tolist() == kept
    assert [table.rows.at(row) for row in range(2)] == ["2024-01-02 10:00:00", "2024-01-02 10:01:00"]
    (note,) = (note for note in table.notes if "repeated rows" in note)
    start = f"3 repeated rows (identical copies: 1, with other values: 2) dropped by data.duplicates={policy}, first: "
    assert note.startswith(start)
    assert "row 2 (line 3) and " in note
    assert "row 5 (line 6) have the same time 2024-01-02 10:00:00" in note


def test_rows_of_different_series_are_no_duplicates(tmp_path):
    text = "ts,who,x\n2024-01-02 10:00,a,1\n2024-01-02 10:00,b,2\n2024-01-02 10:00,a,3\n2024-01-02 10:01,b,4\n"
    table = read(tmp_path, text, series="who", duplicates="last")

    assert table.rows.series == ("a", "b")
    assert table.read("x").tolist() == [3, 2, 4]
    assert any('of series "a"' in note for note in table.notes)


def test_of_several_files_the_last_counts_where_they_overlap(tmp_path):
    (tmp_path / "a.csv").write_text("ts,x\n2024-01-02,1\n2024-01-03,2\n")
    (tmp_path / "b.csv").write_text("ts,x\n2024-01-03,20\n2024-01-04,30\n")
    table = read_table("*.csv", folder=tmp_path, reading=Reading(duplicates="last"))

    assert table.read("x").tolist() == [1, 20, 30]
    (note,) = (note for note in table.notes if "repeated" in note)
    assert "a.csv: row 2" in note
    assert "b.csv: row 1" in note


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match=r"data.duplicates must be one of error, first, last, got 'frist'; did you mean first"):
        Reading(duplicates="frist")
