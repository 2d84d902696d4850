"""Parquet files."""

import gzip
import io
from pathlib import Path

import polars as pl

from statewise.data.formats.names import named_columns
from statewise.data.raw import Opened


def open_parquet(path: Path) -> Opened:
    """Raises ValueError with one line."""
    if path.suffix.lower() in (".zst", ".zstd"):
        raise ValueError(f"data.path: {path}: a Parquet file is compressed inside; unpack the .zst around it")
    try:
        packed = path.suffix.lower() == ".gz"
        frame = pl.read_parquet(io.BytesIO(gzip.decompress(path.read_bytes())) if packed else path)
    except (pl.exceptions.PolarsError, OSError, EOFError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"data.path: {path} cannot be read as Parquet: {first}") from error
    frame, notes = named_columns(frame, path)
    return Opened(frame.lazy(), frame.height, None, "Parquet", tuple(notes))
