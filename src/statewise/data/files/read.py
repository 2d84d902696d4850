"""The rows of files one after another."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import polars as pl

from statewise.data.files.formats.arrow import open_arrow
from statewise.data.files.formats.content import Content, contents_of
from statewise.data.files.formats.dbn import open_dbn
from statewise.data.files.formats.kinds import kind_of
from statewise.data.files.formats.parquet import open_parquet
from statewise.data.files.formats.text import open_text
from statewise.data.files.joining import Wanted, joined
from statewise.data.files.raw import Chunk, Opened, Raw
from statewise.data.files.reading import Reading
from statewise.data.files.search import Found
from statewise.data.progress import progress

_SHOWN = 10
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def read_files(found: Found | Sequence[Path], reading: Reading, wanted: Wanted = None) -> Raw:
    """Opens and joins files that have the same columns; every fault of a file is one line that names it.

    wanted: the numeric columns that are needed, or what says them from all names; others may be missing in some files. None
    means all.
    Parquet and Arrow files are left where they are until a column is asked for; texts are read one after another.
    """
    if not isinstance(found, Found):
        found = Found(tuple(found), (None,) * len(found))
    about_files: dict[str, list[str]] = {}  # a sentence -> the files that it is about
    parts: list[tuple[Content, Opened]] = []
    empty: list[str] = []
    with progress(f"reading {found.paths[0].parent}", len(found.paths), "files", _read_at_once(found.paths)) as done:
        for path, root in zip(found.paths, found.roots, strict=True):
            for content in contents_of(path):
                one = _open(content, reading)
                file = Path(content.name).name
                for note in one.notes:
                    about_files.setdefault(note.removeprefix(f"{file}: "), []).append(file)
                if one.rows == 0:
                    empty.append(content.name)
                    continue
                parts.append((content, _with_partition(one, path, root)))
            done(path.name)
    notes = [*found.notes, *(_about(files, note) for note, files in about_files.items())]
    if not parts:
        what = "the file has" if len(empty) == 1 else f"all {len(empty)} files have"
        raise ValueError(f"data.path: {empty[0]}: {what} a header and no rows (0 rows)")
    if empty:
        notes.append(f"without rows: {', '.join(Path(name).name for name in empty[:_SHOWN])}")
    frame, about = joined([(content.name, one.frame) for content, one in parts], wanted, reading)
    chunks = tuple(Chunk(content.path, content.name, one.rows, one.first_line, one.format) for content, one in parts)
    total = sum(chunk.rows for chunk in chunks)
    rows = f"{total:,} row" + ("s" if total > 1 else "")
    if len(chunks) > 1:
        each = ", ".join(f"{Path(chunk.name).name} {chunk.rows:,}" for chunk in chunks[:_SHOWN])
        notes.insert(0, f"{len(chunks)} files, {rows}: {each}" + (", ..." if len(chunks) > _SHOWN else ""))
    else:
        notes.insert(0, f"{chunks[0].name}: {rows}")
    return Raw(frame, chunks, (*notes, *about))


def _about(files: list[str], note: str) -> str:
    return f"{files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}: {note}"


def _read_at_once(paths: Sequence[Path]) -> int:
    """Bytes of the files that are not left where they are, as far as their names tell."""
    return sum(path.stat().st_size for path in paths if not {".parquet", ".pq", ".arrow", ".feather"} & set(path.suffixes))


def _open(content: Content, reading: Reading) -> Opened:
    kind = kind_of(content)
    if kind == "parquet":
        return open_parquet(content)
    if kind == "dbn":
        return open_dbn(content)
    if kind in ("arrow", "arrow stream"):
        return open_arrow(content, stream=kind == "arrow stream")
    return open_text(content, reading)


def _with_partition(one: Opened, path: Path, root: Path | None) -> Opened:
    """With the columns that the folders between `root` and the file stand for, as symbol=AAPL does."""
    if root is None:
        return one
    pairs = (part.partition("=") for part in path.parent.relative_to(root).parts if "=" in part)
    names = set(one.frame.collect_schema())
    values = {key: unquote(value) for key, _, value in pairs if key and key not in names}
    if not values:
        return one
    columns = [pl.lit(None if v == _NO_PARTITION else v, dtype=pl.String).alias(k) for k, v in values.items()]
    return Opened(one.frame.with_columns(columns), one.rows, one.first_line, one.format, one.notes)
