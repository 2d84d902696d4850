"""Index arithmetic only: chunks of rows that follow one another, dealt to streams that are trained side by side.

A segment is cut into chunks of `window` input rows that touch and do not overlap: with a target after every input row
each target row is used once. All chunks, in order, are dealt to streams as runs of consecutive chunks, the first streams
one chunk longer where they do not come out even. Batch k holds chunk k of every stream that has one:

                 batch 0   batch 1   batch 2
    stream 0       c0        c1        c2         the state after c0 is the one before c1, and so on, unless c1 is fresh:
    stream 1       c3        c4        c5         not the continuation of c0 but the beginning of another segment
    stream 2       c6        c7                   only the last batch can be smaller, and it holds the first streams
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

SAMPLINGS = ("shuffled", "contiguous")


@dataclass(frozen=True)
class Streams:
    """Chunks in the order of an epoch: batch after batch, and in a batch stream after stream."""

    starts: Int[np.ndarray, " n"]  # first input row of each chunk
    fresh: Bool[np.ndarray, " n"]  # False: the chunk goes on where the chunk of its stream in the batch before ended
    width: int  # streams, and so chunks in a batch
    left_out: int  # rows at the ends of segments that fill no chunk

    @property
    def batches(self) -> int:
        return -(-len(self.starts) // self.width)


def make_streams(
    segments: Int[np.ndarray, "s 2"],
    blocks: Int[np.ndarray, "s k 2"],
    *,
    window: int,
    horizon: int,
    streams: int,
    reach: int = 0,
) -> Streams:
    """The chunks of some blocks; fewer streams than asked for where there are fewer chunks.

    Args:
        segments: rows [start, stop) of each segment.
        blocks: rows [start, stop) of the blocks in the series of each segment, ascending.
        reach: rows after a target's own that its value is made of.

    Raises:
        ValueError: there is no chunk.
    """
    # What a segment and a block have in common: a chunk crosses neither's end.
    first = np.maximum(segments[:, None, 0], blocks[..., 0]).ravel()
    rows = np.maximum(np.minimum(segments[:, None, 1], blocks[..., 1]).ravel() - first, 0)
    # The last chunk is followed by its targets and what they reach, as every window is.
    after = horizon + reach
    chunks = np.maximum(rows - after, 0) // window
    if not chunks.any():
        raise ValueError(
            f"no chunk of data.window={window} rows and data.horizon={horizon} after them fits into the train part: choose a "
            "smaller window, more data or another data.split"
        )
    before = np.cumsum(chunks) - chunks
    place = np.arange(chunks.sum()) - np.repeat(before, chunks)
    starts = np.repeat(first, chunks) + window * place
    order, fresh = deal(starts, window=window, streams=streams)
    left_out = int((rows - window * chunks - after * (chunks > 0)).sum())
    return Streams(starts[order], fresh[order], min(streams, len(starts)), left_out)


def deal(starts: Int[np.ndarray, " n"], *, window: int, streams: int) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """The order of an epoch, as places in `starts` (ascending), and for each place whether its chunk begins anew."""
    n = len(starts)
    length, longer = divmod(n, min(streams, n))
    stream = np.arange(min(streams, n))
    first = stream * length + np.minimum(stream, longer)  # place of the first chunk of each stream
    batch, of_stream = np.divmod(np.arange(n), len(stream))
    # Rows for the targets stand between the last chunk of a segment and the next segment: chunks of two never touch.
    fresh = np.append(True, starts[1:] != starts[:-1] + window)
    fresh[first] = True
    return first[of_stream] + batch, fresh
