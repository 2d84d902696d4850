from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.segments.cut import cut
from statewise.data.segments.gaps import Gap
from statewise.data.segments.missing import Missing
from statewise.data.tables.numeric import InMemory
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table
from statewise.data.windows.folds import Folds, fold_blocks
from statewise.data.windows.parts import find_parts, make_parts, window_starts
from statewise.data.windows.splits import PARTS, in_turn, row_blocks


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


def parts_of(borders, **keys):
    """The parts of one series that is one segment."""
    rows = borders[3]
    axis, offsets = np.arange(rows), np.array([0, rows])
    blocks = row_blocks(in_turn(borders), axis, axis, offsets, np.array([0]))
    return make_parts(np.array([[0, rows]] if rows else np.zeros((0, 2), np.int64)), blocks, offsets, **keys)


def test_a_target_made_of_later_rows_is_purged_with_all_that_it_reaches():
    # Training ends before row 12: the target of the window at 5 is row 8 and knows rows 9 to 11.
    parts = parts_of((0, 12, 16, 24), window=3, horizon=1, reach=3)

    assert parts["train"].starts.tolist() == [0, 1, 2, 3, 4, 5]
    assert parts["val"].starts.tolist() == [9]
    assert parts["test"].starts.tolist() == [13, 14, 15, 16, 17]
    assert parts["train"].purged == 3


def test_the_purged_windows_are_counted_under_a_stride_as_well():
    assert parts_of((0, 12, 16, 24), window=3, horizon=2)["train"].purged == 1
    assert parts_of((0, 12, 16, 24), window=3, horizon=1)["train"].purged == 0
    strided = parts_of((0, 12, 20, 30), window=3, horizon=2, reach=2, stride=4)
    assert (strided["train"].starts.tolist(), strided["train"].purged) == ([0, 4], 1)


def test_what_trains_after_an_evaluation_block_sees_no_row_of_it():
    blocks = {"train": np.array([[[0, 6], [12, 20]]]), "val": np.array([[[6, 8]]]), "test": np.array([[[8, 10]]])}
    parts = make_parts(np.array([[0, 20]]), blocks, np.array([0, 20]), window=3, horizon=1)

    assert parts["train"].starts.tolist() == [0, 1, 2, 12, 13, 14, 15, 16]
    # Their targets are the rows 12 to 14, their inputs lie in the embargo or before it.
    assert parts["train"].purged == 3


def test_a_part_without_a_window_is_named_with_rows_window_horizon_and_remedy():
    with pytest.raises(ValueError, match=r"train part: it has 7 rows, data.window=16 and data.horizon=1 need 17 rows.*10"):
        parts_of((0, 7, 8, 10), window=16, horizon=1)
    with pytest.raises(ValueError, match=r"val part: it has 0 rows.*another data.split"):
        parts_of((0, 5, 5, 10), window=2, horizon=1)
    with pytest.raises(ValueError, match=r"train part: .* need 8 rows without a gap \(the targets reach 5 rows further\)"):
        parts_of((0, 7, 8, 10), window=2, horizon=1, reach=5)


def test_no_rows_at_all_is_the_same_clear_error():
    with pytest.raises(ValueError, match="train part: it has 0 rows"):
        parts_of((0, 0, 0, 0), window=4, horizon=1)


def by_definition(usable, jumps, owner, label, *, window, horizon, stride, reach):
    """All starts, tried one after another; label names the part of each row, None where it is in none."""
    found = {name: [] for name in PARTS}
    begin = 0
    for row in range(len(usable)):
        new = row == 0 or owner[row] != owner[row - 1] or jumps[row] or not usable[row - 1]
        begin = row if new else begin
        span = range(row, row + window + horizon + reach)
        if not usable[row] or (row - begin) % stride or span[-1] >= len(usable):
            continue
        if not all(usable[i] and owner[i] == owner[row] and not (jumps[i] and i > row) for i in span):
            continue
        names = {label[i] for i in span[window:]}
        inputs = {label[i] for i in span[:window]}
        if len(names) == 1 and (name := names.pop()) and (name != "train" or inputs == {"train"}):
            found[name].append(row)
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
    keys = {key: draw(st.integers(1, 4)) for key in ("window", "horizon", "stride")} | {"reach": draw(st.integers(0, 3))}
    minutes = np.concatenate([np.cumsum(np.where(jumps[a:b], 9, 1)) for a, b in pairwise(offsets)])
    times = np.datetime64("2024-01-01", "ns") + (minutes * 60 * 10**9).astype("timedelta64[ns]")
    table = Table(Rows(tuple("abc"[: len(lengths)]), offsets, times), InMemory({"x": np.where(gone, np.nan, 1.0)}))

    segments = cut(table, Gap(step="1m"), Missing("segment"))
    axis = np.unique(times[np.arange(n) >= segments.kept_from[owner]])
    blocks = divided(draw, axis)
    rows = row_blocks(blocks, axis, times, offsets, segments.kept_from)
    parts = find_parts(segments.bounds, rows, offsets, **keys)
    found = {name: parts[name].starts.tolist() for name in PARTS}

    label = np.full(n, None)
    for name, part in blocks.items():
        for start, stop in part:
            place = np.searchsorted(axis, times)
            label[(place >= start) & (place < stop) & (np.arange(n) >= segments.kept_from[owner])] = name
    assert found == by_definition(~gone, jumps, owner, label, **keys)
    window, after = keys["window"], keys["horizon"] + keys["reach"]
    for start in found["train"]:
        assert set(label[start : start + window + after]) == {"train"}
    # Every window of the segments whose first target trains is either kept or counted as purged.
    first_targets = by_definition(~gone, jumps, owner, np.full(n, "test"), **keys)["test"]
    trains = [start for start in first_targets if label[start + window] == "train"]
    # What begins before the first training block is left out on purpose.
    inside = [start for start in trains if times[start] >= axis[blocks["train"][0][0]]]
    assert parts["train"].purged == len(inside) - len(found["train"])


def divided(draw, axis):
    """A split in three, or a fold of some mode with an embargo, of what axis there is."""
    n = len(axis)
    if n < 6 or draw(st.booleans()):
        return in_turn((0, *sorted(draw(st.integers(0, n)) for _ in range(3))))
    folds = Folds(draw(st.integers(1, 3)), draw(st.sampled_from(["expanding", "rolling", "surrounding"])), 1 + n // 8, 1)
    try:
        return fold_blocks(folds, draw(st.integers(0, folds.n - 1)), axis, draw(st.integers(0, 3)))
    except ValueError:
        return in_turn((0, n // 3, n // 2, n))
