import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import polars as pl
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.files.formats.content import Content, contents_of, lies_beside
from statewise.data.files.formats.kinds import kind_of

CSV = b"time,close\n2024-01-01,1.5\n2024-01-02,2.5\n"
PACKERS = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return memory.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return memory.getvalue()


@pytest.fixture
def contents(tmp_path):
    def write(stored: bytes, name: str = "bars") -> list[Content]:
        (tmp_path / name).write_bytes(stored)
        return contents_of(tmp_path / name)

    return write


@pytest.fixture
def refusal(contents):
    def refuse(stored: bytes, name: str = "bars") -> str:
        with pytest.raises(ValueError, match=r"^data\.path: ") as caught:
            [(kind_of(content), content.source()) for content in contents(stored, name)]
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)
        return str(caught.value)

    return refuse


def test_a_plain_file_is_its_own_source(contents, tmp_path):
    (content,) = contents(CSV, "bars.csv")
    assert (content.path, content.member, content.packing, content.size) == (tmp_path / "bars.csv", None, (), len(CSV))
    assert content.source() == tmp_path / "bars.csv"
    assert content.name == str(tmp_path / "bars.csv")
    assert content.head(4) == b"time"
    assert content.head(10_000) == CSV


@pytest.mark.parametrize("packing", PACKERS)
def test_a_packed_file_is_known_by_its_bytes_and_unpacked(contents, packing):
    (content,) = contents(PACKERS[packing](CSV), "bars.csv")
    assert content.packing == (packing,)
    assert content.source() == CSV
    assert content.head(4) == b"time"


@given(
    st.binary(max_size=3000),
    st.lists(st.sampled_from(sorted(PACKERS)), max_size=2),
    st.integers(0, 4000),
)
@settings(max_examples=50, deadline=None)
def test_any_bytes_come_back_from_any_packing(tmp_path_factory, data, packings, size):
    data = b"x," + data  # nothing that is an archive by itself
    stored = data
    for packing in packings:
        stored = PACKERS[packing](stored)
    path = tmp_path_factory.mktemp("any") / "bars"
    path.write_bytes(stored)
    (content,) = contents_of(path)
    assert content.packing == tuple(reversed(packings))
    assert content.head(size) == data[:size]
    source = content.source()
    assert (source.read_bytes() if isinstance(source, Path) else source) == data


@pytest.mark.parametrize("packing", PACKERS)
def test_packed_parts_behind_each_other_are_one_content(contents, packing):
    first, second = CSV[:20], CSV[20:]
    (content,) = contents(PACKERS[packing](first) + PACKERS[packing](second))
    assert content.source() == CSV


def test_zeros_behind_gzip_are_padding(contents):
    (content,) = contents(gzip.compress(CSV) + b"\x00" * 700)
    assert content.source() == CSV


