"""Parquet files: columns are read when they are asked for."""

from pathlib import Path

import polars as pl

from statewise.data.files.formats.content import Content
from statewise.data.files.formats.names import named_columns
from statewise.data.files.raw import Opened


def open_parquet(content: Content) -> Opened:
    """Lazy where the file itself is Parquet; one that lies packed is unpacked first. Raises ValueError with one line."""
    try:
        # Folders named as key=value are a matter of the whole data set, and no pattern hides in a file's name.
        frame = pl.scan_parquet(content.source(), glob=False, hive_partitioning=False)
        rows = frame.select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"data.path: {content.name} cannot be read as Parquet: {first}") from error
    frame, notes = named_columns(frame, Path(content.name))
    return Opened(frame, rows, None, ", ".join(["Parquet", *content.packing]), tuple(notes))
