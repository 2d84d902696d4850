import gzip
from pathlib import Path

import polars as pl
import pytest

from statewise.data.files import find_files, read_files
from statewise.data.raw import Raw
from statewise.data.reading import AS_IT_IS

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


def test_a_folder_is_refused_with_an_example(tmp_path):
    (tmp_path / "bars.csv.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"is a folder.*bars\.csv\.gz"):
        find_files(".", tmp_path)


def test_an_empty_path_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"data\.path is empty"):
        find_files(" ", tmp_path)


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


@pytest.mark.parametrize(
    ("content", "separator"), [(b"time;close\n1;2\n", ";"), (b"time\tclose\n1\t2\n", "\\t"), (b"time|close\n1|2\n", "|")]
)
def test_other_separators_are_seen_and_noted(tmp_path, content, separator):
    (tmp_path / "a.csv").write_bytes(content)
    raw = opened(tmp_path / "a.csv")
    assert raw.frame.collect().rows() == [("1", "2")]
    assert any(repr(separator.encode().decode("unicode_escape")) in note for note in raw.notes)


def test_a_comma_at_the_end_of_each_line_makes_no_column(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'"V1","V2",\n1,2,\n3,4,\n\n')
    raw = opened(tmp_path / "a.csv")
    assert raw.frame.collect().rows() == [("1", "2"), ("3", "4")]
    assert any("field 3 has neither name nor values" in note for note in raw.notes)


def test_several_empty_columns_without_names_are_left_out(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b,,\n1,2,,\n")
    assert read(tmp_path / "a.csv").columns == ["a", "b"]


def test_names_and_fields_lose_the_spaces_and_the_mark_around_them(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbftime, close \r\n1, 2.5\r\n")
    assert read(tmp_path / "a.csv").to_dicts() == [{"time": "1", "close": "2.5"}]


def test_files_are_joined_by_name_whatever_the_order_of_their_columns(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"t,x\n1,2\n")
    (tmp_path / "b.csv").write_bytes(b"x,t\n4,3\n5,6\n")
    raw = opened(tmp_path / "a.csv", tmp_path / "b.csv")
    assert raw.frame.collect().rows() == [("1", "2"), ("3", "4"), ("6", "5")]
    assert "2 files, 3 rows: a.csv 1, b.csv 2" in raw.notes
    assert raw.where(2) == f"{tmp_path / 'b.csv'}: row 2 (line 3)"


def test_files_with_different_columns_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"t,x\n1,2\n")
    (tmp_path / "b.csv").write_bytes(b"t,y\n1,2\n")
    with pytest.raises(ValueError, match=r'b\.csv and .*a\.csv have different columns \(only one has "x", "y"\)'):
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
        ("a.csv", "a,b\n1,\u00e9\n".encode("latin-1"), "not text in UTF-8"),
        ("a.csv", b"a,a\n1,2\n", 'two columns named "a"'),
        ("a.csv", b"a, a\n1,2\n", 'two columns named "a"'),
        ("a.csv", b"1704067200000,42000.10,0\n1704067260000,42005.50,0\n", "has no header"),
        ("a.csv", b"2024-01-02,100,101\n2024-01-03,100,101\n", "has no header"),
        ("a.csv.gz", gzip.compress(CSV * 1000, mtime=0)[:60], "cannot be read as CSV"),
        ("a.csv.zst", b"\x28\xb5\x2f\xfdnonsense", "cannot be read as CSV"),
        ("a.parquet", b"nonsense", "cannot be read as Parquet"),
        ("a.parquet", b"", "cannot be read as Parquet"),
        ("a.parquet.gz", b"nonsense", "cannot be read as Parquet"),
        ("a.parquet.zst", b"nonsense", "unpack the .zst"),
        ("a.xlsx", b"nonsense", "of no kind that is read"),
        ("a", CSV, "of no kind that is read"),
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