def test_a_head_does_not_unpack_the_rest(contents):
    whole = gzip.compress(os.urandom(10**6))
    (content,) = contents(whole[: len(whole) // 2])
    assert len(content.head(1000)) == 1000
    with pytest.raises(ValueError, match="its gzip data end too early"):
        content.source()


@pytest.mark.parametrize("packing", PACKERS)
def test_a_packing_that_ends_too_early_is_one_line(refusal, packing):
    data = os.urandom(150_000).hex().encode()
    assert f"its {packing} data end too early" in refusal(PACKERS[packing](data)[:100_000])


@pytest.mark.parametrize("packing", PACKERS)
def test_a_damaged_packing_is_one_line(refusal, packing):
    stored = bytearray(PACKERS[packing](os.urandom(150_000).hex().encode()))
    stored[80_000:80_100] = bytes(100)
    assert f"its {packing} data are damaged" in refusal(bytes(stored))


def test_the_members_of_a_zip_come_in_the_order_of_their_names(contents, tmp_path):
    found = contents(zipped({"b.csv": CSV, "data/a.csv": CSV[:10], "a.csv": b"x"}), "bars.zip")
    assert [content.member for content in found] == ["a.csv", "b.csv", "data/a.csv"]
    assert [content.source() for content in found] == [b"x", CSV, CSV[:10]]
    assert found[2].name == f"{tmp_path / 'bars.zip'}!data/a.csv"
    assert found[1].head(4) == b"time"


def test_what_lies_beside_the_data_in_a_zip_is_no_content(contents):
    beside = {"__MACOSX/._a.csv": b"x", ".hidden": b"x", "README.txt": b"x", "LICENSE": b"x", "manifest.json": b"{}", "d/": b""}
    assert [content.member for content in contents(zipped({**beside, "a.csv": CSV}))] == ["a.csv"]


@pytest.mark.parametrize(
    "name", ["x/README", "licence.txt", "a.md", "a.csv.sha256", ".a.csv", "_SUCCESS", "~$a.xlsx", "q/.git/a.csv"]
)
def test_names_that_lie_beside_data(name):
    assert lies_beside(name)


@pytest.mark.parametrize("name", ["a.csv", "x/a.txt", "a.parquet", "readings.csv", "a", "noticeable.csv"])
def test_names_that_may_be_data(name):
    assert not lies_beside(name)


def test_packed_members_are_unpacked_too(contents):
    inner = zipped({"c.csv": CSV})
    found = contents(zipped({"a.csv.gz": gzip.compress(CSV), "b.zip": inner}), "bars.zip")
    assert [content.member for content in found] == ["a.csv.gz", "b.zip!c.csv"]
    assert [content.packing for content in found] == [("gzip",), ()]
    assert [content.source() for content in found] == [CSV, CSV]


@pytest.mark.parametrize("pack", [bytes, *PACKERS.values()])
def test_a_tar_is_read_plain_and_packed(contents, pack):
    found = contents(pack(tarred({"d/b.csv": CSV, "d/a.csv": CSV[:30], "d/._a.csv": b"x"})))
    assert [content.member for content in found] == ["d/a.csv", "d/b.csv"]
    assert [content.source() for content in found] == [CSV[:30], CSV]


def test_an_archive_without_data_says_what_it_holds(refusal):
    assert "nothing to read: it holds only README.md" in refusal(zipped({"README.md": b"x"}))
    assert "it holds no file at all" in refusal(zipped({}))
    assert "it holds only a.json" in refusal(tarred({"a.json": b"{}"}))


def test_a_protected_zip_is_refused(refusal):
    stored = bytearray(zipped({"a.csv": CSV}))
    stored[6] |= 1  # the mark of encryption, in the member's own entry and in the directory
    stored[stored.index(b"PK\x01\x02") + 8] |= 1
    assert "is protected by a password (a.csv): unpack it first" in refusal(bytes(stored))


def test_incomplete_archives_are_refused(refusal):
    text = os.urandom(10_000).hex().encode()
    stored = zipped({"a.csv": text})
    assert "is no complete zip archive" in refusal(stored[:6000])
    damaged = bytearray(stored)
    damaged[2000:2100] = bytes(100)
    assert "!a.csv cannot be read: " in refusal(bytes(damaged))
    assert "is no complete tar archive" in refusal(tarred({"a.csv": text})[:9000])


def test_a_zip_with_an_unknown_method_is_refused(refusal):
    stored = bytearray(zipped({"a.csv": CSV}, zipfile.ZIP_STORED))
    stored[8] = 97
    stored[stored.index(b"PK\x01\x02") + 10] = 97
    assert "cannot be read: That compression method is not supported" in refusal(bytes(stored))


def test_packings_without_end_are_refused(refusal):
    stored = CSV
    for _ in range(6):
        stored = gzip.compress(stored)
    assert "packed more than 4 times over" in refusal(stored)


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
        (b"Rar!\x1a\x07\x01", "RAR"),
        (b"\x04\x22\x4d\x18", "LZ4"),
        (b"\x1f\x9d\x90", "compress"),
    ],
)
def test_other_archives_are_named_and_refused(refusal, start, what):
    message = refusal(start + bytes(100))
    assert f"is packed with {what}" in message
    assert "unpack it first" in message


def kinds(found: list[Content]) -> list[str]:
    return [kind_of(content) for content in found]


