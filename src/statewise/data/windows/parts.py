"""Index arithmetic only: which windows exist, given segments, blocks, window, horizon, stride and reach.

A window that starts at row i has the input rows i to i + window - 1 and, after them, horizon target rows. The value of a
target may be made of rows after its own: `reach` of them. A window exists if all of these lie in one segment, and belongs
to a block if the block holds all its target rows and what they reach:

    rows       . . . . . . . | . . . . . . .       the end of a training block: training ends where evaluation begins
    window a   x x x x y r r |                     x inputs, y targets, r the reach of the last one: it trains
    window b     x x x x y r | r                   purged: its target knows a row of the evaluation block
    window c             x x | x x y r r           evaluates: inputs may reach back into earlier blocks, never forwards

What trains sees rows of its own block only: a training block that follows an evaluation block begins with its inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from statewise.data.windows.splits import PARTS


@dataclass(frozen=True)
class Part:
    """One of train, val, test: its rows and windows."""

    name: str
    starts: Int[np.ndarray, " n"]  # first input row of each window, ascending
    blocks: Int[np.ndarray, "g k 2"]  # rows [start, stop) of the blocks in each series
    purged: int = 0  # windows with a first target in a block that are dropped, because they see a row of an evaluation block

    @property
    def rows(self) -> int:
        return int((self.blocks[..., 1] - self.blocks[..., 0]).sum())


def window_starts(
    segments: Int[np.ndarray, "k 2"],
    blocks: Int[np.ndarray, "k 2"],
    *,
    window: int,
    horizon: int,
    stride: int = 1,
    reach: int = 0,
    reach_back: bool = True,
) -> Int[np.ndarray, " n"]:
    """First input rows of the windows of one block, ascending.

    Args:
        segments: rows [start, stop) of each segment.
        blocks: rows [start, stop) of the block in the series of each segment.
        stride: of the windows of a segment, counted from its start, every stride-th is kept, whatever the block: the
            windows of a block do not depend on where the other blocks lie.
        reach: rows after a target's own that its value is made of.
        reach_back: whether inputs may lie before the block.
    """
    first, stop = _first_and_stop(
        segments, blocks, window=window, after=horizon + reach, stride=stride, back=window if reach_back else 0
    )
    # There is a start for nearly every row: half the bytes where the numbers, and sums of two of them, allow it.
    dtype = np.int32 if segments.max(initial=0) < 2**30 else np.int64
    runs = [np.arange(a, b, stride, dtype=dtype) for a, b in zip(first.tolist(), stop.tolist(), strict=True) if a < b]
    if not runs:
        return np.zeros(0, dtype=dtype)
    return runs[0] if len(runs) == 1 else np.concatenate(runs)


def make_parts(
    segments: Int[np.ndarray, "s 2"],
    blocks: Mapping[str, Int[np.ndarray, "g _ 2"]],
    offsets: Int[np.ndarray, " g1"],
    *,
    window: int,
    horizon: int,
    stride: int = 1,
    reach: int = 0,
) -> dict[str, Part]:
    """The windows of train, val and test, which each have one: `find_parts`.

    Raises:
        ValueError: a part has no row or no window.
    """
    parts = find_parts(segments, blocks, offsets, window=window, horizon=horizon, stride=stride, reach=reach)
    for part in parts.values():
        if not len(part.starts):
            raise ValueError(_without_windows(part, segments, window, horizon, stride, reach))
    return parts


def find_parts(
    segments: Int[np.ndarray, "s 2"],
    blocks: Mapping[str, Int[np.ndarray, "g _ 2"]],
    offsets: Int[np.ndarray, " g1"],
    *,
    window: int,
    horizon: int,
    stride: int = 1,
    reach: int = 0,
) -> dict[str, Part]:
    """The windows of train, val and test, be there any or none.

    Args:
        blocks: rows of the blocks of each part, of each series (splits.row_blocks).
        offsets: series i has the rows offsets[i] to offsets[i + 1].
        reach: rows after a target's own that its value is made of.
    """
    owner = np.searchsorted(offsets, segments[:, 0], side="right") - 1
    parts = {}
    for name in PARTS:
        of_segments = blocks[name][owner]
        found = [
            window_starts(
                segments,
                of_segments[:, place],
                window=window,
                horizon=horizon,
                stride=stride,
                reach=reach,
                reach_back=name != "train",
            )
            for place in range(of_segments.shape[1])
        ]
        starts = found[0] if len(found) == 1 else np.sort(np.concatenate(found))
        purged = _purged(segments, of_segments, len(starts), window, horizon + reach, stride) if name == "train" else 0
        parts[name] = Part(name, starts, blocks[name], purged)
    return parts


def _first_and_stop(
    segments: Int[np.ndarray, "k 2"], blocks: Int[np.ndarray, "k 2"], *, window: int, after: int, stride: int, back: int
) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"]]:
    """Where the windows of each segment begin and end, for `after` rows of a window that must lie in the block."""
    earliest = np.maximum(segments[:, 0], blocks[:, 0] - back)
    first = segments[:, 0] + -(-(earliest - segments[:, 0]) // stride) * stride
    return first, np.minimum(segments[:, 1], blocks[:, 1]) - window - after + 1


def _purged(
    segments: Int[np.ndarray, "s 2"], blocks: Int[np.ndarray, "s k 2"], kept: int, window: int, after: int, stride: int
) -> int:
    """How many windows of whole segments have their first target in a training block, beyond the ones that are kept.

    What lies before the first block is left out on purpose, not purged.
    """
    candidates = 0
    for place in range(blocks.shape[1]):
        first, _ = _first_and_stop(
            segments, blocks[:, place], window=window, after=after, stride=stride, back=window if place else 0
        )
        stop = np.minimum(segments[:, 1] - window - after, blocks[:, place, 1] - window - 1) + 1
        candidates += int(np.maximum(-(-(stop - first) // stride), 0).sum())
    return candidates - kept


def _without_windows(part: Part, segments: Int[np.ndarray, "s 2"], window: int, horizon: int, stride: int, reach: int) -> str:
    longest = int((segments[:, 1] - segments[:, 0]).max(initial=0))
    reaching = f" (the targets reach {reach:,} rows further)" if reach else ""
    thinned = f" and data.stride={stride} takes few of them" if stride > 1 else ""
    return (
        f"no window fits into the {part.name} part: it has {part.rows:,} rows, data.window={window} and "
        f"data.horizon={horizon} need {window + horizon + reach} rows without a gap{reaching} (the longest run in the data has "
        f"{longest:,}){thinned}; choose a smaller window, more data or another data.split or data.folds"
    )
