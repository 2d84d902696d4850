import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.segments.cut import Segments, cut
from statewise.data.segments.gaps import Gap, find_gaps, nanoseconds
from statewise.data.segments.missing import FillFromPast, Missing, carried_forward
from statewise.data.tables.numeric import InMemory
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table

MINUTE = 60 * 10**9


def minutes(stamps) -> np.ndarray:
    return np.datetime64("2024-01-01", "ns") + (np.asarray(stamps) * MINUTE).astype("timedelta64[ns]")


def table_of(values, columns, series, offsets, times) -> Table:
    rows = Rows(tuple(series), np.array(offsets), times)
    return Table(rows, InMemory({name: values[:, index] for index, name in enumerate(columns)}))


def one_series(values, times=None, columns=None) -> Table:
    values = np.asarray(values, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    columns = columns or tuple(f"x{i}" for i in range(values.shape[1]))
    return table_of(values, columns, ("",), [0, len(values)], times)


def filled(table: Table, segments: Segments) -> np.ndarray:
    columns = [segments.filled(index, table.read(name)) for index, name in enumerate(segments.names)]
    return np.stack(columns, axis=1)


def bars_without_rows_90_to_99() -> Table:
    kept = np.r_[0:90, 100:200]
    return one_series(kept, minutes(kept))


def test_a_gap_ends_the_segment_and_is_named_with_start_end_and_length():
    segments = cut(bars_without_rows_90_to_99(), Gap(), Missing())

    assert segments.bounds.tolist() == [[0, 90], [90, 190]]
    (note,) = segments.notes
    assert "1 time gap from 2024-01-01 01:29:00 to 2024-01-01 01:40:00 (0:11:00)" in note


def test_a_single_missing_bar_is_a_gap():
    kept = np.delete(np.arange(50), 20)

    assert cut(one_series(kept, minutes(kept)), Gap(), Missing()).bounds.tolist() == [[0, 20], [20, 49]]


def test_many_gaps_are_one_line_with_their_count_and_the_longest():
    days = [np.arange(30) + 1440 * day for day in (0, 1, 4, 5)]
    stamps = np.concatenate(days)

    segments = cut(one_series(stamps, minutes(stamps)), Gap(), Missing())

    assert len(segments.bounds) == 4
    (note,) = segments.notes
    assert note.startswith("3 time gaps, the longest from 2024-01-02 00:29:00 to 2024-01-05 00:00:00")
    assert "\n" not in note


def test_gap_policy_error_quotes_the_first_gap():
    with pytest.raises(ValueError, match=r"1 gap\(s\), the first from 2024-01-01 01:29:00 to .*data.gap.policy=segment"):
        cut(bars_without_rows_90_to_99(), Gap("error"), Missing())


def test_gap_policy_ignore_lets_windows_cross():
    segments = cut(bars_without_rows_90_to_99(), Gap("ignore"), Missing())

    assert segments.bounds.tolist() == [[0, 190]]
    assert "data.gap.policy=ignore" in segments.notes[0]


def test_a_given_step_decides_what_a_gap_is():
    stamps = np.arange(0, 40, 5)

    assert len(find_gaps(one_series(stamps, minutes(stamps)).rows, Gap())[0]) == 0
    assert len(find_gaps(one_series(stamps, minutes(stamps)).rows, Gap(step="1m"))[0]) == 7


def test_max_gap_lets_windows_cross_jumps_up_to_it_and_no_longer_one():
    stamps = np.delete(np.arange(60), [10, 20, 21, 30, 31, 32])
    bars = one_series(stamps, minutes(stamps))

    assert len(cut(bars, Gap(), Missing()).bounds) == 4
    segments = cut(bars, Gap(), Missing(), max_gap="3m")
    assert segments.bounds.tolist() == [[0, 27], [27, 54]]
    (note,) = segments.notes
    assert note.startswith("1 time gap from 2024-01-01 00:29:00 to 2024-01-01 00:33:00 (0:04:00), the step is 0:01:00")
    assert "2 jump(s) of at most data.max_gap=3m are crossed" in note
    assert cut(bars, Gap(), Missing(), max_gap="4m").bounds.tolist() == [[0, 54]]


def test_max_gap_may_be_shorter_than_a_step_and_a_half():
    stamps = np.array([0.0, 1, 2, 3.25, 4.25])

    assert len(find_gaps(one_series(stamps, minutes(stamps)).rows, Gap())[0]) == 0
    assert find_gaps(one_series(stamps, minutes(stamps)).rows, Gap(), "1m")[0].tolist() == [3]


def test_gap_policy_error_stops_at_the_first_jump_longer_than_max_gap():
    stamps = np.delete(np.arange(60), [10, 30, 31, 32])
    with pytest.raises(ValueError, match=r"1 gap\(s\), the first from 2024-01-01 00:29:00 .*data.max_gap"):
        cut(one_series(stamps, minutes(stamps)), Gap("error"), Missing(), max_gap="3m")


def test_a_series_without_rows_is_no_gap():
    table = table_of(np.zeros((4, 1)), ("x",), ("none", "a", "b"), [0, 0, 2, 4], minutes([0, 1, 500, 501]))

    assert cut(table, Gap(), Missing()).bounds.tolist() == [[0, 2], [2, 4]]


def test_a_missing_target_made_of_later_rows_ends_no_segment_and_is_no_error():
    values = np.stack([np.arange(60.0), np.arange(60.0)], axis=1)
    values[:5, 1] = values[20:50, 1] = values[56:, 1] = np.nan
    table = one_series(values, columns=("x", "next"))

    assert cut(table, Gap(), Missing(max_fill=3)).bounds.tolist() != [[0, 60]]
    for missing in (Missing(max_fill=3), Missing("segment"), Missing("error")):
        segments = cut(table, Gap(), missing, ahead=["next"])
        assert segments.bounds.tolist() == [[0, 60]]
        assert np.isfinite(filled(table, segments)).all()
        assert not segments.observed.column(1)[20:50].any()
        assert segments.notes[1:] == ("next: 39 of 60 rows have no value and are no target",)


def test_months_of_unequal_length_have_no_gap():
    months = np.arange("2020-01", "2024-01", dtype="datetime64[M]").astype("datetime64[ns]")

    assert len(find_gaps(one_series(np.arange(48), months).rows, Gap())[0]) == 0


def test_the_way_from_one_series_to_the_next_is_no_gap():
    times = minutes([0, 1, 2, 500, 501, 502])
    table = table_of(np.zeros((6, 1)), ("x",), ("a", "b"), [0, 3, 6], times)

    segments = cut(table, Gap(), Missing())

    assert segments.bounds.tolist() == [[0, 3], [3, 6]]
    assert segments.notes[0].startswith("no time gap")


@pytest.mark.parametrize("step", ["", "1", "m", "0m", "-1h", "1 fortnight", "1.5h"])
def test_a_step_that_is_no_duration_is_refused(step):
    with pytest.raises(ValueError, match=r"data.gap.step must be a number and a unit"):
        Gap(step=step)


def test_a_step_is_read_in_all_units():
    assert [nanoseconds(step) for step in ("5ns", "2us", "3ms", "1s", "15m", "1h", "7d")] == [
        5, 2_000, 3_000_000, 10**9, 900 * 10**9, 3600 * 10**9, 604_800 * 10**9,
    ]  # fmt: skip


def test_unknown_policies_are_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"data.gap.policy must be one of .*, got 'segmnt'; did you mean segment"):
        Gap("segmnt")
    with pytest.raises(ValueError, match=r"data.missing.policy must be one of .*, got 'fil'; did you mean fill"):
        Missing("fil")
    with pytest.raises(ValueError, match=r"data.missing.max_fill must be at least 0, got -1"):
        Missing(max_fill=-1)
    with pytest.raises(ValueError, match=r"data.gap.max_fill must be at least 0, got -1"):
        Gap(max_fill=-1)


