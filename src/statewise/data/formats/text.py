"""Text with separated fields."""

import re
from pathlib import Path

import polars as pl

from statewise.data.formats.names import named_columns, without_duplicate_mark
from statewise.data.raw import Opened


def open_text(path: Path, separator: str) -> Opened:
    """Raises ValueError with one line."""
    notes: list[str] = []
    frame = _read_csv(path, separator)
    if frame.width == 1:
        other = next((s for s in (";", "\t", "|", ",") if s in frame.columns[0]), None)
        if other is not None:
            frame = _read_csv(path, other)
            notes.append(f"{path.name}: fields are separated by {other!r}")
    _refuse_missing_header(frame, path)
    frame = frame.with_columns(pl.all().str.strip_chars())
    frame, about = named_columns(frame, path)
    frame = _without_blank_end(frame)
    return Opened(frame.lazy(), frame.height, 2, "CSV", (*notes, *about))


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
    names = [without_duplicate_mark(name).strip() for name in frame.columns]
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


def _without_blank_end(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height == 0 or frame.width == 0:
        return frame
    filled = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series().arg_true()
    return frame.head(int(filled[-1]) + 1 if len(filled) else 0)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
