import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.files.reading import Reading
from statewise.data.tables.table import Table, read_table


@pytest.fixture
def files(tmp_path):
    """Writes files of daily rows: place -> first and last day of January; the values differ from file to file."""

    def write(places: dict[str, tuple[int, int]]) -> Path:
        for number, (place, (first, last)) in enumerate(places.items()):
            path = tmp_path / place
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [f"2024-01-{day:02d},{100 * number + day}" for day in range(first, last + 1)]
            path.write_text("\n".join(["date,close", *rows]) + "\n")
        return tmp_path

    return write


def read(folder: Path, **named) -> Table:
    return read_table(".", folder=folder, reading=Reading(**named))


@pytest.mark.parametrize(
    "places",
    [
        {"2022.csv": (1, 3), "2023.csv": (4, 6)},
        {"b.csv": (1, 3), "a.csv": (4, 6)},
        {"x/BTCUSDT-1m-2024-01.csv": (1, 3), "x/BTCUSDT-1m-2024-02.csv": (4, 6)},
        {"AAPL.csv": (1, 2), "MSFT.csv": (4, 6)},
    ],
)
def test_files_that_follow_one_another_are_one_series(files, places):
    table = read(files(places))
    assert table.series is None
    assert np.all(np.diff(table.rows.times) > np.timedelta64(0))
    assert any("follow one another in time and are one series (data.series=file: one each)" in note for note in table.notes)


@pytest.mark.parametrize(
    ("places", "series"),
    [
        ({"AAPL.csv": (1, 5), "MSFT.csv": (1, 5)}, ("AAPL", "MSFT")),
        ({"BRK.B.csv": (1, 5), "BRK.A.csv": (3, 9)}, ("BRK.A", "BRK.B")),
        ({"sensor_1.csv": (1, 5), "sensor_2.csv": (1, 5)}, ("sensor_1", "sensor_2")),
        ({"600519.csv": (1, 5), "000001.csv": (1, 5)}, ("000001", "600519")),
        ({"A_2022.csv": (1, 3), "A_2023.csv": (4, 5), "B_2022.csv": (1, 3), "B_2023.csv": (4, 5)}, ("A", "B")),
        ({"2024-01-A.csv": (1, 3), "2024-02-A.csv": (4, 5), "2024-01-B.csv": (1, 3)}, ("A", "B")),
        ({"A/2022.csv": (1, 3), "A/2023.csv": (4, 5), "B/2022.csv": (1, 3)}, ("A", "B")),
        ({"A/data.csv": (1, 3), "B/data.csv": (2, 3)}, ("A", "B")),
        ({"A.csv": (1, 1), "B.csv": (1, 1)}, ("A", "B")),
    ],
)
def test_files_whose_times_overlap_are_series_called_by_what_tells_them_apart(files, places, series):
    table = read(files(places))
    assert (table.series, table.rows.series) == ("file", series)
    assert any(f"{len(series)} series, told apart by the names of their files" in note for note in table.notes)


def test_each_row_belongs_to_its_file(files):
    table = read(files({"B.csv": (1, 3), "A.csv": (2, 4)}))
    assert table.frame["file"].to_list() == ["A", "A", "A", "B", "B", "B"]
    assert table.frame["close"].to_list() == [102, 103, 104, 1, 2, 3]


def test_archives_of_one_member_are_called_by_the_archive(tmp_path):
    for close, name in enumerate(("AAPL-2024-01.zip", "MSFT-2024-01.zip")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("data.csv", f"date,close\n2024-01-01,{close}\n2024-01-02,{close}\n")
    assert read(tmp_path).rows.series == ("AAPL", "MSFT")


@pytest.mark.parametrize(
    "places",
    [
        {"bars_2022.csv": (1, 4), "bars_2023.csv": (4, 6), "bars_2024.csv": (5, 9)},
        {"p/part-0.csv": (1, 4), "p/part-1.csv": (3, 6)},
    ],
)
def test_files_that_differ_in_their_dates_only_repeat_rows_where_they_overlap(files, places):
    with pytest.raises(ValueError, match="have the same time"):
        read(files(places))


def test_the_end_of_one_file_may_be_the_start_of_the_next(files):
    with pytest.raises(ValueError, match="have the same time"):
        read(files({"a.csv": (1, 4), "b.csv": (4, 6)}))


def test_a_copy_of_a_file_is_no_series_of_its_own(files):
    folder = files({"a.csv": (1, 5)})
    (folder / "a (copy).csv").write_bytes((folder / "a.csv").read_bytes())
    with pytest.raises(ValueError, match="identical copies"):
        read(folder)


def test_data_series_file_makes_each_file_a_series(files):
    folder = files({"AAPL_2022.csv": (1, 2), "MSFT_2023.csv": (4, 6)})
    table = read(folder, series="file")
    assert (table.series, table.rows.series) == ("file", ("AAPL", "MSFT"))
    assert read_table("AAPL_2022.csv", folder=folder, reading=Reading(series="file")).rows.series == ("AAPL",)
    assert read(files({"AAPL_2022.csv": (1, 2), "MSFT_2023.csv": (4, 6)}), series="file").rows.series == ("AAPL", "MSFT")


def test_data_series_file_works_without_times(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x,y\n1,2\n3,4\n")
    assert read(tmp_path).series is None
    table = read(tmp_path, series="file")
    assert table.rows.series == ("a", "b")
    assert table.frame["x"].to_list() == [1, 3, 1, 3]


def test_a_column_called_file_is_a_column(tmp_path):
    (tmp_path / "a.csv").write_text("date,file,x\n2024-01-01,p,1\n2024-01-01,q,2\n")
    assert read(tmp_path, series="file").rows.series == ("p", "q")


def test_files_with_a_column_for_the_series_are_not_asked_for_their_names(tmp_path):
    for name, symbol in (("a.csv", "X"), ("b.csv", "Y")):
        (tmp_path / name).write_text(f"date,symbol,x\n2024-01-01,{symbol},1\n2024-01-02,{symbol},2\n")
    table = read(tmp_path)
    assert (table.series, table.rows.series) == ("symbol", ("X", "Y"))


@given(st.lists(st.tuples(st.integers(1, 25), st.integers(0, 5)), min_size=2, max_size=5))
@settings(max_examples=20, deadline=None)
def test_no_row_is_lost_and_no_series_holds_a_moment_twice(tmp_path_factory, spans):
    folder = tmp_path_factory.mktemp("files")
    rows = {}
    for number, (first, more) in enumerate(spans):
        rows[f"s{'abcde'[number]}"] = [(day, 100 * number + day) for day in range(first, first + more + 1)]
    for name, values in rows.items():
        (folder / f"{name}.csv").write_text("date,x\n" + "".join(f"2024-01-{day:02d},{x}\n" for day, x in values))
    try:
        table = read(folder)
    except ValueError as error:
        assert "have the same time" in str(error)  # noqa: PT017
        return
    assert sorted(table.read("x").tolist()) == sorted(x for values in rows.values() for _, x in values)
    if table.series is not None:
        assert set(table.rows.series) == set(rows)
