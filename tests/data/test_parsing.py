import datetime as dt
import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.parsing import looks_like_epoch, parse_numbers, parse_times

SECONDS = 1_704_205_800  # 2024-01-02 14:30:00 UTC
NANOSECONDS = SECONDS * 10**9


def nanoseconds(raw: pl.Series) -> list[int | None]:
    values = parse_times(raw).values
    assert values.dtype == pl.Datetime("ns")
    return values.cast(pl.Int64).to_list()


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("2024-01-02 14:30:00", 0),
        ("2024-01-02T14:30", 0),
        ("2024/1/2 14:30:00", 0),
        ("2024-01-02T14:30:00Z", 0),
        ("2024-01-02 14:30:00+00:00", 0),
        ("2024-01-02 16:30:00+02:00", 0),
        ("2024-01-02T20:00:00+0530", 0),
        ("2024-01-02T11:00:00-03:30", 0),
        ("2024-01-02T09:30:00-05", 0),
        ("2024-01-02 14:30:00 UTC", 0),
        ("2024-01-02T14:30:00.5", 500_000_000),
        ("2024-01-02T14:30:00,25", 250_000_000),
        ("2024-01-02T14:30:00.123456789Z", 123_456_789),
        ("2024-01-02", -(14 * 3600 + 1800) * 10**9),
    ],
)
def test_iso_text_becomes_utc_nanoseconds(text, offset):
    assert nanoseconds(pl.Series([text])) == [NANOSECONDS + offset]


def test_rows_of_different_precision_may_stand_in_one_column():
    texts = ["2024-01-02T14:30:00Z", "2024-01-02T14:30:00.000001Z", "2024-01-02T15:30+01:00"]
    assert nanoseconds(pl.Series(texts)) == [NANOSECONDS, NANOSECONDS + 1000, NANOSECONDS]


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-30", "2023-02-29", "1900-02-29", "2024-13-01", "2024-00-10", "2024-04-31", "2024-01-02 24:00:00",
        "2024-01-02 10:60", "1500-01-01", "2300-01-01", "01/02/2024", "14:30:00", "soon", "2024-01-02 14:30:00 Paris",
    ],
)  # fmt: skip
def test_text_that_is_no_time_reads_as_null(text):
    assert nanoseconds(pl.Series(["2024-01-02", text])) == [nanoseconds(pl.Series(["2024-01-02"]))[0], None]


def test_leap_days_exist():
    assert None not in nanoseconds(pl.Series(["2024-02-29", "2000-02-29"]))


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("kind", [str, int, float])
def test_numbers_since_1970_tell_their_unit_by_their_size(unit, kind):
    assert nanoseconds(pl.Series([kind(SECONDS * unit)])) == [NANOSECONDS]


def test_a_change_of_unit_within_a_column_is_followed_and_said():
    times = parse_times(pl.Series([SECONDS * 10**3, (SECONDS + 60) * 10**6]))
    assert times.values.cast(pl.Int64).to_list() == [NANOSECONDS, NANOSECONDS + 60 * 10**9]
    assert times.how.startswith("milliseconds and microseconds")


def test_fractions_of_a_second_keep_their_microseconds():
    assert nanoseconds(pl.Series(["1704205800.123456"])) == [NANOSECONDS + 123_456_000]
    assert nanoseconds(pl.Series([0.0, 0.1, 2e-9])) == [0, 100_000_000, 2]


def test_seconds_beyond_the_range_of_nanoseconds_read_as_null():
    assert nanoseconds(pl.Series([9 * 10**10, 1])) == [None, 10**9]


def test_dates_of_eight_digits_are_no_seconds():
    assert nanoseconds(pl.Series(["20240102", "20240103"]))[0] == nanoseconds(pl.Series(["2024-01-02"]))[0]
    assert nanoseconds(pl.Series([20240102, 20249999]))[0] == 20240102 * 10**9


def test_temporal_types_become_utc_nanoseconds():
    moment = dt.datetime(2024, 1, 2, 14, 30)
    naive = pl.Series([moment])
    assert nanoseconds(naive) == [NANOSECONDS]
    assert nanoseconds(naive.dt.replace_time_zone("Europe/Berlin")) == [NANOSECONDS - 3600 * 10**9]
    assert nanoseconds(pl.Series([dt.date(1970, 1, 2)])) == [86_400 * 10**9]
    assert nanoseconds(pl.Series([[1]])) == [None]


def test_missing_times_are_null():
    assert nanoseconds(pl.Series(["2024-01-02", None, "NaT", "NA"]))[1:] == [None, None, None]
    assert nanoseconds(pl.Series([SECONDS, None])) == [NANOSECONDS, None]


@given(st.datetimes(min_value=dt.datetime(1678, 1, 1), max_value=dt.datetime(2261, 12, 31)))
@settings(max_examples=50, deadline=None)
def test_every_moment_survives_its_text(moment):
    microseconds = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    assert nanoseconds(pl.Series([moment.isoformat()])) == [microseconds * 1000]


@pytest.mark.parametrize("text", ["", "NA", "na", "NaN", "nan", "null", "NULL", "None", "N/A", None])
def test_missing_markers_are_nan_and_not_bad(text):
    numbers = parse_numbers(pl.Series([text, "1"], dtype=pl.String))
    assert math.isnan(numbers.values[0])
    assert numbers.bad.to_list() == [False, False]


@pytest.mark.parametrize("text", ["1,234.5", "-", "12%", "1 000", "abc", "0x10", "1_000", ".", "true", "NANA", "--"])
def test_any_other_text_is_bad(text):
    assert parse_numbers(pl.Series(["1", text])).bad.to_list() == [False, True]


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_every_number_survives_its_text(numbers):
    parsed = parse_numbers(pl.Series([repr(x) for x in numbers]))
    assert parsed.values.to_list() == numbers
    assert not parsed.bad.any()


@pytest.mark.parametrize("dtype", [pl.String, pl.Int64, pl.UInt64])
def test_the_undefined_price_is_missing_and_counted(dtype):
    numbers = parse_numbers(pl.Series([9223372036854775807, 9223372036854775806, 5]).cast(dtype))
    assert math.isnan(numbers.values[0])
    assert numbers.values.to_list()[1:] == [9223372036854775806.0, 5.0]
    assert numbers.undefined == 1


def test_half_of_the_values_make_a_column_numeric():
    assert parse_numbers(pl.Series(["1", "x", "", ""])).mostly_numeric
    assert not parse_numbers(pl.Series(["1", "x", "y"])).mostly_numeric
    assert not parse_numbers(pl.Series(["", "NA"])).mostly_numeric
    assert not parse_numbers(pl.Series([[1.0]])).mostly_numeric


def test_only_numbers_of_our_age_look_like_moments():
    assert looks_like_epoch(pl.Series([SECONDS, SECONDS * 1000]))
    assert not looks_like_epoch(pl.Series([5, 100]))
    assert not looks_like_epoch(pl.Series(["x"]))
    assert not looks_like_epoch(pl.Series([None], dtype=pl.Float64))
