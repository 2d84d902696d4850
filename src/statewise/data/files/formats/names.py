"""Names of columns: stripped, distinct, and a name for those that have none."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import polars as pl

_DUPLICATE = re.compile(r"_duplicated_\d+$")  # what polars appends to the second column of the same name
UNNAMED = "column without a name"
Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


def named_columns(frame: Frame, path: Path) -> tuple[Frame, list[str]]:
    """Names stripped and distinct; empty columns without a name (a comma at the end of each line) dropped.

    Of a lazy frame no column is read but those without a name.
    """
    originals = frame.collect_schema().names()
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
        elif _is_empty(frame.lazy().select(pl.col(original)).collect().to_series()):
            notes.append(f"{path.name}: field {index + 1} has neither name nor values and is left out")
        else:
            kept[f"{UNNAMED} {index + 1}"] = original
    return frame.select([pl.col(original).alias(name) for name, original in kept.items()]), notes


def distinct_names(frame: pl.DataFrame, names: Sequence[str], file: str) -> tuple[pl.DataFrame, list[str]]:
    """The columns under the names that the file has for them, "" for none; empty ones without a name dropped.

    Raises ValueError with one line where two have the same name.
    """
    doubles = [name for name in names if name and names.count(name) > 1]
    if doubles:
        raise ValueError(f'data.path: {file} has two columns named "{doubles[0]}": rename or remove one')
    empty = [place for place, name in enumerate(names) if not name and _is_empty(frame.to_series(place))]
    kept = [pl.nth(place).alias(name or f"{UNNAMED} {place + 1}") for place, name in enumerate(names) if place not in empty]
    return frame.select(kept), [f"field {place + 1} has neither name nor values and is left out" for place in empty]


def _is_empty(column: pl.Series) -> bool:
    if column.dtype == pl.String:
        return bool((column.is_null() | (column == "")).all())
    return column.null_count() == len(column)


def is_unnamed(column: str) -> bool:
    """Whether the file gives this column no name: often the row numbers that a library has written."""
    return column.startswith(UNNAMED)