def bars_with_missing_closes() -> np.ndarray:
    values = np.stack([np.arange(100.0), 1000 + np.arange(100.0)], axis=1)
    values[0:5, 0] = values[50:53, 0] = np.nan
    return values


def test_leading_rows_are_dropped_and_inner_ones_filled_from_the_past():
    table = one_series(bars_with_missing_closes(), columns=("close", "volume"))
    segments = cut(table, Gap(), Missing())

    assert segments.kept_from.tolist() == [5]
    assert segments.bounds.tolist() == [[5, 100]]
    assert filled(table, segments)[50:53, 0].tolist() == [49.0] * 3
    assert not segments.observed.column(0)[50:53].any()
    assert segments.observed.column(1)[50:53].all()
    assert segments.notes[1] == "dropped 5 leading row(s): missing values in close"
    assert segments.notes[2].startswith("close: 3 of 95 values missing (3.2%), 3 filled from the past")


def test_a_later_value_never_changes_an_earlier_one():
    values = bars_with_missing_closes()
    changed = values.copy()
    changed[53:] *= -7

    before, after = (filled(table, cut(table, Gap(), Missing())) for table in map(one_series, (values, changed)))

    assert np.array_equal(before[:53], after[:53], equal_nan=True)
    assert before[5:53].tobytes() == after[5:53].tobytes()


