import gzip
from pathlib import Path

import polars as pl
import pytest

from statewise.data.files.formats.arrow import open_arrow
from statewise.data.files.formats.content import contents_of
from statewise.data.files.raw import Opened
from statewise.data.files.read import read_files
from statewise.data.files.reading import AS_IT_IS

FRAME = pl.DataFrame({"ts": [1, 2], "close": [1.5, None], "code": pl.Series(["a", "b"], dtype=pl.Categorical)})


def opened(path: Path, *, stream: bool = False) -> Opened:
    (content,) = contents_of(path)
    return open_arrow(content, stream=stream)


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_an_arrow_file_is_lazy_and_says_how_many_rows(tmp_path, compression):
    FRAME.write_ipc(tmp_path / "a.feather", compression=compression)
    one = opened(tmp_path / "a.feather")
    assert (one.rows, one.first_line, one.format) == (2, None, "Arrow")
    assert "SCAN" in one.frame.explain()
    assert one.frame.collect().equals(FRAME)


def test_a_stream_reads_like_the_file(tmp_path):
    FRAME.write_ipc_stream(tmp_path / "a.arrows")
    (tmp_path / "b.gz").write_bytes(gzip.compress((tmp_path / "a.arrows").read_bytes()))
    for name in ("a.arrows", "b.gz"):
        one = opened(tmp_path / name, stream=True)
        assert one.rows == 2
        assert one.format.startswith("Arrow stream")
        assert one.frame.collect().equals(FRAME)


def test_a_packed_file_reads_like_the_plain_one(tmp_path):
    FRAME.write_ipc(tmp_path / "a.arrow")
    (tmp_path / "b").write_bytes(gzip.compress((tmp_path / "a.arrow").read_bytes()))
    one = opened(tmp_path / "b")
    assert (one.rows, one.format) == (2, "Arrow, gzip")
    assert one.frame.collect().equals(FRAME)


def test_categories_become_text(tmp_path):
    FRAME.write_ipc(tmp_path / "a.arrow")
    raw = read_files([tmp_path / "a.arrow"], AS_IT_IS)
    assert raw.column("code").to_list() == ["a", "b"]
    assert raw.types["code"] == pl.String


@pytest.mark.parametrize(("stream", "size"), [(False, 10), (False, 100), (False, -4), (True, 10), (True, 60)])
def test_a_file_that_ends_too_early_is_one_line(tmp_path, stream, size):
    (FRAME.write_ipc_stream if stream else FRAME.write_ipc)(tmp_path / "a.arrow")
    (tmp_path / "b.arrow").write_bytes((tmp_path / "a.arrow").read_bytes()[:size])
    with pytest.raises(ValueError, match=r"^data\.path: .*b\.arrow cannot be read as Arrow: ") as caught:
        opened(tmp_path / "b.arrow", stream=stream)
    assert "\n" not in str(caught.value)
