"""A table made ready: cut, split, scaled, and the windows of each block as views of one tensor."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Int

from statewise.choices import one_of
from statewise.data.preparation.account import about_rounding, account
from statewise.data.preparation.kept import Kept, Store
from statewise.data.preparation.scaling import StandardScaler
from statewise.data.progress import progress
from statewise.data.segments.cut import cut
from statewise.data.segments.gaps import Gap
from statewise.data.segments.missing import Missing
from statewise.data.segments.regular import on_grid
from statewise.data.source import Source
from statewise.data.windows.batches import WindowDataset
from statewise.data.windows.division import Division
from statewise.data.windows.parts import Part, make_parts
from statewise.data.windows.splits import PARTS, row_blocks, rows_in
from statewise.data.windows.streams import make_streams

log = logging.getLogger(__name__)


class Prepared:
    """Windows of a source in three blocks of time; everything but the loading of batches.

    Args:
        read: makes the source; is not called where `store` has what comes of it.
        gap, max_gap, missing: what ends a segment (segments.py).
        division: where the three blocks lie (division.py).
        scale: `global` or `per_series`; None is per series where there are several.
        streams: train on chunks that follow one another, in so many streams side by side; None trains on all windows.
        dtype: of the windows. Statistics and scaling are float64 whatever it is.
        store: where the scaled table is kept for later runs; None: nowhere.
        scaler: that of a checkpoint; None learns one from the training rows.

    Raises:
        ValueError: unknown columns, a policy that says so, or a part without windows.
    """

    def __init__(
        self,
        read: Callable[[], Source],
        *,
        window: int,
        horizon: int,
        stride: int,
        division: Division,
        gap: Gap,
        max_gap: str | None,
        missing: Missing,
        scale: str | None,
        streams: int | None,
        dtype: torch.dtype,
        store: Store | None = None,
        scaler: StandardScaler | None = None,
    ) -> None:
        def checked() -> Source:
            source = read()
            _check_columns("data.features", source.features, source.table.columns)
            _check_columns("data.targets", source.targets, source.table.columns)
            return _on_grid(source, gap)

        kept = None if store is None else store.load(checked)
        source = checked() if kept is None else kept.source
        self.source, self.window, self.horizon, self.dtype = source, window, horizon, dtype
        columns = source.features + tuple(name for name in source.targets if name not in source.features)
        rows = source.table.rows
        ahead = [name for name in source.targets if source.reach and name not in source.features]
        segments = cut(source.table, gap, missing, columns, max_gap=max_gap, ahead=ahead) if kept is None else kept.segments
        axis = rows.axis(segments.kept_from)
        understood = source.table.understood
        on_axis = division.blocks(axis, naive=understood is not None and understood.naive)
        blocks = row_blocks(on_axis, axis, rows.clock, rows.offsets, segments.kept_from)
        keys = {"window": window, "horizon": horizon, "reach": source.reach}
        self.parts = make_parts(segments.bounds, blocks, rows.offsets, stride=stride, **keys)
        self.streams = None
        if streams is not None:
            of_segments = blocks["train"][rows.codes_of(segments.bounds[:, 0])]
            self.streams = make_streams(segments.bounds, of_segments, streams=streams, **keys)

        del axis
        self.rows, self.segments = rows, segments
        self.target_columns = [columns.index(name) for name in source.targets]
        self.observed = segments.observed.tensor(self.target_columns)
        if scaler is not None:
            _check_same_columns(scaler, columns)
            self.scaler = scaler.for_series(rows.series)
            self.scaled = torch.empty(len(rows), len(columns), dtype=dtype)
            self._fill()
        elif kept is None:
            self.scaler = StandardScaler()
            per_series = len(rows.series) > 1 if scale is None else scale == "per_series"
            self.scaler.begin(columns, series=rows.series, per_series=per_series)
            self._learn_and_fill(blocks["train"], ahead)
            kept = self._keep(store, checked)
        else:
            self.scaler, self.vanished = kept.scaler, kept.vanished
            self.scaler.repeat_warnings()
        if kept is not None:
            # What was read is let go, if it was: from here on all is in the files of the cache.
            source, rows, segments = kept.source, kept.source.table.rows, kept.segments
            self.source, self.rows, self.segments, self.scaled = source, rows, segments, kept.tensor
        self._mapped = kept is not None
        self.notes = list(source.table.notes)
        self.notes += account(
            rows,
            segments,
            division.notes(on_axis),
            self.parts,
            self.scaler,
            source,
            self.streams,
            window=window,
            horizon=horizon,
        )
        self.notes += about_rounding(columns, self.vanished, len(rows), 8 * dtype.itemsize)

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
            own = torch.from_numpy(rows_in(part.blocks, len(self.rows)))[:, None]
            if observed.dtype != torch.bool:
                observed = torch.where(own, observed, torch.zeros((), dtype=observed.dtype))
            elif all(self.segments.observed.complete(column) for column in self.target_columns):
                observed = own.expand(observed.shape)  # nothing is written down for each target
            else:
                observed = observed & own
        places = self.target_columns
        side_by_side = places == list(range(places[0], places[-1] + 1))
        return WindowDataset(
            self.scaled[:, : len(self.source.features)],
            self.scaled[:, places[0] : places[-1] + 1] if side_by_side else self.scaled,
            observed,
            torch.from_numpy(starts),
            window=self.window,
            horizon=self.horizon,
            supervision=supervision,
            fresh=None if fresh is None else torch.from_numpy(fresh),
            target_columns=None if side_by_side else places,
        )

    def target_positions(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Series names [n], and times [n, horizon] (row numbers in the series where there is no time column)."""
        target_rows = self.part(split).starts[:, None] + self.window + np.arange(self.horizon)
        names = np.array(self.rows.series, dtype=str)[self.rows.codes_of(target_rows[:, 0])]
        return names, self.rows.clock_of(target_rows)

    def target_statistics(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean and scale of the targets of each window, [n, m] each."""
        starts, places = self.part(split).starts, self.target_columns
        mean, scale = self.scaler.mean[:, places], self.scaler.scale[:, places]
        if not self.scaler.per_series:
            return np.broadcast_to(mean[0], (len(starts), len(places))), np.broadcast_to(scale[0], (len(starts), len(places)))
        groups = self.rows.codes_of(starts) + 1
        return mean[groups], scale[groups]

    def optimal(self, split: str) -> np.ndarray | None:
        """The best possible predictions [n, 1, m], scaled; None where unknown, or for a horizon above 1."""
        if self.source.optimal is None or self.horizon != 1:
            return None
        mean, scale = self.target_statistics(split)
        best: np.ndarray = self.source.optimal[self.part(split).starts + self.window]
        # Rounded like the targets: a prediction that is exact has an error of exactly 0.
        return np.asarray((best - mean) / scale, dtype=self.scaled.numpy().dtype)[:, None]

    def part(self, split: str) -> Part:
        return self.parts[one_of("the split", split, PARTS)]

    def adopt(self, scaler: StandardScaler) -> None:
        """Scales by other statistics: those of a checkpoint."""
        _check_same_columns(scaler, self.scaler.names)
        scaler = scaler.for_series(self.rows.series)
        if not scaler.equals(self.scaler):
            log.warning("scaling by the checkpoint's statistics: they are not those of these training rows")
            self.scaler = scaler
            if self._mapped:
                # What others have mapped too stays as it is.
                self.scaled, self._mapped = torch.empty(self.scaled.shape, dtype=self.dtype), False
            self._fill()

    def _learn_and_fill(self, blocks: Int[np.ndarray, "g k 2"], ahead: Sequence[str]) -> None:
        """Makes the tensor, and learns how to scale from training rows.

        ahead: the columns whose values are made of later rows.
        """
        trained = rows_in(blocks, len(self.rows))
        # What a target made of later rows says of the last training rows is known only in an evaluation block.
        trained_ahead = rows_in(blocks, len(self.rows), short=self.source.reach) if ahead else trained
        self.scaled = torch.empty(len(self.rows), len(self.segments.names), dtype=self.dtype)  # (r c)
        self._fill({name: trained_ahead if name in ahead else trained for name in self.segments.names})

    def _fill(self, learn_from: Mapping[str, Bool[np.ndarray, " r"]] | None = None) -> None:
        """Reads, fills and scales a column at a time into the tensor.

        learn_from: of each column, the rows whose observed values the scaler learns from; None leaves it as it is.
        """
        names, observed, offsets = self.segments.names, self.segments.observed, self.rows.offsets
        lost = [0] * len(names)
        with progress("reading and scaling", len(names), "columns", self.scaled.nbytes) as done:
            for column, name in enumerate(names):
                values = self.segments.filled(column, self.source.table.read(name))
                if learn_from is not None:
                    self.scaler.learn(column, values, observed.column(column) & learn_from[name], offsets)
                lost[column] = self.scaler.transform_column(column, values, offsets, self.scaled[:, column])
                del values
                done(name)
        self.vanished = tuple(lost)

    def _keep(self, store: Store | None, read: Callable[[], Source]) -> Kept | None:
        if store is None:
            return None
        return store.keep(Kept(self.source, self.segments, self.scaler, self.scaled, self.vanished), read)


def _on_grid(source: Source, gap: Gap) -> Source:
    """The source with the absent rows that the policy inserts."""
    table, origin = on_grid(source.table, gap)
    if origin is None:
        return source
    return replace(source, table=table, optimal=None if source.optimal is None else source.optimal[origin])


def _check_same_columns(scaler: StandardScaler, columns: Sequence[str]) -> None:
    if scaler.names != tuple(columns):
        raise ValueError(
            f"the checkpoint was trained on the columns {', '.join(scaler.names)}, the data has "
            f"{', '.join(columns)}: set data.features and data.targets to those of the checkpoint"
        )


def _check_columns(key: str, names: Sequence[str], columns: Sequence[str]) -> None:
    if not names:
        raise ValueError(f"{key} is empty: name at least one of {', '.join(columns) or 'the columns (there are none)'}")
    for name in names:
        one_of(key, name, columns)
    if len(set(names)) < len(names):
        raise ValueError(f"{key} names a column twice: {', '.join(names)}")
