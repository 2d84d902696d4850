"""Walk-forward folds: where the blocks of each fold lie on the time axis."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.windows.division import Division
from statewise.data.windows.folds import Folds, after_embargo, fold_blocks


def drawn(folds: Folds, rows: int, embargo=None) -> list[str]:
    """Each fold as one line: t train, v val, T test, . in no part."""
    return [picture(fold_blocks(folds, fold, np.arange(rows), embargo), rows) for fold in range(folds.n)]


def picture(blocks, rows) -> str:
    line = ["."] * rows
    for name, letter in (("train", "t"), ("val", "v"), ("test", "T")):
        for start, stop in blocks[name]:
            line[start:stop] = letter * (stop - start)
    return "".join(line)


def hours(stamps) -> np.ndarray:
    return np.datetime64("2024-01-01", "ns") + np.asarray(stamps).astype("timedelta64[h]")


def test_expanding_folds_train_on_everything_before():
    assert drawn(Folds(3, test_size=3, val_size=1), 14) == ["ttttvTTT......", "tttttttvTTT...", "ttttttttttvTTT"]


def test_rolling_folds_train_on_as_many_rows_as_the_first():
    assert drawn(Folds(3, "rolling", test_size=3, val_size=1), 14) == ["ttttvTTT......", "...ttttvTTT...", "......ttttvTTT"]


def test_surrounding_folds_train_behind_the_embargo_as_well():
    folds = Folds(3, "surrounding", test_size=3, val_size=1)

    assert drawn(folds, 14, embargo=1) == ["ttttvTTT.ttttt", "tttttttvTTT.tt", "ttttttttttvTTT"]
    assert drawn(folds, 14)[1] == "tttttttvTTTttt"
    assert drawn(folds, 14, embargo=100)[1] == "tttttttvTTT..."


def test_without_sizes_all_blocks_are_equal():
    assert drawn(Folds(2), 13) == ["ttttvvvTTT...", "tttttttvvvTTT"]


def test_the_val_block_is_as_long_as_the_test_block_where_nothing_is_said():
    assert drawn(Folds(2, test_size=2), 10) == ["ttttvvTT..", "ttttttvvTT"]


def test_a_share_is_of_the_whole_axis_and_exact_in_decimals():
    assert drawn(Folds(2, test_size=0.3, val_size=0.1), 10) == ["tttvTTT...", "ttttttvTTT"]
    # In binary floats 0.07 * 100 is above 7, 0.57 * 100 below 57.
    assert fold_blocks(Folds(1, test_size=0.57, val_size=0.07), 0, np.arange(100))["test"] == ((43, 100),)


def test_durations_cut_by_time_and_the_last_row_is_in_the_last_block():
    # Three days of hours; the second day has three rows only.
    axis = hours([*range(24), 30, 31, 32, *range(48, 72)])
    folds = Folds(2, test_size="1d", val_size="6h")

    first, second = (fold_blocks(folds, fold, axis) for fold in (0, 1))
    assert first == {"train": ((0, 18),), "val": ((18, 24),), "test": ((24, 27),)}
    assert second == {"train": ((0, 24),), "val": ((24, 27),), "test": ((27, 51),)}


def test_an_embargo_of_a_duration_counts_from_the_first_row_after_the_block():
    axis = hours([0, 1, 2, 3, 10, 11, 12, 13])

    assert after_embargo("2h", 2, axis) == 4
    assert after_embargo("2h", 4, axis) == 6
    assert after_embargo("2h", 8, axis) == after_embargo(3, 8, axis) == 8
    assert after_embargo(None, 2, axis) == 2


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_the_test_blocks_tile_the_end_of_the_axis_and_nothing_overlaps(data):
    draw = data.draw
    n, rows = draw(st.integers(1, 5)), draw(st.integers(30, 80))
    mode = draw(st.sampled_from(["expanding", "rolling", "surrounding"]))
    folds = Folds(n, mode, draw(st.one_of(st.none(), st.integers(1, 4), st.floats(0.04, 0.12))), draw(st.integers(1, 4)))
    embargo = draw(st.integers(0, 6))
    made = [fold_blocks(folds, fold, np.arange(rows), embargo) for fold in range(n)]

    tests = [block for blocks in made for block in blocks["test"]]
    assert tests[-1][1] == rows
    assert [start for start, _ in tests[1:]] == [stop for _, stop in tests[:-1]]
    assert len({stop - start for start, stop in tests}) == 1
    for blocks in made:
        counted = np.zeros(rows, dtype=int)
        for part in blocks.values():
            for start, stop in part:
                assert start < stop
                counted[start:stop] += 1
        assert counted.max() == 1
        (val,), (test,) = blocks["val"], blocks["test"]
        assert val[1] == test[0]
        assert blocks["train"][0][1] == val[0]
        if mode == "surrounding":
            assert all(start >= test[1] + embargo for start, _ in blocks["train"][1:])
        else:
            assert len(blocks["train"]) == 1
    if mode == "rolling":
        assert len({blocks["train"][0][1] - blocks["train"][0][0] for blocks in made}) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Folds(0), r"data.folds.n must be at least 1, got 0"),
        (lambda: Folds(3, "rollin"), r"data.folds.mode must be one of .*, got 'rollin'; did you mean rolling"),
        (lambda: Folds(3, test_size=0), r"data.folds.test_size must be a share such as 0.1, a number of rows, or .*, got 0"),
        (lambda: Folds(3, test_size=2.5), r"data.folds.test_size must be a share"),
        (lambda: Folds(3, test_size=True), r"data.folds.test_size must be a share"),
        (lambda: Folds(3, val_size="month"), r"data.folds.val_size must be a number and a unit .*, got 'month'"),
        (lambda: Folds(test_size=5), r"data.folds.test_size=5 needs data.folds.n"),
        (lambda: Division(fold=2), r"data.fold=2 needs data.folds.n"),
        (lambda: Division(folds=Folds(4), fold=4), r"data.fold must be from 0 to 3, because data.folds.n=4, got 4"),
        (lambda: Division(folds=Folds(4), fold=-1), r"data.fold must be from 0 to 3"),
        (lambda: Division([0.6, 0.2, 0.2], Folds(4)), r"data.split and data.folds.n exclude each other: .*data.folds.n=null"),
        (lambda: Division(embargo=-1), r"data.embargo must be a number of rows, a duration such as 2h, or null, got -1"),
        (lambda: Division(embargo="soon"), r"data.embargo must be a number and a unit"),
    ],
)
def test_keys_without_sense_end_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("folds", "axis", "message"),
    [
        (
            Folds(4, test_size=5),
            np.arange(24),
            r"4 test blocks of 5, and a val block .* 24 rows .*: no row is left to train on",
        ),
        (Folds(4), np.arange(5), r"4 test blocks of equal size.*fit into the 5 rows"),
        (Folds(2), np.arange(0), r"fit into the 0 rows"),
        (Folds(2, test_size="1h"), np.arange(24), r"data.folds.test_size=1h is a duration, but there is no time column"),
        (Folds(2, test_size=2, val_size="1h"), np.arange(24), r"data.folds.val_size=1h is a duration, but there is no time"),
        (Folds(2, test_size="3h"), hours([*range(11), 40, 41]), r"the blocks of fold 0 would be empty"),
        (Folds(2, test_size="1d"), hours([]), r"fit into the 0 rows"),
    ],
)
def test_blocks_that_do_not_fit_are_refused_with_the_sizes(folds, axis, message):
    with pytest.raises(ValueError, match=message) as raised:
        fold_blocks(folds, 0, axis)
    assert "\n" not in str(raised.value)


def test_an_embargo_without_effect_is_told():
    division = Division(folds=Folds(2, "surrounding"), embargo=3)

    assert division.notes(division.blocks(np.arange(40))) == [
        "fold 0 of 2 (counted from 0), surrounding",
        "data.embargo=3: no row within 3 after the test block trains",
    ]
    (note,) = Division(embargo=3).notes(Division().blocks(np.arange(40)))
    assert note == "data.embargo=3: nothing to keep apart, because no training row lies after an evaluation block"
