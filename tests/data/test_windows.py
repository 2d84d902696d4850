from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.gaps import Gap
from statewise.data.missing import Missing
from statewise.data.numeric import InMemory
from statewise.data.rows import Rows
from statewise.data.segments import cut
from statewise.data.splits import PARTS, row_borders
from statewise.data.tables import Table
from statewise.data.windows import make_parts, window_starts


def starts(segments, block, *, window, horizon=1, stride=1) -> list[int]:
    segments = np.array(segments)
    blocks = np.broadcast_to(np.array(block), segments.shape)
    return window_starts(segments, blocks, window=window, horizon=horizon, stride=stride).tolist()


def test_a_block_holds_the_windows_whose_targets_it_holds():
    assert starts([[0, 10]], [0, 6], window=3) == [0, 1, 2]
    assert starts([[0, 10]], [6, 10], window=3) == [3, 4, 5, 6]


def test_no_target_crosses_a_split():
    assert starts([[0, 10]], [0, 6], window=3, horizon=2) == [0, 1]
    assert starts([[0, 10]], [6, 10], window=3, horizon=2) == [3, 4, 5]


def test_no_window_crosses_a_segment():
    assert starts([[0, 5], [5, 10]], [0, 10], window=3) == [0, 1, 5, 6]


def test_stride_counts_from_the_start_of_each_segment_whatever_the_block():
    assert starts([[0, 10], [11, 20]], [0, 20], window=2, stride=3) == [0, 3, 6, 11, 14, 17]
    assert starts([[0, 20]], [0, 9], window=2, stride=3) + starts([[0, 20]], [9, 20], window=2, stride=3) == starts(
        [[0, 20]], [0, 20], window=2, stride=3
    )


def test_a_segment_of_exactly_one_window_has_one():
    assert starts([[4, 8]], [0, 20], window=3) == [4]
    assert starts([[4, 7]], [0, 20], window=3) == []


def test_a_gap_divides_the_window_count_as_it_divides_the_rows():
    kept = np.r_[0:90, 100:200]
    times = np.datetime64("2024-01-01", "ns") + (kept * 60 * 10**9).astype("timedelta64[ns]")
    table = Table(Rows(("",), np.array([0, 190]), times), InMemory({"x": kept.astype(float)}))

    segments = cut(table, Gap(), Missing())
    found = np.array(starts(segments.bounds, [0, 190], window=16))

    assert len(found) == (90 - 16) + (100 - 16)
    bars = kept[found[:, None] + np.arange(17)]
    assert not ((bars == 89).any(axis=1) & (bars == 100).any(axis=1)).any()


def test_a_part_without_a_window_is_named_with_rows_window_horizon_and_remedy():
    borders = np.array([[0, 7, 8, 10]])
    with pytest.raises(ValueError, match=r"train part: it has 7 rows, data.window=16 and data.horizon=1 need 17 rows.*10"):
        make_parts(np.array([[0, 10]]), borders, np.array([0, 10]), window=16, horizon=1)
    with pytest.raises(ValueError, match=r"val part: it has 0 rows.*another data.split"):
        make_parts(np.array([[0, 10]]), np.array([[0, 5, 5, 10]]), np.array([0, 10]), window=2, horizon=1)


def test_no_rows_at_all_is_the_same_clear_error():
    with pytest.raises(ValueError, match="train part: it has 0 rows"):
        make_parts(np.zeros((0, 2), np.int64), np.zeros((1, 4), np.int64), np.array([0, 0]), window=4, horizon=1)


def by_definition(usable, jumps, owner, block, *, window, horizon, stride):
    """All starts, tried one after another."""
    found = {name: [] for name in PARTS}
    begin = 0
    for row in range(len(usable)):
        new = row == 0 or owner[row] != owner[row - 1] or jumps[row] or not usable[row - 1]
        begin = row if new else begin
        span = range(row, row + window + horizon)
        if not usable[row] or (row - begin) % stride or span[-1] >= len(usable):
            continue
        if not all(usable[i] and owner[i] == owner[row] and not (jumps[i] and i > row) for i in span):
            continue
        labels = {block[i] for i in span[window:]}
        if len(labels) == 1 and (label := labels.pop()) < 3:
            found[PARTS[label]].append(row)
    return found


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_the_windows_are_those_of_the_definition(data):
    draw = data.draw
    lengths = draw(st.lists(st.integers(1, 25), min_size=1, max_size=3))
    n, offsets = sum(lengths), np.cumsum([0, *lengths])
    owner = np.repeat(np.arange(len(lengths)), lengths)
    jumps = np.array(draw(st.lists(st.integers(0, 8), min_size=n, max_size=n))) == 0
    gone = np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))) == 0
    window, horizon, stride = (draw(st.integers(1, 4)) for _ in range(3))
    minutes = np.concatenate([np.cumsum(np.where(jumps[a:b], 9, 1)) for a, b in pairwise(offsets)])
    times = np.datetime64("2024-01-01", "ns") + (minutes * 60 * 10**9).astype("timedelta64[ns]")
    table = Table(Rows(tuple("abc"[: len(lengths)]), offsets, times), InMemory({"x": np.where(gone, np.nan, 1.0)}))

    segments = cut(table, Gap(step="1m"), Missing("segment"))
    kept = np.arange(n) >= segments.kept_from[owner]
    axis = np.unique(times[kept])
    edges = sorted(draw(st.integers(0, len(axis))) for _ in range(3))
    borders = row_borders((0, *edges), axis, times, offsets, segments.kept_from)
    found = {
        name: window_starts(
            segments.bounds,
            borders[np.searchsorted(offsets, segments.bounds[:, 0], side="right") - 1, place : place + 2],
            window=window,
            horizon=horizon,
            stride=stride,
        ).tolist()
        for place, name in enumerate(PARTS)
    }

    block = np.searchsorted(np.array(edges), np.searchsorted(axis, times), side="right")
    assert found == by_definition(~gone, jumps, owner, block, window=window, horizon=horizon, stride=stride)
