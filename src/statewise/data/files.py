"""Which files are meant, and their rows one after another."""

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import polars as pl

from statewise.choices import nearest
from statewise.data.formats.arrow import open_arrow
from statewise.data.formats.content import Content, contents_of, lies_beside
from statewise.data.formats.dbn import open_dbn
from statewise.data.formats.kinds import kind_of
from statewise.data.formats.parquet import open_parquet
from statewise.data.formats.text import open_text
from statewise.data.joining import Wanted, joined
from statewise.data.progress import progress
from statewise.data.raw import Chunk, Opened, Raw
from statewise.data.reading import Reading

_SHOWN = 10
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Found:
    """The files that a path means.

    Attributes:
        roots: for each file the folder that was searched: what lies between it and the file may say something about the
            rows, as in symbol=AAPL/part-0.parquet; None where the file itself was named.
        notes: sentences about what was passed over.
    """

    paths: tuple[Path, ...]
    roots: tuple[Path | None, ...]
    notes: tuple[str, ...] = ()


def find_files(path: str | Sequence[str], folder: Path) -> list[Path]:
    """The files that `path` means, as `search` finds them."""
    return list(search(path, folder).paths)


def search(path: str | Sequence[str], folder: Path) -> Found:
    """One file, all in a folder and the folders in it, all that match a pattern, in the order of names; or those of a list.

    Relative paths mean `folder`; `~` is the home of the user. Raises FileNotFoundError (nothing there; with the absolute
    path and similar names) or ValueError (a folder without a file to read).
    """
    entries = [path] if isinstance(path, str) else list(path)
    if not entries or not all(entry.strip() for entry in entries):
        raise ValueError("data.path is empty: give a file, a folder, a pattern such as data/*.csv, or a list of these")
    found: dict[Path, Path | None] = {}
    notes: list[str] = []
    for entry in entries:
        paths, root = _search(entry, folder, notes)
        for each in paths:
            if each in found:
                notes.append(f"{each}: named twice and read once")
            found.setdefault(each, root)
    return Found(tuple(found), tuple(found.values()), tuple(notes))


def _search(entry: str, folder: Path, notes: list[str]) -> tuple[list[Path], Path | None]:
    """The files, the folder that was searched for them (None where a file was named)."""
    wanted = _absolute(entry, folder)
    if wanted.is_dir():
        return _inside(wanted, notes), wanted
    if wanted.exists():
        return [wanted], None
    if glob.has_magic(entry):
        # The folder itself may hold characters that mean something in a pattern.
        absolute = Path(entry).expanduser().is_absolute()
        pattern = str(wanted) if absolute else f"{glob.escape(str(folder.absolute()))}/{entry}"
        matches = sorted((f for f in map(Path, glob.glob(pattern, recursive=True)) if f.is_file()), key=_natural)
        if not matches:
            raise FileNotFoundError(f"data.path: no file matches the pattern {wanted}")
        fixed = Path(*_before_magic(wanted.parts))
        return _readable(matches, fixed, notes) or matches, fixed
    if not wanted.parent.is_dir():
        raise FileNotFoundError(f"data.path: no file {wanted}: the folder {wanted.parent} does not exist")
    names = sorted(f.name for f in wanted.parent.iterdir() if not lies_beside(f.name))
    similar = nearest(wanted.name, names) or [name for name in names if (wanted.parent / name).is_file()][:5]
    hint = f"similar names there: {', '.join(similar)}" if similar else "that folder holds no file to read"
    raise FileNotFoundError(f"data.path: no file {wanted}; {hint}")


def _absolute(entry: str, folder: Path) -> Path:
    try:
        wanted = Path(entry).expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(f"data.path: no home folder is known for {entry}: write the path in full") from error
    return wanted if wanted.is_absolute() else folder.absolute() / wanted


def _before_magic(parts: Sequence[str]) -> list[str]:
    """The folders of a pattern that are named as they are."""
    first = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return list(parts[:first])


def _inside(folder: Path, notes: list[str]) -> list[Path]:
    """All files of a folder and the folders in it that may hold rows."""
    if (folder / "_delta_log").is_dir() or next((folder / "metadata").glob("*.metadata.json"), None) is not None:
        raise ValueError(
            f"data.path: {folder} is a Delta or Iceberg table, whose files hold rows that were deleted, too: write it as "
            "Parquet, with polars: pl.read_delta(...).write_parquet('bars.parquet')"
        )
    entries = sorted(folder.rglob("*"), key=_natural)
    files = [entry for entry in entries if entry.is_file()]
    astray = [entry.name for entry in entries if entry.is_symlink() and not entry.exists()]
    if astray:
        notes.append(f"passed over, links that lead nowhere: {', '.join(astray[:_SHOWN])}")
    readable = _readable(files, folder, notes)
    if not readable:
        held = f"only {', '.join(f.name for f in files[:5])}" if files else "no file at all"
        raise ValueError(f"data.path: the folder {folder} holds nothing to read: {held}")
    return readable


def _readable(files: list[Path], root: Path, notes: list[str]) -> list[Path]:
    readable = [f for f in files if not lies_beside(str(f.relative_to(root)))]
    beside = [f.name for f in files if f not in set(readable)]
    if beside and readable:
        listed = ", ".join(beside[:_SHOWN]) + (", ..." if len(beside) > _SHOWN else "")
        notes.append(f"passed over, hidden or no data by their names: {listed}")
    return readable


def _natural(path: Path) -> list[tuple[int, str]]:
    """part-2 before part-10."""
    return [(int(text or 0), "") if i % 2 else (0, text) for i, text in enumerate(re.split(r"(\d+)", str(path)))]


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
