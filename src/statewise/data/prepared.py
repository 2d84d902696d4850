"""A table made ready: cut, split, scaled, and the windows of each block as views of one tensor."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from statewise.choices import one_of
from statewise.data.account import account
from statewise.data.batches import WindowDataset
from statewise.data.gaps import Gap
from statewise.data.missing import Missing
from statewise.data.scaling import StandardScaler
from statewise.data.segments import cut
from statewise.data.source import Source
from statewise.data.splits import PARTS, axis_borders, row_borders
from statewise.data.streams import make_streams
from statewise.data.windows import Part, make_parts

log = logging.getLogger(__name__)


class Prepared:
    """Windows of a source in three blocks of time; everything but the loading of batches.

    Args:
        gap, missing: what ends a segment (segments.py).
        split: fractions, row counts or dates (splits.py).
        scale: `global` or `per_series`; None is per series where there are several.
        streams: train on chunks that follow one another, in so many streams side by side; None trains on all windows.
        dtype: of the windows. Statistics and scaling are float64 whatever it is.

    Raises:
        ValueError: unknown columns, a policy that says so, or a part without windows.
    """

    def __init__(
        self,
        source: Source,
        *,
        window: int,
        horizon: int,
        stride: int,
        split: Sequence[Any],
        gap: Gap,
        missing: Missing,
        scale: str | None,
        streams: int | None,
        dtype: torch.dtype,
    ) -> None:
        _check_columns("data.features", source.features, source.table.columns)
        _check_columns("data.targets", source.targets, source.table.columns)
        self.source, self.window, self.horizon, self.dtype = source, window, horizon, dtype
        columns = source.features + tuple(name for name in source.targets if name not in source.features)
        rows = source.table.rows
        segments = cut(source.table, gap, missing, columns)
        clock, codes, row = rows.clock, rows.codes, np.arange(len(rows))
        kept = row >= segments.kept_from[codes]
        axis = np.unique(clock[kept])
        borders = row_borders(axis_borders(split, axis), axis, clock, rows.offsets, segments.kept_from)
        self.parts = make_parts(segments.bounds, borders, rows.offsets, window=window, horizon=horizon, stride=stride)
        self.streams = None
        if streams is not None:
            blocks = self.parts["train"].blocks[codes[segments.bounds[:, 0]]]
            self.streams = make_streams(segments.bounds, blocks, window=window, horizon=horizon, streams=streams)

        self.rows, self.codes, self.segments = rows, codes, segments
        self.target_columns = [columns.index(name) for name in source.targets]
        self.observed = segments.observed.tensor(self.target_columns)
        self.scaler = StandardScaler()
        self.scaler.begin(
            columns, series=rows.series, per_series=len(rows.series) > 1 if scale is None else scale == "per_series"
        )
        self._fill_tensor(learn_from=kept & (row < borders[codes, 1]))
        self.notes = list(source.table.notes)
        self.notes += account(
            rows, segments, borders, self.parts, self.scaler, source, self.streams, window=window, horizon=horizon
        )

    def dataset(self, split: str, supervision: str) -> WindowDataset:
        """The windows of a split, in the order of all other answers: by series, then time."""
        return self._windows(self.part(split), supervision, self.part(split).starts)

    def training(self, supervision: str) -> WindowDataset:
        """What an epoch trains on: the windows of the training part, or its chunks batch after batch."""
        part = self.part("train")
        if self.streams is None:
            return self._windows(part, supervision, part.starts)
        return self._windows(part, supervision, self.streams.starts, self.streams.fresh)

    def _windows(
        self, part: Part, supervision: str, starts: Int[np.ndarray, " n"], fresh: Bool[np.ndarray, " n"] | None = None
    ) -> WindowDataset:
        observed = self.observed
        if supervision == "all":
            # Targets before the block belong to an earlier one: they must not enter this one's loss.
            own = torch.from_numpy(np.arange(len(self.codes)) >= part.blocks[self.codes, 0])
            observed = observed & own[:, None]
        return WindowDataset(
            self.scaled[:, : len(self.source.features)],
            self.scaled_targets,
            observed,
            torch.from_numpy(starts),
            window=self.window,
            horizon=self.horizon,
            supervision=supervision,
            fresh=None if fresh is None else torch.from_numpy(fresh),
        )

    def target_positions(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Series names [n], and times [n, horizon] (row numbers in the series where there is no time column)."""
        target_rows = self.part(split).starts[:, None] + self.window + np.arange(self.horizon)
        names = np.array(self.rows.series, dtype=str)[self.codes[target_rows[:, 0]]]
        return names, self.rows.clock[target_rows]

    def target_statistics(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean and scale of the targets of each window, [n, m] each."""
        mean, scale = self.scaler.of(self.codes[self.part(split).starts])
        return mean[:, self.target_columns], scale[:, self.target_columns]

    def optimal(self, split: str) -> np.ndarray | None:
        """The best possible predictions [n, 1, m], scaled; None where unknown, or for a horizon above 1."""
        if self.source.optimal is None or self.horizon != 1:
            return None
        mean, scale = self.target_statistics(split)
        best: np.ndarray = self.source.optimal[self.part(split).starts + self.window]
        # Rounded like the targets: a prediction that is exact has an error of exactly 0.
        return np.asarray((best - mean) / scale, dtype=self.scaled_targets.numpy().dtype)[:, None]

    def part(self, split: str) -> Part:
        return self.parts[one_of("the split", split, PARTS)]

    def adopt(self, scaler: StandardScaler) -> None:
        """Scales by other statistics: those of a checkpoint."""
        if scaler.names != self.scaler.names:
            raise ValueError(
                f"the checkpoint was trained on the columns {', '.join(scaler.names)}, the data has "
                f"{', '.join(self.scaler.names)}: set data.features and data.targets to those of the checkpoint"
            )
        scaler = scaler.for_series(self.rows.series)
        if not scaler.equals(self.scaler):
            log.warning("scaling by the checkpoint's statistics: they are not those of these training rows")
            self.scaler = scaler
            self._fill_tensor()

    def _fill_tensor(self, learn_from: Bool[np.ndarray, " r"] | None = None) -> None:
        """Reads, fills and scales a column at a time into one tensor.

        learn_from: the rows whose observed values the scaler learns from; None leaves it as it is.
        """
        self.scaled = torch.empty(len(self.rows), len(self.segments.names), dtype=self.dtype)  # (r c)
        for column, name in enumerate(self.segments.names):
            values = self.segments.filled(column, self.source.table.read(name))
            if learn_from is not None:
                self.scaler.learn(column, values, self.segments.observed.column(column) & learn_from, self.rows.offsets)
            self.scaled[:, column] = torch.from_numpy(self.scaler.transform_column(column, values, self.rows.offsets))
        places = self.target_columns
        first, stop = places[0], places[-1] + 1
        # (r m): a view of the same tensor where the columns stand side by side
        side_by_side = places == list(range(first, stop))
        self.scaled_targets = self.scaled[:, first:stop] if side_by_side else self.scaled[:, places]


def _check_columns(key: str, names: Sequence[str], columns: Sequence[str]) -> None:
    if not names:
        raise ValueError(f"{key} is empty: name at least one of {', '.join(columns) or 'the columns (there are none)'}")
    for name in names:
        one_of(key, name, columns)
    if len(set(names)) < len(names):
        raise ValueError(f"{key} names a column twice: {', '.join(names)}")
