"""Databento's DBN: bars (the schemas ohlcv-*) and trades, read as an array of records.

A file is its metadata, whose length stands in bytes 4 to 8, and then records of one length. Prices are integers of 1e-9,
times are nanoseconds since 1970 in UTC and mean the start of a bar. An instrument's number means a symbol on certain days
only, as the metadata say.
"""

import datetime
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from statewise.data.files.formats.content import Content
from statewise.data.files.raw import Opened

PRICE_UNIT = 1e9
_HEADER = [("length", "u1"), ("rtype", "u1"), ("publisher_id", "<u2"), ("instrument_id", "<u4"), ("ts_event", "<u8")]
BAR = np.dtype([*_HEADER, *((price, "<i8") for price in ("open", "high", "low", "close")), ("volume", "<u8")])
TRADE = np.dtype(
    [
        *(*_HEADER, ("price", "<i8"), ("size", "<u4"), ("action", "S1"), ("side", "S1"), ("flags", "u1"), ("depth", "u1")),
        *(("ts_recv", "<u8"), ("ts_in_delta", "<i4"), ("sequence", "<u4")),
    ]
)
_LAYOUTS = {32: BAR, 33: BAR, 34: BAR, 35: BAR, 36: BAR, 17: BAR, 0: TRADE}  # by rtype
_SCHEMAS = {32: "ohlcv-1s", 33: "ohlcv-1m", 34: "ohlcv-1h", 35: "ohlcv-1d", 36: "ohlcv-eod", 17: "ohlcv", 0: "trades"}
_PRICES = ("open", "high", "low", "close", "price")
_VALUES = (*_PRICES, "volume", "size")
_IDENTIFIERS = ("instrument_id", "publisher_id")
_UNDEFINED_PRICE = np.iinfo(np.int64).max
_UNDEFINED_TIME = np.iinfo(np.uint64).max
_WORD = 4  # bytes that a record's length is counted in


def open_dbn(content: Content) -> Opened:
    """ts_event (ns, UTC), symbol where the file maps any, prices, volume or size, instrument_id, publisher_id.

    Raises ValueError with one line: damaged, records of another schema, or the package databento-dbn is not installed.
    """
    source = content.source()
    data = np.memmap(source, np.uint8, "r") if isinstance(source, Path) else np.frombuffer(source, np.uint8)
    start = 8 + int.from_bytes(data[4:8].tobytes(), "little") if len(data) >= 8 else 8
    if len(data) < start:
        raise ValueError(f"data.path: {content.name} ends inside its metadata: fetch the file again")
    metadata = _metadata(content, data[:start].tobytes())
    records = _records(content, data[start:], str(metadata.schema or ""))
    frame = _frame(records)
    file, notes = Path(content.name).name, []
    if records.dtype.fields and "price" in records.dtype.fields:
        notes.append(f"{file}: of each trade the price and the size are read")
    names = _symbols(frame, metadata, file, notes)
    if names is not None:
        frame.insert_column(1, names)
    schema = _SCHEMAS[int(records["rtype"][0])] if len(records) else str(metadata.schema)
    format_ = ", ".join([f"Databento DBN {data[3]}", schema, *content.packing])
    return Opened(frame.lazy(), frame.height, None, format_, tuple(notes))


def _metadata(content: Content, head: bytes) -> Any:
    try:
        import databento_dbn
    except ImportError as error:
        raise ValueError(
            f"data.path: {content.name} is a Databento file, which the extra dbn reads: pip install 'statewise[dbn]'"
        ) from error
    try:
        return databento_dbn.Metadata.decode(head)
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"data.path: {content.name} has metadata that cannot be read ({line}): fetch the file again"
        ) from error


def _records(content: Content, data: np.ndarray, schema: str) -> np.ndarray:
    """The records of a file that holds bars, or trades, and nothing else."""
    asked = "only bars and trades are read, ask Databento for the schema ohlcv-1m (or 1s, 1h, 1d)"
    if schema and not schema.startswith("ohlcv") and schema != "trades":
        raise ValueError(f'data.path: {content.name} holds records of the schema "{schema}": {asked}')
    if not len(data):
        return np.empty(0, TRADE if schema == "trades" else BAR)
    size, layout = int(data[0]) * _WORD, _LAYOUTS.get(int(data[1]) if len(data) > 1 else -1)
    if layout is None or size < layout.itemsize:
        raise ValueError(
            f"data.path: {content.name} holds other records (type {data[1:2].tolist()}), as a live recording does: {asked}"
        )
    # A time of sending may follow each record.
    formats = [layout[name] for name in layout.names or ()]
    spaced: Any = {"names": layout.names, "formats": formats, "itemsize": size}
    records: np.ndarray = data[: len(data) - len(data) % size].view(np.dtype(spaced))
    if len(records) and not bool(((records["length"] == data[0]) & (records["rtype"] == data[1])).all()):
        raise ValueError(f"data.path: {content.name} holds records of several kinds, as a live recording does: {asked}")
    if len(data) % size:
        raise ValueError(f"data.path: {content.name} ends inside record {len(records) + 1}: fetch the file again")
    return records