def test_a_run_longer_than_max_fill_ends_the_segment_after_max_fill_rows():
    table = one_series(bars_with_missing_closes())
    segments = cut(table, Gap(), Missing(max_fill=2))

    assert segments.bounds.tolist() == [[5, 52], [53, 100]]
    assert filled(table, segments)[50:52, 0].tolist() == [49.0] * 2
    assert np.isnan(filled(table, segments)[52, 0])
    assert segments.notes[-1].startswith("1 rows left out in 1 run(s)")


def test_policy_segment_fills_nothing():
    table = one_series(bars_with_missing_closes())
    segments = cut(table, Gap(), Missing("segment"))

    assert segments.bounds.tolist() == [[5, 50], [53, 100]]
    assert np.isnan(filled(table, segments)[50:53, 0]).all()


def test_policy_error_names_column_row_and_count():
    with pytest.raises(ValueError, match=r"column 'close' has 3 missing value.s., the first in row 50, counted from 0"):
        cut(one_series(bars_with_missing_closes(), columns=("close", "volume")), Gap(), Missing("error"))


def test_no_value_is_carried_over_a_gap_or_into_another_series():
    values = np.array([1.0, 2.0, np.nan, 4.0, np.nan, 6.0])
    across_gap = cut(one_series(values, minutes([0, 1, 30, 31, 32, 33])), Gap(), Missing())
    assert across_gap.bounds.tolist() == [[0, 2], [3, 6]]

    table = table_of(values[:, None], ("x",), ("a", "b"), [0, 2, 6], None)
    across_series = cut(table, Gap(), Missing())
    assert across_series.kept_from.tolist() == [0, 3]
    assert "dropped 1 leading row(s) in 1 of 2 series" in across_series.notes[1]


def test_a_series_without_any_complete_row_is_dropped_and_named():
    values = np.array([[1.0, np.nan], [np.nan, 2.0], [1.0, 1.0]])
    table = table_of(values, ("x", "y"), ("dead", "alive"), [0, 2, 3], None)

    segments = cut(table, Gap(), Missing())

    assert segments.kept_from.tolist() == [2, 2]
    assert segments.bounds.tolist() == [[2, 3]]
    assert "nothing is left of dead" in segments.notes[1]


def test_an_infinite_value_is_refused_with_its_place():
    values = np.arange(10.0)
    values[7] = -np.inf
    with pytest.raises(ValueError, match="column 'x0' is infinite at row 7"):
        cut(one_series(values), Gap(), Missing())


def test_a_table_without_rows_has_no_segment():
    empty = one_series(np.zeros((0, 2)), minutes([]))

    assert cut(empty, Gap(), Missing()).bounds.shape == (0, 2)


def filled_row_by_row(values, stretch, max_fill):
    """The definition, one row after another: what the vectorised form must give."""
    filled, usable = values.copy(), np.zeros(len(values), dtype=bool)
    for row in range(len(values)):
        known = ~np.isnan(values[row])
        can = True
        for column in np.flatnonzero(~known):
            back = row - 1
            while back >= stretch[row] and np.isnan(values[back, column]):
                back -= 1
            can &= bool(back >= stretch[row] and row - back <= max_fill)
            if can:
                filled[row, column] = values[back, column]
        was_out = row > stretch[row] and not usable[row - 1]
        usable[row] = known.all() or (can and not was_out)
        if not usable[row]:
            filled[row] = values[row]
    return filled, usable


@given(st.data(), st.integers(1, 40), st.integers(1, 3), st.integers(0, 4))
@settings(max_examples=50, deadline=None)
def test_filling_equals_its_definition_row_by_row(data, rows, columns, max_fill):
    gone = np.array(data.draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns)))
    begins = np.array(data.draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))) == 0
    values = np.where(gone.reshape(rows, columns), np.nan, np.arange(rows * columns, dtype=float).reshape(rows, columns))
    stretch = np.maximum.accumulate(np.where(begins, np.arange(rows), 0))

    observed = ~np.isnan(values)
    filling = FillFromPast(stretch, max_fill)
    for column in range(columns):
        filling.see(observed[:, column])
    usable = filling.usable
    found = np.stack([carried_forward(values[:, c], observed[:, c], usable) for c in range(columns)], axis=1)

    expected, expected_usable = filled_row_by_row(values, stretch, max_fill)
    assert usable.tolist() == expected_usable.tolist()
    assert np.array_equal(found, expected, equal_nan=True)
    assert not np.isnan(found[usable]).any()
