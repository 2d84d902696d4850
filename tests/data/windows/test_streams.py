"""Chunks that follow one another, dealt to streams: pure index arithmetic, checked by its promises."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.windows.streams import deal, make_streams


@st.composite
def tables(draw):
    """Segments with gaps between some of them, the block of each, and the arguments of a cut that leaves a chunk."""
    window, horizon, reach = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(0, 3))
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    lengths.append(draw(st.integers(window + horizon + reach, 40)))
    gaps = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    stops = np.cumsum(np.array(lengths) + gaps)
    segments = np.stack([stops - lengths, stops], axis=1)
    # One series, whose training block may end inside a segment; the last segment of it lies within.
    end = draw(st.integers(0, 5)) + int(stops[-1])
    blocks = np.tile([[[0, end]]], (len(segments), 1, 1))
    return segments, blocks, {"window": window, "horizon": horizon, "reach": reach, "streams": draw(st.integers(1, 9))}


def fates(streams):
    """For each stream its chunks in order, as (start, fresh), read off the batches as the sampler cuts them."""
    chunks = list(zip(streams.starts.tolist(), streams.fresh.tolist(), strict=True))
    batches = [chunks[first : first + streams.width] for first in range(0, len(chunks), streams.width)]
    return batches, [[batch[k] for batch in batches if k < len(batch)] for k in range(streams.width)]


@given(tables())
@settings(max_examples=150, deadline=None)
def test_every_chunk_comes_exactly_once_and_crosses_no_segment(table):
    segments, blocks, keys = table
    made = make_streams(segments, blocks, **keys)

    window, after = keys["window"], keys["horizon"] + keys["reach"]
    expected, idle = [], 0
    for first, stop in segments.tolist():
        chunks = list(range(first, stop - after - window + 1, window))
        expected += chunks
        idle += stop - (chunks[-1] + window + after if chunks else first)
    assert sorted(made.starts.tolist()) == expected
    assert made.left_out == idle


@given(tables())
@settings(max_examples=150, deadline=None)
def test_a_chunk_that_is_not_fresh_begins_where_the_last_one_of_its_stream_ended(table):
    segments, blocks, keys = table
    made = make_streams(segments, blocks, **keys)
    batches, streams = fates(made)

    assert made.width == min(keys["streams"], len(made.starts))
    assert len(batches) == made.batches
    assert all(fresh for _, fresh in batches[0])
    home = np.searchsorted(segments[:, 0], made.starts, side="right") - 1
    of = dict(zip(made.starts.tolist(), home.tolist(), strict=True))
    for chunks in streams:
        for (before, _), (start, fresh) in pairwise(chunks):
            assert fresh == (of[before] != of[start])
            if not fresh:
                assert start == before + keys["window"]


@given(tables())
@settings(max_examples=100, deadline=None)
def test_only_the_last_batch_is_smaller_and_the_streams_lie_in_the_order_of_time(table):
    segments, blocks, keys = table
    made = make_streams(segments, blocks, **keys)
    batches, streams = fates(made)

    assert all(len(batch) == made.width for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= made.width
    assert max(map(len, streams)) - min(map(len, streams)) <= 1
    assert [start for chunks in streams for start, _ in chunks] == sorted(made.starts.tolist())


def test_a_block_cuts_its_segments_and_its_targets_stay_inside():
    # Rows 0 to 29 are one segment; the block ends at 20: the third chunk of 6 has its target at row 18, a fourth does not fit.
    made = make_streams(np.array([[0, 30]]), np.array([[[0, 20]]]), window=6, horizon=1, streams=1)

    assert made.starts.tolist() == [0, 6, 12]
    assert made.fresh.tolist() == [True, False, False]
    assert made.left_out == 1


def test_chunks_lie_in_one_of_several_blocks_and_leave_room_for_what_the_targets_reach():
    # One segment of 60 rows, trained on before row 20 and from row 32 on.
    blocks = np.array([[[0, 20], [32, 60]]])
    made = make_streams(np.array([[0, 60]]), blocks, window=6, horizon=2, streams=1, reach=3)

    assert made.starts.tolist() == [0, 6, 32, 38, 44]
    assert made.fresh.tolist() == [True, False, True, False, False]
    assert made.left_out == (20 - 12 - 5) + (28 - 18 - 5)


def test_the_drawing_in_the_module_is_what_happens():
    order, fresh = deal(np.arange(0, 80, 10), window=10, streams=3)

    assert order.tolist() == [0, 3, 6, 1, 4, 7, 2, 5]
    assert fresh[order].tolist() == [True, True, True, False, False, False, False, False]


def test_segments_without_room_for_a_chunk_are_counted_as_left_out_and_none_at_all_is_refused():
    segments, blocks = np.array([[0, 4], [4, 16]]), np.array([[[0, 16]], [[0, 16]]])
    assert make_streams(segments, blocks, window=5, horizon=1, streams=2).left_out == 4 + 1
    with pytest.raises(ValueError, match=r"no chunk of data.window=12 rows and data.horizon=1 after them fits"):
        make_streams(segments, blocks, window=12, horizon=1, streams=2)
