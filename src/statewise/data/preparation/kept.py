"""What a file costs to read, cut and scale, kept for the next run: everything that windows are made of."""

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from statewise.data.preparation.cache import WORTHWHILE, Cache, Entry
from statewise.data.preparation.fingerprint import Fingerprint
from statewise.data.preparation.scaling import StandardScaler
from statewise.data.segments.cut import Segments
from statewise.data.segments.observed import Observed
from statewise.data.source import Source
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table

log = logging.getLogger(__name__)

# What is kept as arrays, or made anew; the other fields are plain values.
_TABLE_ARRAYS, _SEGMENT_ARRAYS = ("rows", "numeric", "inserted"), ("observed", "usable", "bounds", "kept_from")


@dataclass(frozen=True)
class Kept:
    """A source whose table was cut and scaled.

    Attributes:
        vanished: of each column, the steps from row to row that the rounding to the tensor's type has made zero.
    """

    source: Source
    segments: Segments
    scaler: StandardScaler
    tensor: Tensor  # (r c) scaled
    vanished: tuple[int, ...]


class Store:
    """The place of one prepared table in a cache.

    Args:
        files: that are read.
        options: everything else that the scaled tensor depends on.
        always: keep small ones, too.
    """

    def __init__(self, files: Sequence[Path], options: Mapping[str, Any], folder: Path, *, always: bool = False) -> None:
        self._fingerprint = Fingerprint(files, options, folder / "digests")
        self._cache = Cache(folder)
        self._always = always

    def load(self, read: Callable[[], Source]) -> Kept | None:
        """What an earlier run has kept, None where there is nothing.

        read: is called when somebody asks the table for values in original units.
        """
        return self._load(read, told=True)

    def _load(self, read: Callable[[], Source], told: bool) -> Kept | None:
        entry = self._cache.load(self._fingerprint.key, told=told)
        if entry is None:
            return None
        self._remember()
        return _unpacked(entry, read, self._fingerprint)

    def keep(self, kept: Kept, read: Callable[[], Source]) -> Kept | None:
        """Keeps it and hands it back with its tensor mapped; None where it is not worth it, or cannot be done."""
        worthwhile = max(kept.tensor.nbytes, self._fingerprint.size) >= WORTHWHILE
        if not (worthwhile or self._always) or not self._fingerprint.unchanged():
            return None
        if not self._cache.save(self._fingerprint.key, _packed(kept)):
            return None
        return self._load(read, told=False)

    def _remember(self) -> None:
        try:
            self._fingerprint.remember()
        except OSError as error:
            log.warning("the next run reads all bytes of the files once more: %s", error)


class ReadAgain:
    """Columns of a table that came from the cache: the files are read when somebody asks for values."""

    def __init__(self, names: tuple[str, ...], rows: int, read: Callable[[], Source], fingerprint: Fingerprint) -> None:
        self._names, self._rows, self._read, self._fingerprint = names, rows, read, fingerprint
        self._table: Table | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    def read(self, name: str) -> Float[np.ndarray, " r"]:
        if self._table is None:
            table = self._read().table
            if not self._fingerprint.unchanged() or len(table.rows) != self._rows:
                raise ValueError("data.path: the files have changed since this run began: start it again")
            self._table = table
        return self._table.read(name)


def _packed(kept: Kept) -> Entry:
    table, segments, scaler = kept.source.table, kept.segments, kept.scaler
    bits = [segments.observed.bits[column] for column in range(len(segments.observed))]
    gappy = [column for column, flags in enumerate(bits) if flags is not None]
    arrays = {
        "offsets": table.rows.offsets,
        "bounds": segments.bounds,
        "kept_from": segments.kept_from,
        "mean": scaler.mean,
        "scale": scaler.scale,
        "observed": np.array([bits[column] for column in gappy], dtype=np.uint8),
    }
    if table.rows.times is not None:
        arrays["times"] = table.rows.times.view(np.int64)
    if table.inserted is not None:
        arrays["inserted"] = np.packbits(table.inserted)
    plain = {
        "series": list(table.rows.series),
        "columns": list(table.columns),
        "gappy": gappy,
        "scaler": {name: list(getattr(scaler, name)) for name in ("names", "series", "constant", "without_values")},
        "source": {field.name: _plain(getattr(kept.source, field.name)) for field in fields(Source) if field.name != "table"},
        "table": {f.name: _plain(getattr(table, f.name)) for f in fields(Table) if f.name not in _TABLE_ARRAYS},
        "segments": {f.name: _plain(getattr(segments, f.name)) for f in fields(Segments) if f.name not in _SEGMENT_ARRAYS},
        "vanished": list(kept.vanished),
    }
    return Entry(plain, arrays, kept.tensor)


def _unpacked(entry: Entry, read: Callable[[], Source], fingerprint: Fingerprint) -> Kept:
    plain, arrays = entry.plain, entry.arrays
    times = arrays["times"].view("datetime64[ns]") if "times" in arrays else None
    rows = Rows(tuple(plain["series"]), arrays["offsets"], times)
    count = len(rows)
    inserted = _flags(arrays["inserted"], count) if "inserted" in arrays else None
    columns = ReadAgain(tuple(plain["columns"]), count, read, fingerprint)
    table = Table(rows, columns, inserted=inserted, **_restored_fields(plain["table"]))
    scaler = StandardScaler()
    for name, value in plain["scaler"].items():
        setattr(scaler, name, tuple(value))
    scaler.mean, scaler.scale = arrays["mean"].copy(), arrays["scale"].copy()
    bits: list[np.ndarray | None] = [None] * entry.tensor.shape[1]
    for place, column in enumerate(plain["gappy"]):
        bits[column] = arrays["observed"][place]
    bounds = arrays["bounds"]
    segments = Segments(
        observed=Observed.of(count, bits),
        usable=_inside(bounds, count),
        bounds=bounds,
        kept_from=arrays["kept_from"],
        **_restored_fields(plain["segments"]),
    )
    source = Source(table, **_restored_fields(plain["source"]))
    return Kept(source, segments, scaler, entry.tensor, tuple(plain["vanished"]))


def _flags(bits: np.ndarray, count: int) -> Bool[np.ndarray, " r"]:
    return np.unpackbits(bits, count=count).view(bool)


def _inside(bounds: Int[np.ndarray, "k 2"], count: int) -> Bool[np.ndarray, " r"]:
    steps = np.zeros(count + 1, dtype=np.int8)
    np.add.at(steps, bounds[:, 0], 1)
    np.add.at(steps, bounds[:, 1], -1)
    return np.asarray(np.cumsum(steps, dtype=np.int8, out=steps)[:count]).view(bool)


def _plain(value: Any) -> Any:
    """As JSON can hold it, so that `_restored` gives back the same: plain values, tuples and our own dataclasses."""
    if is_dataclass(value) and type(value).__module__.startswith("statewise.data."):
        inside = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {"module": type(value).__module__, "class": type(value).__name__, "fields": inside}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be kept in the cache")


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if not value["module"].startswith("statewise.data."):
            raise ValueError(f"an entry of the cache holds a value of {value['module']}")
        kind = getattr(importlib.import_module(value["module"]), value["class"])
        return kind(**_restored_fields(value["fields"]))
    return tuple(_restored(part) for part in value) if isinstance(value, list) else value


def _restored_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _restored(value) for name, value in values.items()}
