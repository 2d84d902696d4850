import gzip
import zipfile
from pathlib import Path

import polars as pl
import pytest

from statewise.data.files.raw import Raw
from statewise.data.files.read import read_files
from statewise.data.files.reading import AS_IT_IS
from statewise.data.files.search import find_files, search

CSV = b"time,close\n2024-01-01,1.5\n2024-01-02,2.5\n"


def opened(*paths: Path) -> Raw:
    return read_files(paths, AS_IT_IS)


def read(path: Path) -> pl.DataFrame:
    return opened(path).frame.collect()


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^data\.path") as caught:
        opened(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_relative_path_means_the_given_folder(tmp_path, monkeypatch):
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "bars.csv").write_bytes(CSV)
    monkeypatch.chdir(tmp_path)
    assert find_files("bars.csv", tmp_path / "launch") == [tmp_path / "launch" / "bars.csv"]
    assert find_files("bars.csv", Path("launch")) == [tmp_path / "launch" / "bars.csv"]


def test_a_missing_file_gives_the_absolute_path_and_similar_names(tmp_path):
    (tmp_path / "Bars_2024.csv").write_bytes(CSV)
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(FileNotFoundError) as caught:
        find_files("bars_2042.csv", tmp_path)
    assert str(tmp_path / "bars_2042.csv") in str(caught.value)
    assert "Bars_2024.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_without_a_similar_name_lists_what_could_be_read(tmp_path):
    (tmp_path / "prices.parquet").write_bytes(b"")
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(FileNotFoundError, match=r"prices\.parquet") as caught:
        find_files("q.csv", tmp_path)
    assert "notes.md" not in str(caught.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        find_files("nowhere/bars.csv", tmp_path)


@pytest.mark.parametrize("path", [" ", [], ["a.csv", ""]])
def test_an_empty_path_is_refused(tmp_path, path):
    (tmp_path / "a.csv").write_bytes(CSV)
    with pytest.raises(ValueError, match=r"data\.path is empty"):
        find_files(path, tmp_path)


def test_a_folder_means_all_files_in_it_and_in_its_folders(tmp_path):
    for name in ("part-10.csv", "part-2.csv", "x/y/a.csv", "README.md", ".hidden.csv", "x/LICENSE", "_SUCCESS", ".git/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(CSV)
    found = search(str(tmp_path), Path("/"))
    assert [str(f.relative_to(tmp_path)) for f in found.paths] == ["part-2.csv", "part-10.csv", "x/y/a.csv"]
    assert set(found.roots) == {tmp_path}
    (note,) = found.notes
    assert note.startswith("passed over, hidden or no data by their names: ")
    assert "README.md" in note
    assert find_files(".", tmp_path) == list(found.paths)


def test_a_link_that_leads_nowhere_is_noted(tmp_path):
    (tmp_path / "a.csv").write_bytes(CSV)
    (tmp_path / "b.csv").symlink_to(tmp_path / "gone.csv")
    (tmp_path / "c.csv").symlink_to(tmp_path / "a.csv")
    found = search(".", tmp_path)
    assert [f.name for f in found.paths] == ["a.csv", "c.csv"]
    assert found.notes == ("passed over, links that lead nowhere: b.csv",)


def test_a_folder_without_a_file_to_read_says_what_it_holds(tmp_path):
    with pytest.raises(ValueError, match="holds nothing to read: no file at all"):
        find_files(".", tmp_path)
    (tmp_path / "README.md").write_bytes(CSV)
    with pytest.raises(ValueError, match=r"holds nothing to read: only README\.md"):
        find_files(".", tmp_path)


@pytest.mark.parametrize("mark", ["_delta_log/0.json", "metadata/v1.metadata.json"])
def test_a_table_that_keeps_deleted_rows_is_refused(tmp_path, mark):
    for name in (mark, "a.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="is a Delta or Iceberg table"):
        find_files(".", tmp_path)


def test_a_list_means_all_its_entries_in_their_order_and_each_file_once(tmp_path):
    for name in ("b.csv", "a.csv", "x/c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(CSV)
    found = search(["b.csv", "x", "*.csv"], tmp_path)
    assert [f.name for f in found.paths] == ["b.csv", "c.csv", "a.csv"]
    assert found.roots == (None, tmp_path / "x", tmp_path)
    assert found.notes == (f"{tmp_path / 'b.csv'}: named twice and read once",)


def test_a_tilde_is_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.csv").write_bytes(CSV)
    assert find_files("~/a.csv", Path("/")) == find_files("~/*.csv", Path("/")) == [tmp_path / "a.csv"]
    with pytest.raises(FileNotFoundError, match="no home folder is known for ~nobody_of_this_name"):
        find_files("~nobody_of_this_name/a.csv", tmp_path)


def test_a_pattern_passes_over_what_is_no_data_unless_it_matches_nothing_else(tmp_path):
    for name in ("a.csv", "manifest.json"):
        (tmp_path / name).write_bytes(CSV)
    assert [f.name for f in find_files("*", tmp_path)] == ["a.csv"]
    assert [f.name for f in find_files("*.json", tmp_path)] == ["manifest.json"]


def test_a_pattern_goes_into_folders(tmp_path):
    (tmp_path / "x" / "y").mkdir(parents=True)
    (tmp_path / "x" / "y" / "a.csv").write_bytes(CSV)
    found = search("x/**/*.csv", tmp_path)
    assert (found.paths, found.roots) == ((tmp_path / "x" / "y" / "a.csv",), (tmp_path / "x",))


@pytest.mark.parametrize("path", [".", "symbol=*/*.parquet", "*/part-0.parquet"])
def test_folders_named_as_key_and_value_become_a_column(tmp_path, path):
    for name in ("AAPL", "BRK%2FB", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"symbol={name}").mkdir()
        pl.DataFrame({"x": [1.0, 2.0]}).write_parquet(tmp_path / f"symbol={name}" / "part-0.parquet")
    raw = read_files(search(path, tmp_path), AS_IT_IS)
    assert raw.types == {"x": pl.Float64, "symbol": pl.String}
    assert sorted(raw.column("symbol").unique().to_list(), key=str) == ["AAPL", "BRK/B", None]
    one = read_files(search("symbol=AAPL/part-0.parquet", tmp_path), AS_IT_IS)
    assert one.names == ["x"]


def test_a_column_of_the_file_counts_more_than_the_name_of_its_folder(tmp_path):
    (tmp_path / "x=9").mkdir()
    pl.DataFrame({"x": [1.0, 2.0]}).write_parquet(tmp_path / "x=9" / "a.parquet")
    assert read_files(search(".", tmp_path), AS_IT_IS).column("x").to_list() == [1.0, 2.0]


def test_many_parquet_files_stay_where_they_are_until_a_column_is_asked_for(tmp_path):
    for number in range(4):
        pl.DataFrame({"x": [number], "y": [0.5]}).write_parquet(tmp_path / f"{number}.parquet")
    raw = read_files(search(".", tmp_path), AS_IT_IS)
    plan = raw.frame.select("x").explain()
    assert "Parquet SCAN" in plan
    assert "PROJECT 1/2 COLUMNS" in plan
    assert raw.column("x").to_list() == [0, 1, 2, 3]


def test_a_file_that_turns_out_to_be_damaged_later_is_one_line(tmp_path):
    path = tmp_path / "a.parquet"
    pl.DataFrame({"x": range(10_000), "y": [1.5] * 10_000}).write_parquet(path, compression="zstd")
    raw = opened(path)
    stored = bytearray(path.read_bytes())
    stored[8:200] = bytes(192)
    path.write_bytes(stored)
    with pytest.raises(ValueError, match=r"^data\.path: .*a\.parquet cannot be read: ") as caught:
        raw.column("x")
    assert "\n" not in str(caught.value)


def test_files_of_different_formats_are_joined(tmp_path):
    frame = pl.DataFrame({"t": [1], "x": [1.5]})
    frame.write_parquet(tmp_path / "a.parquet")
    frame.write_ipc(tmp_path / "b.feather")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"x,t\n1.5,1\n"))
    raw = read_files(search(".", tmp_path), AS_IT_IS)
    assert [float(x) for x in raw.column("x")] == [1.5, 1.5, 1.5]
    assert [chunk.format.split(",")[0] for chunk in raw.chunks] == ["Parquet", "Arrow", "CSV"]


def test_the_members_of_a_zip_are_files_and_named_with_it(tmp_path):
    with zipfile.ZipFile(tmp_path / "bars.zip", "w") as archive:
        archive.writestr("2023.csv", "t,x\n1,2\n")
        archive.writestr("2024.csv", "t,x\n3,4\n")
    raw = opened(tmp_path / "bars.zip")
    assert "2 files, 2 rows: bars.zip!2023.csv 1, bars.zip!2024.csv 1" in raw.notes
    assert raw.where(1) == f"{tmp_path / 'bars.zip'}!2024.csv: row 1 (line 2)"


def test_what_is_said_of_many_files_is_said_once(tmp_path):
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_bytes(b"t,x,\n1,2,\n")
    notes = opened(*sorted(tmp_path.iterdir())).notes
    assert [note for note in notes if "neither name" in note] == [
        "a.csv and 2 more: field 3 has neither name nor values and is left out"
    ]


def test_files_without_rows_among_others_are_noted(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"t,x\n")
    (tmp_path / "b.csv").write_bytes(b"t,x\n1,2\n")
    raw = opened(tmp_path / "a.csv", tmp_path / "b.csv")
    assert [chunk.path.name for chunk in raw.chunks] == ["b.csv"]
    assert "without rows: a.csv" in raw.notes


def test_only_the_columns_that_are_wanted_must_be_in_all_files(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"t,x,y\n1,2,3\n")
    (tmp_path / "b.csv").write_bytes(b"t,x\n1,2\n")
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    assert read_files(paths, AS_IT_IS, ["x"]).names == ["t", "x"]
    with pytest.raises(ValueError, match=r'b\.csv has no "y"'):
        read_files(paths, AS_IT_IS)


def test_a_pattern_gives_files_in_the_order_of_their_names(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_bytes(CSV)
    (tmp_path / "d.csv").mkdir()
    assert [f.name for f in find_files("*.csv", tmp_path)] == ["a.csv", "b.csv"]
    assert [f.name for f in find_files(str(tmp_path / "*.csv"), Path("/"))] == ["a.csv", "b.csv"]


def test_a_pattern_in_a_folder_with_special_characters_in_its_name(tmp_path):
    folder = tmp_path / "run[1]"
    folder.mkdir()
    (folder / "a.csv").write_bytes(CSV)
    assert find_files("*.csv", folder) == [folder / "a.csv"]


def test_a_pattern_that_matches_nothing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file matches the pattern .*\*\.csv"):
        find_files("*.csv", tmp_path)


def test_gzip_and_zstandard_read_like_the_plain_file(tmp_path):
    plain, packed, zst = tmp_path / "a.csv", tmp_path / "a.csv.gz", tmp_path / "a.csv.zst"
    plain.write_bytes(CSV)
    packed.write_bytes(gzip.compress(CSV, mtime=0))
    read(plain).write_csv(zst, compression="zstd")
    assert read(plain).equals(read(packed))
    assert read(plain).equals(read(zst))


def test_parquet_reads_also_inside_gzip(tmp_path):
    frame = pl.DataFrame({"close": [1.5, None]})
    frame.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert read(tmp_path / "a.parquet").equals(frame)
    assert read(tmp_path / "a.parquet.gz").equals(frame)


def test_a_comma_at_the_end_of_each_line_makes_no_column(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'"V1","V2",\n1,2,\n3,4,\n\n')
    raw = opened(tmp_path / "a.csv")
    assert raw.frame.collect().rows() == [(1, 2), (3, 4)]
    assert any("field 3 has neither name nor values" in note for note in raw.notes)


def test_several_empty_columns_without_names_are_left_out(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b,,\n1,2,,\n")
    assert read(tmp_path / "a.csv").columns == ["a", "b"]


def test_names_and_fields_lose_the_spaces_and_the_mark_around_them(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbftime, close \r\n1, 2.5\r\n")
    assert read(tmp_path / "a.csv").to_dicts() == [{"time": 1, "close": 2.5}]


def test_files_are_joined_by_name_whatever_the_order_of_their_columns(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"t,x\n1,2\n")
    (tmp_path / "b.csv").write_bytes(b"x,t\n4,3\n5,6\n")
    raw = opened(tmp_path / "a.csv", tmp_path / "b.csv")
    assert raw.frame.collect().rows() == [(1, 2), (3, 4), (6, 5)]
    assert "2 files, 3 rows: a.csv 1, b.csv 2" in raw.notes
    assert raw.where(2) == f"{tmp_path / 'b.csv'}: row 2 (line 3)"


def test_files_with_different_columns_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"t,x\n1,2\n")
    (tmp_path / "b.csv").write_bytes(b"t,y\n1,2\n")
    with pytest.raises(ValueError, match=r'different columns: .*a\.csv has no "y"; .*b\.csv has no "x"; give them'):
        opened(tmp_path / "a.csv", tmp_path / "b.csv")


def test_files_with_different_types_are_refused(tmp_path):
    pl.DataFrame({"x": [[1]]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"x": ["1"]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="different types"):
        opened(tmp_path / "a.parquet", tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"time,close\n", "header and no rows"),
        ("a.csv", b"time,close\n\n\n", "header and no rows"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"row 2 (line 3) has 3 fields, the header 2"),
        ("a.csv", b"a,a\n1,2\n", 'two columns named "a"'),
        ("a.csv", b"a, a\n1,2\n", 'two columns named "a"'),
        ("a.csv", b"1704067200000,42000.10,0\n1704067260000,42005.50,0\n", "has no header"),
        ("a.csv", b"2024-01-02,100,101\n2024-01-03,100,101\n", "has no header"),
        ("a.csv.gz", gzip.compress(CSV * 1000, mtime=0)[:60], "its gzip data end too early"),
        ("a.csv.zst", b"\x28\xb5\x2f\xfdnonsense", "its zstd data are damaged"),
        ("a.csv", b"PAR1nonsense", "cannot be read as Parquet"),
        ("a.csv", b"ARROW1nonsense", "cannot be read as Arrow"),
        ("a.parquet", b"", "is empty"),
        ("a.xlsx", b"%PDF-1.4", "is a PDF document"),
    ],
)
def test_a_file_that_cannot_be_read_ends_in_one_line(tmp_path, name, content, words):
    assert words in refusal(tmp_path / name, content)


def test_counted_column_names_are_a_header(tmp_path):
    (tmp_path / "a.csv").write_bytes(b",0,1,2\n0,5,6,7\n")
    assert read(tmp_path / "a.csv").columns[1:] == ["0", "1", "2"]


def test_a_parquet_row_has_no_line(tmp_path):
    pl.DataFrame({"x": [1.0, 2.0]}).write_parquet(tmp_path / "a.parquet")
    assert opened(tmp_path / "a.parquet").where(1) == f"{tmp_path / 'a.parquet'}: row 2"
