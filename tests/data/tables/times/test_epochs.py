import datetime as dt
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.tables.times.column import read_times
from statewise.data.tables.times.moments import Unreadable

SECONDS = 1_704_205_800  # 2024-01-02 14:30:00 UTC
NANOSECONDS = SECONDS * 10**9
MIDNIGHT = NANOSECONDS - (14 * 3600 + 1800) * 10**9


def nanoseconds(raw: pl.Series) -> list[int | None]:
    values = read_times(raw).values
    assert values.dtype == pl.Datetime("ns")
    return values.cast(pl.Int64).to_list()


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("kind", [str, int, float, Decimal])
def test_numbers_since_1970_tell_their_unit_by_their_size(unit, kind):
    assert nanoseconds(pl.Series([kind(SECONDS * unit)])) == [NANOSECONDS]


def test_numbers_since_1970_are_in_utc():
    assert read_times(pl.Series([SECONDS])).utc is True
    assert read_times(pl.Series([20240102])).utc is False


def test_a_change_of_unit_within_a_column_is_followed_and_said():
    times = read_times(pl.Series([SECONDS * 10**3, (SECONDS + 60) * 10**6]))
    assert times.values.cast(pl.Int64).to_list() == [NANOSECONDS, NANOSECONDS + 60 * 10**9]
    assert times.how.startswith("milliseconds and microseconds")


@given(
    st.lists(st.tuples(st.integers(2 * 10**17, 4_102_444_800 * 10**9), st.sampled_from([1, 10**3, 10**6, 10**9])), min_size=3)
)
@settings(max_examples=50, deadline=None)
def test_every_unit_may_stand_beside_every_other(rows):
    # Far from what other systems count, which is refused.
    rows = [*rows, (4 * 10**18, 1)]
    numbers = [stamp // unit for stamp, unit in rows]
    wanted = [stamp // unit * unit for stamp, unit in rows]
    assert nanoseconds(pl.Series(numbers)) == wanted
    assert nanoseconds(pl.Series([str(number) for number in numbers])) == wanted


@given(st.integers(2 * 10**17, 4_102_444_800 * 10**9), st.sampled_from([10**3, 10**6, 10**9]))
@settings(max_examples=50, deadline=None)
def test_decimals_in_text_keep_every_nanosecond(stamp, unit):
    text = f"{stamp // unit}.{stamp % unit:0{len(str(unit)) - 1}d}"
    assert nanoseconds(pl.Series([text])) == [stamp]
    assert nanoseconds(pl.Series([f"-{text}"])) == [-stamp]


def test_floating_point_keeps_microseconds():
    assert nanoseconds(pl.Series([1704205800.123456])) == [NANOSECONDS + 123_456_000]
    assert nanoseconds(pl.Series([0.0, 0.1, 2e-9])) == [0, 100_000_000, 2]
    assert nanoseconds(pl.Series([float(NANOSECONDS + 123_456_000)])) == [NANOSECONDS + 123_456_000]
    assert nanoseconds(pl.Series([1704205800.0, float("nan")])) == [NANOSECONDS, None]
    assert nanoseconds(pl.Series(["1.7042058e9"])) == [NANOSECONDS]


def test_seconds_beyond_the_range_of_nanoseconds_read_as_null():
    assert nanoseconds(pl.Series([9 * 10**10, 1])) == [None, 10**9]


@pytest.mark.parametrize(
    ("number", "offset"),
    [(20240102, 0), (202401020930, 34_200 * 10**9), (20240102093015, 34_215 * 10**9), (20240102093015123, 34_215_123 * 10**6)],
)
@pytest.mark.parametrize("kind", [int, str])
def test_dates_of_digits_are_no_seconds(number, offset, kind):
    moments = read_times(pl.Series([kind(number)]))
    assert moments.values.cast(pl.Int64).to_list() == [MIDNIGHT + offset]
    assert moments.dates == (number == 20240102)
    assert moments.utc is False


def test_one_row_that_is_no_date_makes_all_of_them_seconds():
    assert nanoseconds(pl.Series([20240102, 20249999]))[0] == 20240102 * 10**9


def test_dates_of_digits_and_text_may_be_mixed():
    assert nanoseconds(pl.Series(["20240102", "2024-01-02"])) == [MIDNIGHT, MIDNIGHT]


def test_days_of_a_spreadsheet_count_under_the_name_date_only():
    under = read_times(pl.Series("Date", [45293.396, 45293.0]))
    assert under.values.cast(pl.Int64).to_list() == [MIDNIGHT + 34_214_400 * 10**6, MIDNIGHT]
    assert "spreadsheet" in under.how
    assert read_times(pl.Series("Date", ["45293"])).dates
    assert nanoseconds(pl.Series("time", [45293])) == [45293 * 10**9]
    assert nanoseconds(pl.Series("date of delivery", [45293])) == [45293 * 10**9]


def test_years_count_under_the_name_of_a_date():
    assert read_times(pl.Series("year", [2024, 2025])).values.dt.strftime("%Y-%m-%d").to_list() == ["2024-01-01", "2025-01-01"]
    assert read_times(pl.Series("Date", ["2024"])).dates
    assert nanoseconds(pl.Series("time", [2024])) == [2024 * 10**9]


@pytest.mark.parametrize(
    ("number", "what"),
    [(2460311.5, "Julian days"), (638397954000000000, "ticks of .NET"), (133486794000000000, "a Windows file time")],
)
def test_counts_of_other_systems_are_refused(number, what):
    with pytest.raises(Unreadable, match=what):
        read_times(pl.Series("date", [number]))


def test_temporal_types_become_utc_nanoseconds():
    moment = dt.datetime(2024, 1, 2, 14, 30)
    naive = pl.Series([moment])
    assert nanoseconds(naive) == [NANOSECONDS]
    assert read_times(naive).utc is False
    berlin = naive.dt.replace_time_zone("Europe/Berlin")
    assert nanoseconds(berlin) == [NANOSECONDS - 3600 * 10**9]
    assert read_times(berlin).utc is True
    assert nanoseconds(pl.Series([dt.date(1970, 1, 2)])) == [86_400 * 10**9]
    assert read_times(pl.Series([dt.date(1970, 1, 2)])).dates
    assert nanoseconds(pl.Series([[1]])) == [None]


def test_missing_numbers_are_null():
    assert nanoseconds(pl.Series([SECONDS, None])) == [NANOSECONDS, None]
