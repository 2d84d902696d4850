"""Files without a column for the series: pieces of one series that follow one another, or a series each."""

import re
from itertools import pairwise
from pathlib import PurePath

import numpy as np
import polars as pl
from jaxtyping import Int

from statewise.data.files.raw import Chunk, Raw

_COMPARED = 100  # rows of two files, to see whether one is a copy
FILE = "file"  # data.series for: the file tells the series
_SUFFIXES = frozenset(
    [
        *(".csv", ".txt", ".tsv", ".tab", ".dat", ".prn", ".data", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".dbn"),
        *(".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz", ".zip", ".tar", ".tgz"),
    ]
)
_DATE = r"(?:19|20)\d\d(?:[-_.]?(?:0[1-9]|1[0-2])(?:[-_.]?(?:0[1-9]|[12]\d|3[01]))?|[-_.]?[Qq][1-4])?"
_PERIOD = re.compile(rf"(?<![0-9A-Za-z])(?:{_DATE}|(?:part|chunk|split|page)[-_. ]?\d+)(?![0-9A-Za-z])")


def series_of_files(raw: Raw, times: pl.Series | None, *, forced: bool) -> tuple[pl.Series | None, list[str]]:
    """The name of its series for every row, called `file`, or None where all files are one series; and sentences.

    Files whose times do not overlap follow one another and are one series. Of those that overlap each is a series, named
    by what tells the files apart: the name without its dates, the name, or the folder. Files that differ in their dates
    only stay one series: what they have in common are repeated rows.

    forced: the user says that the file tells the series.
    """
    chunks = raw.chunks
    bounds = _bounds(raw)
    if len(chunks) < 2 and not forced:
        return None, []
    spans = None if times is None else _spans(times, bounds)
    if not forced and (spans is None or not _overlapping(spans, np.zeros(len(chunks), np.int64))):
        if spans is None:
            return None, []
        return None, [f"the {len(chunks)} files follow one another in time and are one series (data.series=file: one each)"]
    if not forced and (_differ_in_dates_only(chunks) or _hold_the_same(raw, bounds)):
        return None, []
    for label in (_undated, _stem, _folder, _place):
        names = [label(chunk) for chunk in chunks]
        codes = np.unique(names, return_inverse=True)[1]
        if all(names) and (len(set(names)) > 1 or len(chunks) == 1) and (spans is None or not _overlapping(spans, codes)):
            break
    rows = np.diff(bounds)
    series = pl.Series(FILE, names, dtype=pl.String).gather(np.repeat(np.arange(len(chunks)), rows))
    why = "as data.series says" if forced else "because their times overlap"
    count = len(set(names))
    return series, [f"{count} series, told apart by the names of their files, {why}: {', '.join(sorted(set(names))[:5])}"]


def _bounds(raw: Raw) -> Int[np.ndarray, " chunks_and_one"]:
    """Where the rows of each chunk begin, among those that are kept, and where they end."""
    ends = np.cumsum([0, *(chunk.rows for chunk in raw.chunks)])
    return ends if raw.kept is None else np.searchsorted(raw.kept, ends)


def _spans(times: pl.Series, bounds: Int[np.ndarray, " chunks_and_one"]) -> Int[np.ndarray, "chunks 2"]:
    stamps = times.to_physical()
    parts = [stamps.slice(int(a), int(b - a)) for a, b in pairwise(bounds)]
    # A file without a row that counts overlaps with none.
    never = np.iinfo(np.int64).max
    return np.array([(never if p.min() is None else p.min(), -never if p.max() is None else p.max()) for p in parts], np.int64)


def _overlapping(spans: Int[np.ndarray, "chunks 2"], codes: Int[np.ndarray, " chunks"]) -> bool:
    """Whether any two files of one code share more than a moment at the end of one and the start of the other."""
    for code in np.unique(codes):
        of = spans[codes == code]
        of = of[np.lexsort((of[:, 1], of[:, 0]))]
        latest = np.maximum.accumulate(of[:, 1])[:-1]
        # Two files that start together overlap, even if they are one row each.
        if bool(((of[1:, 0] < latest) | ((of[1:, 0] == of[:-1, 0]) & (of[1:, 0] <= latest))).any()):
            return True
    return False


def _differ_in_dates_only(chunks: tuple[Chunk, ...]) -> bool:
    return len({(_folder(chunk), _undated(chunk)) for chunk in chunks}) == 1


def _hold_the_same(raw: Raw, bounds: Int[np.ndarray, " chunks_and_one"]) -> bool:
    """Whether one file is a copy of another: as many rows, of which the first are equal."""
    sizes = np.diff(bounds)
    if len(np.unique(sizes)) == len(sizes):
        return False
    chunk = np.repeat(np.arange(len(sizes)), np.minimum(sizes, _COMPARED))
    within = np.concatenate([np.arange(min(size, _COMPARED)) for size in sizes])
    # A column at a time: together they may be more than memory holds.
    hashes = [raw.column(name).gather(bounds[:-1][chunk] + within).hash() for name in raw.names]
    rows = pl.DataFrame([column.rename(str(i)) for i, column in enumerate(hashes)]).select(
        pl.struct(pl.all()).hash().alias("row")
    )
    begins = rows.with_columns(pl.Series("chunk", chunk)).group_by("chunk").agg("row")
    prints = {(int(sizes[code]), tuple(each)) for code, each in begins.rows()}
    return len(prints) < begins.height


def _stem(chunk: Chunk) -> str:
    """The name of the file, or of the member, without the suffixes of its format and packing."""
    return _without_suffixes(chunk.name.rsplit("!", 1)[-1])


def _undated(chunk: Chunk) -> str:
    return _without_period(_stem(chunk))


def _folder(chunk: Chunk) -> str:
    """The folder of the file, or of the member in its archive; the name of the archive where there is none."""
    if "!" not in chunk.name:
        return chunk.path.parent.name
    archive = _without_suffixes(chunk.path.name)
    return PurePath(chunk.name.rsplit("!", 1)[-1]).parent.name or _without_period(archive) or archive


def _without_suffixes(place: str) -> str:
    path = PurePath(place)
    while path.suffix.lower() in _SUFFIXES:
        path = path.with_suffix("")
    return path.name


def _without_period(name: str) -> str:
    return re.sub(r"[-_. ]{2,}", "-", _PERIOD.sub("", name)).strip("-_. ")


def _place(chunk: Chunk) -> str:
    return chunk.name