def test_formats_are_known_by_their_bytes(contents):
    frame = pl.DataFrame({"close": [1.5, 2.5]})
    files = {"parquet": frame.write_parquet, "arrow": frame.write_ipc, "arrow stream": frame.write_ipc_stream}
    for kind, write in files.items():
        memory = io.BytesIO()
        write(memory)
        assert kinds(contents(memory.getvalue(), "a.csv")) == [kind]
        assert kinds(contents(gzip.compress(memory.getvalue()), "a.csv")) == [kind]
    assert kinds(contents(b"DBN\x03" + bytes(100))) == ["dbn"]


@pytest.mark.parametrize(
    "text",
    [
        CSV,
        b"",
        b"DBN,close\n1,2\n",
        b"DBN",
        b"\xef\xbb\xbftime,close\n",
        "time,close\n1,2\n".encode("utf-16"),
        "time,close\n1,2\n".encode("utf-16-le"),
        "time,close\n1,2\n".encode("utf-16-be"),
        b"<DATE>\t<TIME>\t<OPEN>\n",
        b"[time],[open]\n",
        b"# made by x\ntime,close\n",
        b"BZh,close\n1,2\n",
        "Datum;Schluß\n1;2\n".encode("latin-1"),
        b"time\x1fclose\n1\x1f2\n",
        b"PKT,close\n",
    ],
)
def test_any_text_is_text(contents, text):
    assert kinds(contents(text)) == ["text"]


@pytest.mark.parametrize(
    ("stored", "what", "remedy"),
    [
        (b"FEA1" + bytes(50), "a Feather file of version 1", "read_feather"),
        (b"PARE" + bytes(50), "an encrypted Parquet file", "without encryption"),
        (zipped({"[Content_Types].xml": b"", "xl/workbook.xml": b""}), "an Excel workbook", "as CSV"),
        (zipped({"mimetype": b"application/vnd.oasis.opendocument.spreadsheet"}), "an OpenDocument sheet", "as CSV"),
        (zipped({"[Content_Types].xml": b"", "word/document.xml": b""}), "a Word document", "as CSV"),
        (zipped({"a.npy": b"x", "b.npy": b"x"}), "a NumPy archive", "np.savetxt"),
        (zipped({"m/data.pkl": b"x"}), "a PyTorch file", "CSV or Parquet"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(50), "an Excel workbook (.xls)", "as CSV"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "an HDF5 file", "read_hdf"),
        (b"CDF\x01" + bytes(50), "a NetCDF file", "xarray"),
        (b"SQLite format 3\x00" + bytes(50), "an SQLite database", "read_sql"),
        (bytes(8) + b"DUCK" + bytes(50), "a DuckDB database", "COPY"),
        (b"\x93NUMPY\x01\x00", "a NumPy array", "np.savetxt"),
        (b"\x80\x04\x95\x00\x00", "a pickle", "read_pickle"),
        (b'[{"t": 1}]', "a JSON document", "read_json"),
        (b' {\n "t": [1]}', "a JSON document", "read_json"),
        (b'{"t": 1}\n{"t": 2}\n', "a file of JSON lines", "read_ndjson"),
        (b"[[1, 2], [3, 4]]", "a JSON document", "read_json"),
        (b"\n<!DOCTYPE html><html>", "a web page", "login"),
        (b"<?xml version='1.0'?><Error>", "an XML document", "as CSV"),
        (b"%PDF-1.4", "a PDF document", "as CSV"),
        (b"\x89PNG\r\n", "a picture", "as CSV"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS", "git lfs pull"),
        (b"MATLAB 5.0 MAT-file", "a MATLAB file", "writetable"),
        (b"Obj\x01" + bytes(9), "an Avro file", "read_avro"),
        (bytes(range(256)), "binary data of an unknown kind", "CSV or Parquet"),
    ],
)
def test_what_is_not_read_is_named_with_the_way_to_what_is(refusal, stored, what, remedy):
    message = refusal(stored, "bars.csv")
    assert f"is {what}" in message or f"is the pointer of a file that {what}" in message
    assert remedy in message
