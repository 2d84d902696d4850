"""Which format a content has, by its bytes; those that are not read are refused with the way to one that is."""

import io
import re
import zipfile
from collections.abc import Callable

from statewise.data.files.formats.content import Content

_HEAD = 4096
_STARTS = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow stream",
}
_POLARS = "pl.read_{0}(...).write_parquet('bars.parquet')"
_PANDAS = "write it as Parquet, with pandas: pd.read_{0}(...).to_parquet('bars.parquet')"
_SHEET = "save the sheet as CSV (in the office program: File, Save as)"
_REFUSED_STARTS = {
    b"FEA1": ("a Feather file of version 1", _PANDAS.format("feather")),
    b"PARE": ("an encrypted Parquet file", "write it without encryption"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an Excel workbook (.xls) or another office document", _SHEET),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file", _PANDAS.format("hdf")),
    b"CDF\x01": ("a NetCDF file", "write it as CSV or Parquet, with xarray: ds.to_dataframe().to_parquet('bars.parquet')"),
    b"CDF\x02": ("a NetCDF file", "write it as CSV or Parquet, with xarray: ds.to_dataframe().to_parquet('bars.parquet')"),
    b"MATLAB 5.0": ("a MATLAB file", "write it as CSV, in MATLAB: writetable(t, 'bars.csv')"),
    b"SQLite format 3\x00": ("an SQLite database", _PANDAS.format("sql")),
    b"\x93NUMPY": (
        "a NumPy array",
        "write it as CSV with names: np.savetxt(..., delimiter=',', header=...)",
    ),
    b"ORC": ("an ORC file", _PANDAS.format("orc")),
    b"Obj\x01": ("an Avro file", f"write it as Parquet, with polars: {_POLARS.format('avro')}"),
    b"<stata_dta>": ("a Stata file", _PANDAS.format("stata")),
    b"RDX": ("an R data file", "write it as CSV, in R: write.csv(x, 'bars.csv', row.names = FALSE)"),
    b"X\n\x00\x00\x00": ("an R data file", "write it as CSV, in R: write.csv(x, 'bars.csv', row.names = FALSE)"),
    b"%PDF": ("a PDF document", "get the table itself as CSV"),
    b"\x89PNG": ("a picture", "get the table itself as CSV"),
    b"\xff\xd8\xff": ("a picture", "get the table itself as CSV"),
    b"GIF8": ("a picture", "get the table itself as CSV"),
    b"\x7fELF": ("a program", "name a file of rows"),
    b"version https://git-lfs": ("the pointer of a file that Git LFS holds", "run `git lfs pull` to get the file itself"),
}
_HTML = re.compile(rb"<!doctype html|<html|<head|<body|<table|<script|<meta", re.IGNORECASE)
_XML = re.compile(rb"<\?xml|<!--|<!doctype|<error>", re.IGNORECASE)
_JSON = re.compile(rb"""\{\s*(["'}]|$)|\[\s*([\[{"\-\d\]]|$)""")
_BINARY = bytes(b for b in range(32) if b not in b"\t\n\v\f\r\x1a\x1b\x01\x1e\x1f")  # 1, 30 and 31 separate fields somewhere


def kind_of(content: Content) -> str:
    """The format: parquet, arrow, arrow stream, dbn or text.

    Raises ValueError with one line: it is of a known kind that is not read, or of none; with the way to one that is.
    """
    head = content.head(_HEAD)
    known = next((kind for start, kind in _STARTS.items() if head.startswith(start)), None)
    if known is not None:
        return known
    if head.startswith(b"DBN") and head[3:4] < b"\x20" and len(head) > 3:
        return "dbn"
    refused = _refused(content, head)
    if refused is not None:
        what, remedy = refused
        raise ValueError(f"data.path: {content.name} is {what}, which is not read: {remedy}")
    return "text"


def _refused(content: Content, head: bytes) -> tuple[str, str] | None:
    """What it is and what to do, where it is not read."""
    start = next((entry for mark, entry in _REFUSED_STARTS.items() if head.startswith(mark)), None)
    if start is not None:
        return start
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")):
        return _zipped(content)
    if head[8:12] == b"DUCK":
        return "a DuckDB database", "write it as Parquet, in DuckDB: COPY bars TO 'bars.parquet'"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a pickle (it may run any program when it is loaded)", _PANDAS.format("pickle")
    visible = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _HTML.match(visible):
        return "a web page", "this is often a login or an error page: download the data themselves"
    if _XML.match(visible):
        return "an XML document", "this is often an error of a server; get the table itself as CSV"
    if _JSON.match(visible):
        first = visible.split(b"\n", 1)[0].strip()
        lines = first.startswith(b"{") and first.endswith(b"}")
        kind, reader = ("a file of JSON lines", "ndjson") if lines else ("a JSON document", "json")
        return kind, f"write it as Parquet, with polars: {_POLARS.format(reader)}"
    if _is_binary(head):
        return "binary data of an unknown kind", "write them as CSV or Parquet"
    return None


def _zipped(content: Content) -> tuple[str, str]:
    source = content.source()
    try:
        with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        names = []
    marks: dict[str, Callable[[str], bool]] = {
        "an Excel workbook": lambda name: name.startswith("xl/"),
        "a Word document": lambda name: name.startswith("word/"),
        "an OpenDocument sheet": lambda name: name == "mimetype",
    }
    found = next((what for what, mark in marks.items() if any(map(mark, names))), None)
    if found is not None:
        return found, _SHEET
    if names and all(name.endswith(".npy") for name in names):
        return "a NumPy archive (.npz)", _REFUSED_STARTS[b"\x93NUMPY"][1]
    if any(name.endswith("/data.pkl") for name in names):
        return "a PyTorch file", "write its numbers as CSV or Parquet"
    return "a document in a zip", "write it as CSV or Parquet"


def _is_binary(head: bytes) -> bool:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16, which text may be in
        return False
    for offset in (0, 1):  # without the mark: every other byte is zero where the letters are Latin
        zeros, others = head[offset::2], head[1 - offset :: 2]
        if len(head) > 4 and zeros.count(0) > 0.9 * len(zeros) and others.count(0) < 0.1 * len(others):
            return False
    # A few stray zeros are a damaged text, whose reader can say in which line.
    return sum(map(head.count, (bytes([b]) for b in _BINARY))) > 0.05 * len(head)
