import datetime

import numpy as np
import pytest

from statewise.data.windows.splits import axis_borders, in_turn, refuse_local_moments, row_blocks, rows_in


def axis(n: int) -> np.ndarray:
    return np.arange(n)


def days(n: int) -> np.ndarray:
    return np.datetime64("2024-01-01", "ns") + np.arange(n).astype("timedelta64[D]")


def test_borders_are_the_floor_of_the_exact_fractions():
    assert axis_borders([0.7, 0.1, 0.2], axis(43_800)) == (0, 30_660, 35_040, 43_800)
    # In binary floats 0.7 + 0.1 + 0.2 is below 1 and 0.7 * 10 below 7: a row would go missing.
    assert axis_borders([0.7, 0.1, 0.2], axis(10)) == (0, 7, 8, 10)
    assert axis_borders([0.1, 0.2, 0.7], axis(10)) == (0, 1, 3, 10)
    assert axis_borders([0.57, 0.02, 0.41], axis(100)) == (0, 57, 59, 100)


def test_rows_beyond_the_fractions_are_unused():
    assert axis_borders([0.5, 0.1, 0.1], axis(99)) == (0, 49, 59, 69)


def test_integers_are_row_counts():
    assert axis_borders([8640, 2880, 2880], axis(17_420)) == (0, 8640, 11_520, 14_400)


def test_dates_are_the_first_of_each_later_part():
    assert axis_borders(["2024-01-11", "2024-01-21"], days(30)) == (0, 10, 20, 30)
    assert axis_borders(["2024-01-11", "2024-01-21", "2024-01-26"], days(30)) == (0, 10, 20, 25)
    assert axis_borders([datetime.date(2024, 1, 11), datetime.date(2024, 1, 21)], days(30)) == (0, 10, 20, 30)


def test_a_date_with_a_zone_means_the_same_moment_in_utc():
    assert axis_borders(["2024-01-11T02:00:00+02:00", "2024-01-21"], days(30)) == (0, 10, 20, 30)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ([], "must be three fractions"),
        ([0.7, 0.3], "must be three fractions"),
        ([0.7, 0.1, 0.1, 0.1], "must be three fractions"),
        ([0.7, 0.2, 0.2], "sum to 1.1"),
        ([0.7, 0.4, -0.1], "must not be negative"),
        ([80, -10, 10], "must not be negative"),
        ([80, 20, 1], "asks for 101 rows, but there are 100"),
        ([0.7, True, 0.1], "must be three fractions"),
        ([0.7, float("nan"), 0.1], "must be three fractions"),
        ([0.7, "0.1", 0.2], "must be three fractions"),
        (["2024-01-01", "2024-02-01"], "no time column"),
    ],
)
def test_what_is_no_split_is_refused(split, message):
    with pytest.raises(ValueError, match=f"data.split.*{message}"):
        axis_borders(split, axis(100))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (["2024-01-10"], "two or three dates"),
        (["2024-01-20", "2024-01-10"], "ascending order"),
        (["2024-01-10", "2024-13-01"], "'2024-13-01' is no ISO date"),
    ],
)
def test_dates_that_are_no_split_are_refused(split, message):
    with pytest.raises(ValueError, match=message):
        axis_borders(split, days(30))


def borders_of(rows: dict[str, np.ndarray]) -> list[list[int]]:
    """The borders of single blocks that follow one another, of each series."""
    return [[*(rows[name][g, 0, 0] for name in rows), rows["test"][g, 0, 1]] for g in range(len(rows["train"]))]


def test_series_share_the_borders_of_the_common_axis():
    first, second = days(10), days(30)[5:20]
    clock, offsets = np.concatenate([first, second]), np.array([0, 10, 25])
    whole = np.unique(clock)

    rows = row_blocks(in_turn((0, 8, 12, 20)), whole, clock, offsets, kept_from=np.array([0, 10]))

    assert borders_of(rows) == [[0, 8, 10, 10], [10, 13, 17, 25]]
    assert clock[rows["train"][:, 0, 1] - 1].max() < clock[rows["val"][1, 0, 0]]


def test_dropped_rows_belong_to_no_block():
    rows = row_blocks(in_turn((0, 5, 10, 20)), axis(20), axis(20), np.array([0, 20]), kept_from=np.array([7]))

    assert borders_of(rows) == [[7, 7, 10, 20]]


def test_a_part_may_have_several_blocks_and_their_rows_are_counted_once():
    blocks = {"train": ((0, 5), (12, 20)), "val": ((5, 8),), "test": ((8, 11),)}
    rows = row_blocks(blocks, axis(20), np.tile(axis(20), 2), np.array([0, 20, 40]), kept_from=np.array([0, 26]))

    assert rows["train"].tolist() == [[[0, 5], [12, 20]], [[26, 26], [32, 40]]]
    assert np.flatnonzero(rows_in(rows["train"], 40)).tolist() == [*range(5), *range(12, 20), *range(32, 40)]
    assert np.flatnonzero(rows_in(rows["train"], 40, short=3)).tolist() == [0, 1, *range(12, 17), *range(32, 37)]


def hours(n: int) -> np.ndarray:
    return np.datetime64("2024-01-01", "ns") + np.arange(n).astype("timedelta64[h]")


def test_a_clock_time_is_refused_for_times_whose_clock_nobody_knows():
    with pytest.raises(
        ValueError, match=r"data.split cuts inside a day, at '2024-01-02T12:00', .* no time zone: .*data.timezone"
    ):
        refuse_local_moments(["2024-01-02", "2024-01-02T12:00"], hours(60))
    with pytest.raises(ValueError, match="cuts inside a day"):
        refuse_local_moments(["2024-01-02T00:00+02:00", "2024-01-03"], hours(60))


def test_whole_days_daily_rows_and_fractions_need_no_zone():
    refuse_local_moments(["2024-01-02", "2024-01-03"], hours(60))
    refuse_local_moments(["2024-01-02T12:00", "2024-01-03"], days(9))
    refuse_local_moments([0.7, 0.1, 0.2], hours(60))
    refuse_local_moments([40, 10, 10], axis(60))
