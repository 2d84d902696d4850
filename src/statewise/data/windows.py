"""Index arithmetic only: which windows exist, given segments, blocks, window, horizon and stride.

A window that starts at row i has the input rows i to i + window - 1 and, after them, horizon target rows. It exists if
all of these lie in one segment, and belongs to a block if the block holds all its target rows: inputs may reach back
into earlier blocks, never forwards, and no target crosses a border.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from statewise.data.splits import PARTS


@dataclass(frozen=True)
class Part:
    """One of train, val, test: its rows and windows."""

    name: str
    starts: Int[np.ndarray, " n"]  # first input row of each window, ascending
    blocks: Int[np.ndarray, "g 2"]  # rows [start, stop) of the block in each series

    @property
    def rows(self) -> int:
        return int((self.blocks[:, 1] - self.blocks[:, 0]).sum())


def window_starts(
    segments: Int[np.ndarray, "k 2"], blocks: Int[np.ndarray, "k 2"], *, window: int, horizon: int, stride: int = 1
) -> Int[np.ndarray, " n"]:
    """First input rows of the windows of one block, ascending.

    Args:
        segments: rows [start, stop) of each segment.
        blocks: rows [start, stop) of the block in the series of each segment.
        stride: of the windows of a segment, counted from its start, every stride-th is kept, whatever the block: the
            windows of a block do not depend on where the other blocks lie.
    """
    earliest = np.maximum(segments[:, 0], blocks[:, 0] - window)
    first = segments[:, 0] + -(-(earliest - segments[:, 0]) // stride) * stride
    stop = np.minimum(segments[:, 1], blocks[:, 1]) - window - horizon + 1
    runs = [np.arange(a, b, stride) for a, b in zip(first.tolist(), stop.tolist(), strict=True) if a < b]
    if not runs:
        return np.zeros(0, dtype=np.int64)
    return runs[0] if len(runs) == 1 else np.concatenate(runs)


def make_parts(
    segments: Int[np.ndarray, "k 2"],
    borders: Int[np.ndarray, "g 4"],
    offsets: Int[np.ndarray, " g1"],
    *,
    window: int,
    horizon: int,
    stride: int = 1,
) -> dict[str, Part]:
    """The windows of train, val and test.

    Args:
        borders: rows where train, val and test begin and test ends, of each series (splits.row_borders).
        offsets: series i has the rows offsets[i] to offsets[i + 1].

    Raises:
        ValueError: a part has no row or no window.
    """
    owner = np.searchsorted(offsets, segments[:, 0], side="right") - 1
    longest = int((segments[:, 1] - segments[:, 0]).max(initial=0))
    parts = {}
    thinned = f" and data.stride={stride} takes few of them" if stride > 1 else ""
    for place, name in enumerate(PARTS):
        blocks = borders[:, place : place + 2]
        starts = window_starts(segments, blocks[owner], window=window, horizon=horizon, stride=stride)
        parts[name] = Part(name, starts, blocks)
    for name, part in parts.items():
        if not len(part.starts):
            raise ValueError(
                f"no window fits into the {name} part: it has {part.rows:,} rows, data.window={window} and "
                f"data.horizon={horizon} need {window + horizon} rows without a gap (the longest run in the data has "
                f"{longest:,}){thinned}; choose a smaller window, more data or another data.split"
            )
    return parts
