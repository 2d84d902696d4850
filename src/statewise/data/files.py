"""From a path to raw columns: which files are meant, what is in them, and where each row stood.

Nothing is interpreted here. A CSV gives columns of text, a Parquet file its own types; `columns.py` finds out what each
column is for and `parsing.py` turns text into times and numbers.
"""

import glob
import gzip
import io
import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from statewise.choices import nearest

ROW = "statewise: row"  # the position of each row in the raw frame; dropped before a table leaves this package

_SEPARATORS = {".csv": ",", ".txt": ",", ".tsv": "\t", ".tab": "\t"}
_PARQUET = (".parquet", ".pq")
_PACKED = (".gz", ".zst", ".zstd")
_DUPLICATE = re.compile(r"_duplicated_\d+$")  # what polars appends to the second column of the same name
_UNNAMED = "column without a name"


@dataclass(frozen=True)
class Raw:
    """The rows of one or more files, one after another, as read, with a column ROW that numbers them."""

    frame: pl.DataFrame
    paths: tuple[Path, ...]
    counts: tuple[int, ...]  # rows of each file, blank ones at its end not counted
    notes: tuple[str, ...]

    def where(self, row: int) -> str:
        """The file and place of a row of `frame`, counted from 1 as a person does, for a message."""
        for path, count in zip(self.paths, self.counts, strict=True):
            if row < count:
                # Row N of a text file with a header stands in line N + 1 (no quoted field may hold a line break).
                line = "" if _is_parquet(path) else f" (line {row + 2:d})"
                return f"{path}: row {row + 1:d}{line}"
            row -= count
        raise IndexError(row)

    @property
    def name(self) -> str:
        """The file, or the first of several, for a message about all of them."""
        rest = len(self.paths) - 1
        return str(self.paths[0]) + (f" and {rest} more" if rest else "")


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


def read_files(paths: list[Path]) -> Raw:
    """Reads and joins files that have the same columns; every fault of a file is one line that names it."""
    frames: list[pl.DataFrame] = []
    notes: list[str] = []
    for path in paths:
        frame, about = _read_parquet(path) if _is_parquet(path) else _read_text(path)
        notes += about
        if frames and set(frame.columns) != set(frames[0].columns):
            odd = sorted(set(frame.columns) ^ set(frames[0].columns))
            raise ValueError(
                f"data.path: {path} and {paths[0]} have different columns (only one has {_quoted(odd)}): read them apart"
            )
        frames.append(frame.select(frames[0].columns) if frames else frame)
    try:
        joined = pl.concat(frames, how="vertical_relaxed", rechunk=True)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"data.path: the files that match hold different types of columns: {_line(error)}") from error
    counts = tuple(frame.height for frame in frames)
    if joined.height == 0:
        what = "the file has" if len(paths) == 1 else f"all {len(paths)} files have"
        raise ValueError(f"data.path: {paths[0]}: {what} a header and no rows (0 rows)")
    rows = f"{joined.height:,} row" + ("s" if joined.height > 1 else "")
    if len(paths) > 1:
        each = ", ".join(f"{path.name} {count:,}" for path, count in zip(paths[:10], counts, strict=False))
        notes.insert(0, f"{len(paths)} files, {rows}: {each}" + (", ..." if len(paths) > 10 else ""))
    else:
        notes.insert(0, f"{paths[0]}: {rows}")
    return Raw(joined.with_row_index(ROW), tuple(paths), counts, tuple(notes))


