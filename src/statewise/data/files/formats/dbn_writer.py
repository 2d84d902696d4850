"""Writes one-minute bars as Databento's DBN, as the historical service of Databento would deliver them."""

import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import zstandard

from statewise.data.files.formats.dbn import BAR, PRICE_UNIT

_MINUTE_BAR = 33  # rtype of ohlcv-1m
_UNDEFINED_PRICE = np.iinfo(np.int64).max


def write_dbn(frame: pl.DataFrame, path: Path) -> None:
    """Writes ts (ns, UTC), symbol, open, high, low, close, volume; compressed where the name ends in .zst.

    Prices are rounded to 1e-9, the unit of the format; a price that is NaN or null is written as undefined. Records stand
    in the order of time. Raises ValueError: the package databento-dbn is not installed.
    """
    try:
        from databento_dbn import Metadata, Schema, SType
    except ImportError as error:
        raise ValueError("DBN files are written with the extra dbn: pip install 'statewise[dbn]'") from error
    symbols = frame["symbol"].unique().sort().to_list()
    numbers = frame.select(pl.col("symbol").replace_strict(symbols, range(1, len(symbols) + 1), return_dtype=pl.UInt32))
    ordered = frame.with_columns(numbers.to_series().alias("instrument_id")).sort("ts", "instrument_id")
    times = ordered["ts"].cast(pl.Datetime("ns")).to_physical().to_numpy()
    records = np.zeros(len(ordered), BAR)
    records["length"], records["rtype"] = BAR.itemsize // 4, _MINUTE_BAR
    records["instrument_id"], records["ts_event"] = ordered["instrument_id"].to_numpy(), times
    for name in ("open", "high", "low", "close"):
        price = ordered[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        known = np.isfinite(price)
        records[name] = _UNDEFINED_PRICE
        records[name][known] = np.rint(price[known] * PRICE_UNIT).astype(np.int64)
    records["volume"] = ordered["volume"].cast(pl.UInt64).to_numpy()

    first, last = (times[0], times[-1]) if len(times) else (0, 0)
    day = datetime.timedelta(days=1)
    start, end = (datetime.date(1970, 1, 1) + int(t) // (86_400 * 10**9) * day for t in (first, last))
    mappings = [
        SimpleNamespace(
            raw_symbol=symbol, intervals=[SimpleNamespace(start_date=start, end_date=end + day, symbol=str(number))]
        )
        for number, symbol in enumerate(symbols, start=1)
    ]
    metadata = Metadata(
        dataset="STATEWISE.SYN",
        start=int(first),
        end=int(last) + 60 * 10**9,
        stype_in=SType.from_str("raw_symbol"),
        stype_out=SType.from_str("instrument_id"),
        schema=Schema.from_str("ohlcv-1m"),
        symbols=symbols,
        mappings=mappings,
    )
    content = metadata.encode() + records.tobytes()
    if path.suffix == ".zst":
        content = zstandard.ZstdCompressor().compress(content)
    path.write_bytes(content)
