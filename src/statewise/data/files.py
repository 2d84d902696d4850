"""Which files are meant, and their rows one after another."""

import glob
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from statewise.choices import nearest
from statewise.data.formats.parquet import open_parquet
from statewise.data.formats.text import open_text
from statewise.data.raw import Chunk, Opened, Raw
from statewise.data.reading import Reading

_SEPARATORS = {".csv": ",", ".txt": ",", ".tsv": "\t", ".tab": "\t"}
_PARQUET = (".parquet", ".pq")
_PACKED = (".gz", ".zst", ".zstd")


def find_files(path: str, folder: Path) -> list[Path]:
    """The files that `path` means: one file, or all that match a pattern, in the order of their names.

    Relative paths mean `folder`. Raises FileNotFoundError (nothing there; with similar names) or ValueError (a folder).
    """
    if not path.strip():
        raise ValueError("data.path is empty: give a CSV or Parquet file, or a pattern such as data/*.csv")
    wanted = Path(path).expanduser()
    if not wanted.is_absolute():
        wanted = folder.absolute() / wanted
    if wanted.is_dir():
        example = next((f.name for f in sorted(wanted.iterdir()) if _kind(f) is not None), "*.csv")
        raise ValueError(f"data.path: {wanted} is a folder; name a file in it or a pattern, e.g. {wanted / example}")
    if wanted.exists():
        return [wanted]
    if glob.has_magic(path):
        # The folder itself may hold characters that mean something in a pattern.
        absolute = Path(path).expanduser().is_absolute()
        pattern = str(wanted) if absolute else f"{glob.escape(str(folder.absolute()))}/{path}"
        found = sorted(f for f in map(Path, glob.glob(pattern, recursive=True)) if f.is_file())
        if found:
            return found
        raise FileNotFoundError(f"data.path: no file matches the pattern {wanted}")
    if not wanted.parent.is_dir():
        raise FileNotFoundError(f"data.path: no file {wanted}: the folder {wanted.parent} does not exist")
    names = sorted(f.name for f in wanted.parent.iterdir() if f.is_file())
    similar = nearest(wanted.name, names)
    similar = similar or [name for name in names if _kind(Path(name)) is not None][:5]
    hint = f"similar names there: {', '.join(similar)}" if similar else "that folder holds no CSV or Parquet file"
    raise FileNotFoundError(f"data.path: no file {wanted}; {hint}")


def read_files(paths: Sequence[Path], reading: Reading) -> Raw:
    """Opens and joins files that have the same columns; every fault of a file is one line that names it."""
    opened: list[Opened] = []
    notes: list[str] = []
    names: list[str] = []
    for path in paths:
        one = _open(path, reading)
        notes += one.notes
        columns = list(one.frame.collect_schema())
        if opened and set(columns) != set(names):
            odd = sorted(set(columns) ^ set(names))
            raise ValueError(
                f"data.path: {path} and {paths[0]} have different columns (only one has {_quoted(odd)}): read them apart"
            )
        names = names or columns
        opened.append(one)
    frames = [one.frame.select(names) for one in opened]
    try:
        pl.concat([frame.head(0).collect() for frame in frames], how="vertical_relaxed")  # a lazy one would not complain
        joined = frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"data.path: the files that match hold different types of columns: {first}") from error
    chunks = tuple(Chunk(path, one.rows, one.first_line, one.format) for path, one in zip(paths, opened, strict=True))
    total = sum(chunk.rows for chunk in chunks)
    if total == 0:
        what = "the file has" if len(paths) == 1 else f"all {len(paths)} files have"
        raise ValueError(f"data.path: {paths[0]}: {what} a header and no rows (0 rows)")
    rows = f"{total:,} row" + ("s" if total > 1 else "")
    if len(paths) > 1:
        each = ", ".join(f"{chunk.path.name} {chunk.rows:,}" for chunk in chunks[:10])
        notes.insert(0, f"{len(paths)} files, {rows}: {each}" + (", ..." if len(paths) > 10 else ""))
    else:
        notes.insert(0, f"{paths[0]}: {rows}")
    return Raw(joined, chunks, tuple(notes))


def _open(path: Path, reading: Reading) -> Opened:
    kind = _kind(path)
    if kind in _PARQUET:
        return open_parquet(path)
    if kind is None:
        raise ValueError(
            f"data.path: {path} is of no kind that is read: use .csv, .tsv, .txt or .parquet, also with .gz or .zst behind"
        )
    return open_text(path, _SEPARATORS[kind])


def _kind(path: Path) -> str | None:
    """The suffix that says what a file holds (`.csv` for bars.csv.gz), None where it is not one that is read."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes and (suffixes[-1] in _SEPARATORS or suffixes[-1] in _PARQUET) else None


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names[:5]) + (", ..." if len(names) > 5 else "")
