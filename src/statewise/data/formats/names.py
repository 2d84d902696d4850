"""Names of columns: stripped, distinct, and a name for those that have none."""

import re
from pathlib import Path

import polars as pl

_DUPLICATE = re.compile(r"_duplicated_\d+$")  # what polars appends to the second column of the same name
_UNNAMED = "column without a name"


def named_columns(frame: pl.DataFrame, path: Path) -> tuple[pl.DataFrame, list[str]]:
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


def without_duplicate_mark(name: str) -> str:
    """The name as the file has it."""
    return _DUPLICATE.sub("", name)
