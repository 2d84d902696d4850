"""A new file made ready as the run's own was: read, derived, cut into segments, scaled by the checkpoint; no split."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from statewise.assembly import DTYPES
from statewise.data.features.derive import derive
from statewise.data.features.targets import select
from statewise.data.form import step_of
from statewise.data.preparation.scaling import StandardScaler
from statewise.data.segments.cut import Segments, cut
from statewise.data.segments.gaps import find_gaps
from statewise.data.segments.observed import Observed, unpacked
from statewise.data.segments.regular import on_grid
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table, read_table
from statewise.data.windows.parts import window_starts
from statewise.predicting.asked import Asked
from statewise.predicting.checks import far_values, form_warnings
from statewise.restore import Trained


@dataclass(frozen=True)
class NewFile:
    """Windows over a whole file.

    Attributes:
        scaler: that of the checkpoint, for the series of this file.
        scaled: features, then targets that are none of them, `[r, c]`.
        observed: which targets of each row are there, as `Observed.tensor` gives it; False where the file has no such
            column.
        places: the column of each target in `scaled`; that of a target the file lacks is the first one.
        starts: the first row of each window, whose rows all lie in one segment.
        stop: of each window, the row where the times after it jump, or its series ends.
        step: between rows, in nanoseconds; None where times are irregular.
        naive: whether times carry no zone.
        warnings: sentences about what is odd.
    """

    name: str
    rows: Rows
    scaler: StandardScaler
    scaled: Tensor
    observed: Tensor
    places: tuple[int, ...]
    starts: Int[np.ndarray, " n"]
    stop: Int[np.ndarray, " n"]
    step: int | None
    naive: bool
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def clock_after(self, windows: slice, window: int, horizon: int) -> Shaped[np.ndarray, "n h1"]:
        """Times (numbers of rows where there are none) of the last row of windows, then of those that they predict.

        Where the file goes on without a jump they are its own, beyond that they go on by the step; NaT where no step is
        known.
        """
        last = self.starts[windows, None] + window - 1
        wanted = last + np.arange(horizon + 1)
        there = np.minimum(wanted, self.stop[windows, None] - 1)
        beyond = wanted - there
        clock = self.rows.clock_of(there)
        if self.rows.times is None:
            return np.asarray(clock + beyond)
        if self.step is None:
            return np.where(beyond == 0, clock, np.datetime64("NaT", "ns"))
        return np.asarray(clock + (beyond * self.step).astype("timedelta64[ns]"))

    def truth_after(self, windows: slice, window: int, horizon: int) -> tuple[Tensor, Tensor]:
        """Scaled targets of the rows after windows, and which of them are observed, `[n, horizon, m]` each."""
        wanted = self.starts[windows, None] + window + np.arange(horizon)
        known = wanted < self.stop[windows, None]
        rows = torch.from_numpy(np.minimum(wanted, len(self.rows) - 1))
        # Column by column: all of them at once would be a copy of the table.
        targets = torch.stack([self.scaled[:, place][rows] for place in self.places], dim=-1)
        observed = unpacked(self.observed[rows], len(self.places)) & torch.from_numpy(known)[..., None]
        return targets, observed


def open_new(trained: Trained, asked: Asked, path: str) -> NewFile:
    """Reads a file; relative paths mean the folder where the command was started.

    Raises:
        FileNotFoundError, ValueError: in one line, as for a run; and where the file is of another form than the training
        data, or has no row with a whole window before it.
    """
    form, zone = trained.form, asked.reading.timezone
    table = read_table(path, folder=Path.cwd(), columns=lambda names: asked.columns(names, path), reading=asked.reading)
    scaler = trained.scaler.for_series(table.rows.series)
    warnings = form_warnings(table, form, asked.gap, trained.scaler, path)
    step = form.step or step_of(table.rows, asked.gap)
    table, _ = on_grid(table, asked.gap)
    known = asked.targets_in(table.columns)
    if known:
        source = select(table, asked.features, known, timezone=zone)
        table, features, present = source.table, source.features, source.targets
    else:
        table = derive(table, asked.features, timezone=zone)
        features, present = table.columns, ()
    if features != form.features:
        raise ValueError(f"the features of the run are {', '.join(form.features)}, those of {path} {', '.join(features)}")
    segments = cut(table, asked.gap, asked.missing, features, max_gap=asked.max_gap)
    starts = window_starts(segments.bounds, segments.bounds, window=asked.window, horizon=0)
    if not len(starts):
        raise ValueError(_too_short(table.rows, segments, asked.window, path))
    jumps, _ = find_gaps(table.rows, asked.gap, asked.max_gap)
    ends = np.unique(np.concatenate([table.rows.offsets[1:], jumps]))
    prepared = _scale(
        table, segments, scaler, form.targets, present, DTYPES.get(trained.config.hardware.precision, torch.float32)
    )
    return NewFile(
        path,
        table.rows,
        scaler,
        prepared.scaled,
        prepared.observed,
        prepared.places,
        starts,
        ends[np.searchsorted(ends, starts + asked.window - 1, side="right")],
        step.length if step is not None and step.usual else None,
        table.understood is None or table.understood.naive,
        (*table.notes, *segments.notes),
        (*warnings, *(f"{path}: {sentence}" for sentence in prepared.far)),
    )


@dataclass(frozen=True)
class _Scaled:
    scaled: Tensor
    observed: Tensor
    places: tuple[int, ...]
    far: tuple[str, ...]


def _scale(
    table: Table, segments: Segments, scaler: StandardScaler, targets: Sequence[str], present: Sequence[str], dtype: torch.dtype
) -> _Scaled:
    """One column after another, as Prepared does it; statistics and scaling are float64 whatever the type is."""
    features, rows = segments.names, table.rows
    columns = (*features, *(name for name in present if name not in features))
    scaled = torch.empty(len(rows), len(columns), dtype=dtype)
    own, far = Observed(len(rows)), []
    for column, name in enumerate(columns):
        values = table.read(name)
        there = ~np.isnan(values) if table.inserted is None else ~np.isnan(values) & ~table.inserted
        if column < len(features):
            values = segments.filled(column, values)
        scaler.transform_column(scaler.names.index(name), values, rows.offsets, scaled[:, column])
        looked_at = segments.usable if column < len(features) else there
        far.append(far_values(scaled[:, column], looked_at, name, rows, scaler))
        own.add(there)
    nowhere = np.zeros(len(rows), dtype=bool)
    flags, places = Observed(len(rows)), []
    for name in targets:
        place = columns.index(name) if name in columns else 0
        flags.add(own.column(place) if name in present else nowhere)
        places.append(place)
    observed = flags.tensor(range(len(targets)))
    return _Scaled(scaled, observed, tuple(places), tuple(sentence for sentence in far if sentence))


def _too_short(rows: Rows, segments: Segments, window: int, file: str) -> str:
    longest = int((segments.bounds[:, 1] - segments.bounds[:, 0]).max(initial=0))
    of_series = f" of {len(rows.series):,} series" if len(rows.series) > 1 else ""
    return (
        f"{file}: no window fits, it has {len(rows):,} rows{of_series}, and the model reads data.window={window} rows "
        f"without a gap or a long run of missing values (the longest run has {longest:,})"
    )
