"""Arrow IPC files, which Feather (version 2) is another name of, and streams of the same."""

import io
from pathlib import Path

import polars as pl

from statewise.data.files.formats.content import Content
from statewise.data.files.formats.names import named_columns
from statewise.data.files.raw import Opened


def open_arrow(content: Content, *, stream: bool = False) -> Opened:
    """Lazy for a file that is not packed; a stream can only be read whole. Raises ValueError with one line."""
    try:
        source = content.source()
        if stream:
            frame = pl.read_ipc_stream(io.BytesIO(source) if isinstance(source, bytes) else source).lazy()
        else:
            frame = pl.scan_ipc(source, glob=False, hive_partitioning=False)
        rows = frame.select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"data.path: {content.name} cannot be read as Arrow: {first}") from error
    frame, notes = named_columns(frame, Path(content.name))
    return Opened(frame, rows, None, ", ".join(["Arrow stream" if stream else "Arrow", *content.packing]), tuple(notes))
