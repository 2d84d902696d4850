import datetime

import numpy as np
import pytest

from statewise.data.splits import axis_borders, row_borders


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


def test_series_share_the_borders_of_the_common_axis():
    first, second = days(10), days(30)[5:20]
    clock, offsets = np.concatenate([first, second]), np.array([0, 10, 25])
    whole = np.unique(clock)

    rows = row_borders((0, 8, 12, 20), whole, clock, offsets, kept_from=np.array([0, 10]))

    assert rows.tolist() == [[0, 8, 10, 10], [10, 13, 17, 25]]
    assert clock[rows[:, 1] - 1].max() < clock[rows[1, 1]]


def test_dropped_rows_belong_to_no_block():
    rows = row_borders((0, 5, 10, 20), axis(20), axis(20), np.array([0, 20]), kept_from=np.array([7]))

    assert rows.tolist() == [[7, 7, 10, 20]]
