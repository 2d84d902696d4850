"""Absent rows of a regular grid under data.gap.policy=forward_fill: inserted, carried forward, never a target."""

import numpy as np
import polars as pl
import pytest

from statewise.data.segments.cut import cut
from statewise.data.segments.gaps import Gap
from statewise.data.segments.missing import Missing
from statewise.data.segments.regular import on_grid
from statewise.data.tables.table import Table

FILL = Gap("forward_fill")


def minutes(stamps) -> np.ndarray:
    return np.datetime64("2024-01-01", "ns") + (np.asarray(stamps) * 60 * 10**9).astype("timedelta64[ns]")


def table(stamps, values=None, series=None) -> Table:
    frame = pl.DataFrame({"ts": minutes(stamps), "x": np.asarray(stamps if values is None else values, dtype=float)})
    if series is not None:
        frame = frame.with_columns(pl.Series("who", series))
    return Table.of(frame, "ts", None if series is None else "who", ("x",))


def test_absent_rows_carry_the_last_row_forward():
    grid, origin = on_grid(table([0, 1, 4, 5, 6]), FILL)

    assert grid.rows.times.tolist() == minutes(range(7)).tolist()
    assert grid.read("x").tolist() == [0, 1, 1, 1, 4, 5, 6]
    assert origin.tolist() == [0, 1, 1, 1, 2, 3, 4]
    assert np.flatnonzero(grid.inserted).tolist() == [2, 3]
    assert grid.notes[-1].startswith("2 absent rows inserted in 1 gap(s) of at most 24 (data.gap.policy=forward_fill)")


def test_inserted_rows_are_in_a_segment_and_observed_nowhere():
    grid, _ = on_grid(table([0, 1, 4, 5, 6]), FILL)
    segments = cut(grid, FILL, Missing("error"))

    assert segments.bounds.tolist() == [[0, 7]]
    assert segments.observed.column(0).tolist() == [True, True, False, False, True, True, True]
    assert segments.notes[0].startswith("no time gap")
    assert len(segments.notes) == 1


def test_a_gap_of_more_rows_stays_one():
    stamps = [0, 1, 2, 5, 6, 10, 11]
    grid, _ = on_grid(table(stamps), Gap("forward_fill", max_fill=2))

    assert grid.read("x").tolist() == [0, 1, 2, 2, 2, 5, 6, 10, 11]
    assert cut(grid, Gap("forward_fill", max_fill=2), Missing()).bounds.tolist() == [[0, 7], [7, 9]]


def test_the_way_from_one_series_to_the_next_is_not_filled():
    grid, _ = on_grid(table([0, 1, 3, 9, 10, 12], series=list("aaabbb")), FILL)

    assert grid.rows.offsets.tolist() == [0, 4, 8]
    assert grid.read("x").tolist() == [0, 1, 1, 3, 9, 10, 10, 12]


def test_a_missing_value_before_the_gap_is_still_filled_from_what_came_before_it():
    grid, _ = on_grid(table([0, 1, 2, 4, 5], [7.0, 8.0, np.nan, 9.0, 10.0]), FILL)
    segments = cut(grid, FILL, Missing())

    assert segments.filled(0, grid.read("x")).tolist() == [7, 8, 8, 8, 9, 10]
    assert "x: 1 of 5 values missing" in segments.notes[1]


def test_rows_after_a_moment_never_change_what_stands_before_it():
    values = np.arange(20.0)
    stamps = np.delete(np.arange(26), [5, 6, 9, 15, 16, 17])
    changed = np.where(stamps > 12, -7.0, values)

    before, after = (on_grid(table(stamps, x), FILL)[0].read("x") for x in (values, changed))

    assert before[:13].tobytes() == after[:13].tobytes()


@pytest.mark.parametrize("policy", ["segment", "error", "ignore"])
def test_other_policies_insert_nothing(policy):
    given = table([0, 1, 4, 5])

    assert on_grid(given, Gap(policy)) == (given, None)


def test_a_table_on_the_grid_already_is_handed_back():
    whole, filled = table(range(5)), on_grid(table([0, 1, 3]), FILL)[0]

    assert on_grid(whole, FILL)[0] is whole
    assert on_grid(filled, FILL)[0] is filled
    assert on_grid(table([3]), FILL)[1] is None
    frame = pl.DataFrame({"x": [1.0, 2.0]})
    assert on_grid(Table.of(frame, None, None, ("x",)), FILL)[1] is None


def test_irregular_times_are_refused_with_the_first_place():
    stamps = np.array([0.0, 1.0, 2.0, 3.5, 4.5])
    with pytest.raises(
        ValueError, match=r"regular grid, but from 2024-01-01 00:02:00 to 2024-01-01 00:03:30 are 0:01:30"
    ) as error:
        on_grid(table(stamps), FILL)
    assert "no multiple of the step 0:01:00 (1 such differences): set data.gap.step" in str(error.value)
    # With a finer step they are a grid.
    grid, _ = on_grid(table(stamps), Gap("forward_fill", step="30s"))
    assert len(grid.rows) == 10


def test_nanoseconds_stay_exact():
    step = 7
    start = np.int64(1_704_067_200_123_456_789)
    stamps = (start + step * np.array([0, 1, 2, 5])).astype("datetime64[ns]")
    grid, _ = on_grid(Table.of(pl.DataFrame({"ts": stamps, "x": [0.0] * 4}), "ts", None, ("x",)), FILL)

    assert grid.rows.times.astype(np.int64).tolist() == [start + step * k for k in range(6)]