def _kind(path: Path) -> str | None:
    """The suffix that says what a file holds (`.csv` for bars.csv.gz), None where it is not one that is read."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes and (suffixes[-1] in _SEPARATORS or suffixes[-1] in _PARQUET) else None


def _is_parquet(path: Path) -> bool:
    return _kind(path) in _PARQUET


def _read_parquet(path: Path) -> tuple[pl.DataFrame, list[str]]:
    if path.suffix.lower() in (".zst", ".zstd"):
        raise ValueError(f"data.path: {path}: a Parquet file is compressed inside; unpack the .zst around it")
    try:
        packed = path.suffix.lower() == ".gz"
        frame = pl.read_parquet(io.BytesIO(gzip.decompress(path.read_bytes())) if packed else path)
    except (pl.exceptions.PolarsError, OSError, EOFError) as error:
        raise ValueError(f"data.path: {path} cannot be read as Parquet: {_line(error)}") from error
    return _named_columns(frame, path)


def _read_text(path: Path) -> tuple[pl.DataFrame, list[str]]:
    kind = _kind(path)
    if kind is None:
        raise ValueError(
            f"data.path: {path} is of no kind that is read: use .csv, .tsv, .txt or .parquet, also with .gz or .zst behind"
        )
    notes: list[str] = []
    separator = _SEPARATORS[kind]
    frame = _read_csv(path, separator)
    if frame.width == 1:
        other = next((s for s in (";", "\t", "|", ",") if s in frame.columns[0]), None)
        if other is not None:
            frame = _read_csv(path, other)
            notes.append(f"{path.name}: fields are separated by {other!r}")
    _refuse_missing_header(frame, path)
    frame = frame.with_columns(pl.all().str.strip_chars())
    frame, about = _named_columns(frame, path)
    return _without_blank_end(frame), notes + about


def _read_csv(path: Path, separator: str) -> pl.DataFrame:
    try:
        return pl.read_csv(path, separator=separator, infer_schema=False)
    except pl.exceptions.NoDataError as error:
        raise ValueError(f"data.path: {path} is empty (0 rows, not even a header)") from error
    except (pl.exceptions.PolarsError, OSError) as error:
        if "more fields" in str(error):
            raise ValueError(f"data.path: {path}: {_longest_line(path, separator)}") from error
        if "utf-8" in str(error):
            raise ValueError(f"data.path: {path} is not text in UTF-8: save it as a CSV in UTF-8") from error
        raise ValueError(f"data.path: {path} cannot be read as CSV: {_line(error)}") from error


def _longest_line(path: Path, separator: str) -> str:
    """Names the first line that has more fields than the header."""
    lines = pl.read_csv(path, separator="\x01", quote_char=None, has_header=False, infer_schema=False).to_series()
    fields = lines.str.replace_all(r'"[^"]*"', "").str.count_matches(separator, literal=True) + 1
    longer = (fields > fields[0]).arg_true()
    if len(longer) == 0:
        return "a line has more fields than the header: is a quote left open?"
    first = int(longer[0])
    return f"row {first} (line {first + 1}) has {fields[first]} fields, the header {fields[0]}: correct that line"


def _refuse_missing_header(frame: pl.DataFrame, path: Path) -> None:
    """A first line of numbers (and dates) is data, not names; 0, 1, 2 ... are names that libraries write."""
    names = [_DUPLICATE.sub("", name).strip() for name in frame.columns]
    names = [name for name in names if name]
    counted = len(names) > 1 and names in (
        [str(i) for i in range(len(names))],
        [str(i + 1) for i in range(len(names))],
    )
    if names and not counted and all(_is_value(name) for name in names):
        raise ValueError(
            f"data.path: {path} has no header: its first line holds values ({', '.join(names[:3])}, ...); "
            "put a line with column names on top, e.g. time,open,high,low,close,volume"
        )


def _is_value(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return re.fullmatch(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([T ][\d:.,]+)?(Z|[+-][\d:]+)?", name) is not None
    return True


def _named_columns(frame: pl.DataFrame, path: Path) -> tuple[pl.DataFrame, list[str]]:
    """Names stripped and distinct; empty columns without a name (a comma at the end of each line) dropped."""
    originals = frame.columns
    stripped = [name.strip() for name in originals]
    doubles = [_DUPLICATE.sub("", n) for n in stripped if _DUPLICATE.search(n) and _DUPLICATE.sub("", n) in stripped]
    doubles = [name for name in doubles if name] or [n for n in stripped if n and stripped.count(n) > 1]
    if doubles:
        raise ValueError(f'data.path: {path} has two columns named "{doubles[0]}": rename or remove one')
    kept: dict[str, str] = {}
    notes: list[str] = []
    for index, (original, name) in enumerate(zip(originals, stripped, strict=True)):
        if name and not _DUPLICATE.fullmatch(name):
            kept[name] = original
        elif (frame[original].is_null() | (frame[original].cast(pl.String, strict=False) == "")).all():
            notes.append(f"{path.name}: field {index + 1} has neither name nor values and is left out")
        else:
            kept[f"{_UNNAMED} {index + 1}"] = original
    return frame.select(pl.col(original).alias(name) for name, original in kept.items()), notes


def is_unnamed(column: str) -> bool:
    """Whether the file gives this column no name: often the row numbers that a library has written."""
    return column.startswith(_UNNAMED)


def _without_blank_end(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height == 0 or frame.width == 0:
        return frame
    filled = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series().arg_true()
    return frame.head(int(filled[-1]) + 1 if len(filled) else 0)


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names[:5]) + (", ..." if len(names) > 5 else "")


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
