"""Lines of CSV as bars, one after another: each is read as the same row of a whole file would be."""

import csv
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float

from statewise.data.features.formula import base_columns
from statewise.data.files.markers import MISSING
from statewise.data.files.raw import Chunk, Raw
from statewise.data.files.reading import Reading
from statewise.data.files.series import FILE
from statewise.data.form import Form
from statewise.data.tables.checked import read_checked
from statewise.data.tables.columns import TimeColumns, choose_time, counts_billionths
from statewise.data.tables.heads import Heads
from statewise.data.tables.notation import said, seen
from statewise.data.tables.numbers import Notation
from statewise.data.tables.times.utc import utc_times
from statewise.predicting.asked import Asked

SOURCE = "standard input"
_SEPARATORS = (",", ";", "\t", "|")
_NUMBER = re.compile(r"[+-]?(?:\d{1,15}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)?)(Z|[+-]00:?00)?", re.ASCII)


@dataclass(frozen=True)
class Bar:
    """One line.

    Attributes:
        time: ns since 1970 in UTC; None where the training data had no times.
        aware: whether the zone of the time is known.
        values: of the columns that features are made of, NaN where missing.
    """

    line: int
    time: int | None
    aware: bool
    series: str
    values: Float[np.ndarray, " c"]


class Bars:
    """The bars of lines, the first of which is a header; more columns than the model reads are passed over.

    Args:
        lines: with or without their ends.

    Raises:
        ValueError: there is no header, it lacks a column, or (while it is gone through) a line cannot be read.
    """

    def __init__(self, lines: Iterable[str], asked: Asked, form: Form) -> None:
        rest = iter(lines)
        header = next((line for line in rest if line.strip()), None)
        if header is None:
            raise ValueError(f"{SOURCE} is empty: its first line must be a header with the names of the columns")
        header = header.removeprefix("\ufeff")
        separator = asked.reading.separator or max(_SEPARATORS, key=header.count)
        self._rows = csv.reader(itertools.chain([header], rest), delimiter=separator)
        self.names = [name.strip() for name in next(self._rows)]
        asked.columns(self.names, SOURCE)
        self.columns = tuple(base_columns(asked.features, self.names))
        self._places = [self.names.index(name) for name in self.columns]
        self._form = form
        known = form.time is not None and form.time in self.names
        self._reading = dataclasses.replace(
            asked.reading, time=asked.reading.time or (form.time if known else None), bar_label="start"
        )
        self._back = self._to_start(asked.reading, form)
        self._series = self._series_column(asked.reading.series or form.series)
        self._time: TimeColumns | None = None
        self._notations: list[Notation] | None = None

    def __iter__(self) -> Iterator[Bar]:
        for fields in self._rows:
            if not any(field.strip() for field in fields):
                continue
            line = self._rows.line_num
            if len(fields) != len(self.names):
                raise ValueError(f"{SOURCE}, line {line}: {len(fields)} fields, the header has {len(self.names)}")
            fields = [field.strip() for field in fields]
            if self._notations is None:
                self._learn(fields, line)
            time, aware = self._moment(fields, line)
            series = "" if self._series is None else fields[self._series]
            if self._series is not None and not series:
                raise ValueError(f'{SOURCE}, line {line}: the series column "{self.names[self._series]}" is empty')
            yield Bar(line, time, aware, series, np.array([self._number(fields, k, line) for k in range(len(self.columns))]))

    def _series_column(self, name: str | None) -> int | None:
        if name is None or name == FILE:
            return None
        if name not in self.names:
            raise ValueError(f'{SOURCE} lacks the column "{name}" that tells series apart; it has {", ".join(self.names)}')
        return self.names.index(name)

    def _to_start(self, reading: Reading, form: Form) -> int:
        """From the label of a bar to its start, as times of training are."""
        if reading.bar_label == "start" or form.time is None:
            return 0
        if form.step is None or not form.step.usual:
            raise ValueError(
                "data.bar_label=end needs bars of one length, and the training data had none: say data.bar_label=start"
            )
        return form.step.length

    def _learn(self, fields: Sequence[str], line: int) -> None:
        """What is seen in the first line: which columns are the time, and how numbers are written."""
        raw = self._raw(dict(zip(self.names, fields, strict=True)), line)
        heads = Heads(raw, self._reading.null_values)
        if self._form.time is not None:
            self._time = choose_time(heads, self._reading)
            if self._time is None:
                raise ValueError(f'{SOURCE} has no column of times, and the training data had one ("{self._form.time}")')
        declared = said(self._reading)
        billionths = [counts_billionths(self.names, name, heads[name]) for name in self.columns]
        self._notations = [dataclasses.replace(declared, billionths=counts) for counts in billionths]

    def _moment(self, fields: Sequence[str], line: int) -> tuple[int | None, bool]:
        if self._time is None:
            return None, False
        parts = self._time.parts
        if len(parts) == 1 and "time" in parts:
            found = _MOMENT.fullmatch(fields[self.names.index(parts["time"])])
            if found and (found[2] or self._reading.timezone is None):
                try:
                    return int(np.datetime64(found[1], "ns").astype(np.int64)) - self._back, found[2] is not None
                except ValueError:  # no such day: told below, in the words that are used for files
                    pass
        raw = self._raw({name: fields[self.names.index(name)] for name in parts.values()}, line)
        with _in_terms_of(line):
            stamps = utc_times(raw, parts, None, self._reading, self._time.name)
        return int(stamps.values.cast(pl.Int64)[0]) - self._back, not stamps.naive

    def _number(self, fields: Sequence[str], column: int, line: int) -> float:
        text, name = fields[self._places[column]], self.columns[column]
        assert self._notations is not None
        notation = self._notations[column]
        if text in MISSING or text in notation.null_values:
            return math.nan
        if notation.plain and not notation.billionths and _NUMBER.fullmatch(text) and math.isfinite(value := float(text)):
            return value
        raw = self._raw({name: text}, line)
        with _in_terms_of(line):
            read = read_checked(raw, name, notation if notation.billionths else seen(pl.Series([text]), notation))
        return float(read.values[0])

    def _raw(self, fields: dict[str, str], line: int) -> Raw:
        frame = pl.DataFrame({name: pl.Series([text], dtype=pl.String) for name, text in fields.items()})
        return Raw(frame.lazy(), (Chunk(Path(SOURCE), SOURCE, 1, line, "CSV"),), ())


@contextmanager
def _in_terms_of(line: int) -> Iterator[None]:
    """Faults of a row that is alone in its table, in terms of its line."""
    try:
        yield
    except ValueError as error:
        text = str(error).removeprefix("data.path: ").replace(f"{SOURCE}: row 1 (line {line})", "").lstrip(", :")
        raise ValueError(f"{SOURCE}, line {line}: {text}") from error
