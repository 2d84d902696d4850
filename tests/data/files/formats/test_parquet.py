import gzip

import polars as pl
import pytest

from statewise.data.files.formats.content import contents_of
from statewise.data.files.formats.parquet import open_parquet
from statewise.data.files.raw import Opened

FRAME = pl.DataFrame({"ts": [1, 2], "close": [1.5, None]})


def opened(path) -> Opened:
    (content,) = contents_of(path)
    return open_parquet(content)


def test_a_parquet_file_is_lazy_and_says_how_many_rows(tmp_path):
    FRAME.write_parquet(tmp_path / "a.parquet")
    one = opened(tmp_path / "a.parquet")
    assert (one.rows, one.first_line, one.format) == (2, None, "Parquet")
    assert "Parquet SCAN" in one.frame.explain()
    assert one.frame.collect().equals(FRAME)


def test_only_the_columns_that_are_asked_for_are_read(tmp_path):
    FRAME.write_parquet(tmp_path / "a.parquet")
    assert "PROJECT 1/2 COLUMNS" in opened(tmp_path / "a.parquet").frame.select("close").explain()


def test_a_packed_parquet_file_reads_like_the_plain_one(tmp_path):
    FRAME.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    one = opened(tmp_path / "b")
    assert (one.rows, one.format) == (2, "Parquet, gzip")
    assert one.frame.collect().equals(FRAME)


def test_no_pattern_and_no_partition_hides_in_a_name(tmp_path):
    folder = tmp_path / "symbol=A"
    folder.mkdir()
    FRAME.write_parquet(folder / "a[1]*.parquet")
    assert opened(folder / "a[1]*.parquet").frame.collect().equals(FRAME)


def test_names_lose_the_blanks_around_them(tmp_path):
    pl.DataFrame({" close ": [1.0], "": [None]}).write_parquet(tmp_path / "a.parquet")
    one = opened(tmp_path / "a.parquet")
    assert one.frame.collect_schema().names() == ["close"]
    assert any("field 2 has neither name nor values" in note for note in one.notes)
    pl.DataFrame({" close ": [1.0], "close": [2.0]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match='two columns named "close"'):
        opened(tmp_path / "b.parquet")


@pytest.mark.parametrize("size", [4, 40, -2])
def test_a_file_that_ends_too_early_is_one_line(tmp_path, size):
    FRAME.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:size])
    with pytest.raises(ValueError, match=r"^data\.path: .*b\.parquet cannot be read as Parquet: ") as caught:
        opened(tmp_path / "b.parquet")
    assert "\n" not in str(caught.value)