def _frame(records: np.ndarray) -> pl.DataFrame:
    # Fields lie apart in memory: each becomes a column of its own.
    fields = {name: np.ascontiguousarray(records[name]) for name in records.dtype.names or ()}
    time = pl.Series("ts_event", fields["ts_event"])
    whole = pl.select(pl.when(time != _UNDEFINED_TIME).then(time).cast(pl.Int64).alias("ts_event")).to_series()
    columns = [whole.cast(pl.Datetime("ns")).dt.replace_time_zone("UTC")]
    for name in _VALUES:
        if name in _PRICES and name in fields:
            # NumPy divides; polars multiplies by an inverse, whose last bit is another.
            values = fields[name] / PRICE_UNIT
            values[fields[name] == _UNDEFINED_PRICE] = np.nan
            columns.append(pl.Series(name, values, nan_to_null=True))
        elif name in fields:
            columns.append(pl.Series(name, fields[name]))
    return pl.DataFrame([*columns, *(pl.Series(name, fields[name]) for name in _IDENTIFIERS)])


def _symbols(frame: pl.DataFrame, metadata: Any, file: str, notes: list[str]) -> pl.Series | None:
    """The symbol of each row by instrument and day; the number where none is mapped; None where the file maps nothing."""
    intervals = _intervals(metadata)
    venues = frame.group_by("instrument_id").agg(pl.col("publisher_id").n_unique() > 1)
    if intervals.is_empty() and not venues["publisher_id"].any():
        return None
    days = frame.select("instrument_id", pl.col("ts_event").dt.date().alias("day"))
    pairs = days.unique().drop_nulls().sort("day")
    pairs = pairs.join_asof(
        intervals.sort("start"), left_on="day", right_on="start", by="instrument_id", check_sortedness=False
    )
    pairs = pairs.with_columns(pl.when(pl.col("day") < pl.col("end")).then("symbol").alias("symbol"))
    found = days.join(
        pairs.select("instrument_id", "day", "symbol"), on=["instrument_id", "day"], how="left", maintain_order="left"
    )
    lost = found["symbol"].null_count()
    if lost and not intervals.is_empty():
        notes.append(f"{file}: no symbol is mapped in {lost:,} rows, which are called by the number of their instrument")
    symbol = pl.coalesce(pl.col("symbol"), pl.col("instrument_id").cast(pl.String)).alias("symbol")
    named = found.select(symbol).with_columns(frame["publisher_id"], frame["instrument_id"])
    counts = named.group_by("symbol").agg(pl.col(*_IDENTIFIERS).n_unique())
    if counts.filter(pl.col("instrument_id") > 1).height:
        rolled = counts.filter(pl.col("instrument_id") > 1).sort("symbol")["symbol"].to_list()
        notes.append(
            f"{file}: several instruments follow one another under {', '.join(rolled[:5])}: prices may jump between them"
        )
    if counts.filter(pl.col("publisher_id") > 1).height:
        notes.append(f"{file}: several venues report the same symbol: each symbol and publisher is a series of its own")
        of = pl.format("{} (publisher {})", "symbol", "publisher_id")
        named = named.with_columns(of.alias("symbol"))
    return named["symbol"]


def _intervals(metadata: Any) -> pl.DataFrame:
    """instrument_id, start and end (the day after the last), symbol: what the metadata map."""
    forwards = str(metadata.stype_out or "") == "instrument_id"
    backwards = str(metadata.stype_in or "") == "instrument_id"
    rows: list[tuple[int, datetime.date, datetime.date, str]] = []
    for key, spans in metadata.mappings.items() if forwards or backwards else ():
        # A parent symbol stands for several instruments at a time, which are different series.
        ordered = sorted(spans, key=lambda span: span["start_date"])
        pairs = itertools.pairwise(ordered)
        parent = forwards and any(a["end_date"] > b["start_date"] and a["symbol"] != b["symbol"] for a, b in pairs)
        for span in ordered:
            number, symbol = (span["symbol"], key) if forwards else (key, span["symbol"])
            if number.isdecimal() and symbol:
                rows.append((int(number), span["start_date"], span["end_date"], f"{symbol} {number}" if parent else symbol))
    schema = {"instrument_id": pl.UInt32, "start": pl.Date, "end": pl.Date, "symbol": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").unique(["instrument_id", "start"], keep="first", maintain_order=True)
