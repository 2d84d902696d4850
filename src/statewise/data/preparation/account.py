"""The account of the data that a run prints at its start: what was read, kept, filled, left out, cut into windows."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from statewise.data.preparation.scaling import StandardScaler
from statewise.data.segments.cut import Segments
from statewise.data.source import Source
from statewise.data.tables.rows import Rows
from statewise.data.windows.parts import Part
from statewise.data.windows.streams import Streams

_NAMES_SHOWN = 8


def account(
    rows: Rows,
    segments: Segments,
    division: Sequence[str],
    parts: Mapping[str, Part],
    scaler: StandardScaler,
    source: Source,
    streams: Streams | None,
    *,
    window: int,
    horizon: int,
) -> list[str]:
    """Sentences, each complete in one line.

    Args:
        division: sentences on how the time axis is divided.
        streams: of the training part, None where its windows are shuffled.
    """
    of_series = f" of {len(rows.series):,} series ({_names(rows.series)})" if len(rows.series) > 1 else ""
    targets = "the features" if source.targets == source.features else _names(source.targets)
    whole = np.stack([rows.offsets[:-1], rows.offsets[1:]], axis=1)
    notes = [
        f"{len(rows):,} rows{of_series}, {_span(rows, whole)}",
        f"features: {_names(source.features)}; targets: {targets}",
        *segments.notes,
        *_without_windows(rows, segments, parts, window + horizon + source.reach),
        *division,
    ]
    for name, part in parts.items():
        spans = [_span(rows, part.blocks[:, place]) for place in range(part.blocks.shape[1])]
        notes.append(f"{name}: {part.rows:,} rows, {len(part.starts):,} windows, {' and '.join(spans)}")
        if part.purged:
            notes.append(
                f"purged: {part.purged:,} training window(s), because a target{_reaching(source)} or an input of theirs lies "
                "in an evaluation block or its embargo"
            )
        if name == "train" and streams is not None:
            notes += _streams(streams, window)
    end = np.max([part.blocks[..., 1].max(axis=1) for part in parts.values()], axis=0)
    unused = np.stack([end, rows.offsets[1:]], axis=1)
    beyond = int((unused[:, 1] - unused[:, 0]).sum())
    if beyond:
        which = "after this fold" if division else "beyond data.split"
        notes.append(f"{beyond:,} rows {which} are not used, {_span(rows, unused)}")
    notes.append(_scaling(scaler))
    return notes


def about_rounding(names: Sequence[str], vanished: Sequence[int], rows: int, bits: int) -> list[str]:
    """One sentence where scaled values of so many bits no longer tell rows apart that differ, else nothing.

    vanished: of each column, the steps from a row to the next that have become zero.
    """
    lost = [f"{name} ({count:,} of {rows - 1:,})" for name, count in zip(names, vanished, strict=True) if count]
    if not lost:
        return []
    return [
        f"steps from a row to the next that are too small for float{bits} beside the column's deviation and are 0 after "
        f"scaling: {_names(lost)}; hardware.precision=64 keeps them"
    ]


def _reaching(source: Source) -> str:
    return f" (made of {source.reach:,} rows after its own)" if source.reach else ""


def _without_windows(rows: Rows, segments: Segments, parts: Mapping[str, Part], needed: int) -> list[str]:
    lengths = segments.bounds[:, 1] - segments.bounds[:, 0]
    owner = rows.codes_of(segments.bounds[:, 0])
    # Starts ascend: those of a series stand between the places of its offsets.
    windows = sum(np.diff(np.searchsorted(part.starts, rows.offsets.astype(part.starts.dtype))) for part in parts.values())
    notes = []
    idle = np.flatnonzero(np.asarray(windows) == 0).tolist()
    if idle:
        longest = [f"{rows.series[code]} (longest run {lengths[owner == code].max(initial=0):,} rows)" for code in idle]
        notes.append(f"no window, because a window needs {needed:,} rows, in series {_names(longest)}")
    short = int((lengths < needed).sum())
    if short and len(lengths) > 1:
        notes.append(f"{short:,} of {len(lengths):,} segments are shorter than the {needed:,} rows of a window")
    return notes


def _streams(streams: Streams, window: int) -> list[str]:
    chunks = len(streams.starts)
    notes = [
        f"train, contiguous: chunks of {window:,} rows: {chunks:,}, streams: {streams.width:,}, batches in an epoch: "
        f"{streams.batches:,}, rows left out at the ends of segments: {streams.left_out:,}"
    ]
    if streams.fresh.all():
        if streams.batches == 1 and chunks > 1:
            cause = f"every chunk is a stream of its own; choose a data.batch_size of at most {chunks // 2:,}"
        else:
            cause = "every segment holds a single chunk; choose a smaller data.window"
        notes.append(f"data.sampling=contiguous hands no state on, because {cause}")
    return notes


def _scaling(scaler: StandardScaler) -> str:
    note = f"scaled {'per series' if scaler.per_series else 'over all rows'} by the observed training rows"
    if scaler.constant:
        note += f"; constant there, left at scale 1: {_names(scaler.constant)}"
    if scaler.without_values:
        note += f"; without training values, scaled by the statistics of all series: {_names(scaler.without_values)}"
    return note


def _span(rows: Rows, ranges: Int[np.ndarray, "g 2"]) -> str:
    """From the first to the last row of some row ranges, one for each series."""
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    if not len(ranges):
        return "no rows"
    first = int(ranges[np.argmin(rows.clock_of(ranges[:, 0])), 0])
    last = int(ranges[np.argmax(rows.clock_of(ranges[:, 1] - 1)), 1]) - 1
    return f"{rows.at(first)} to {rows.at(last)}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
