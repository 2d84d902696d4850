import datetime as dt

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.tables.times.column import read_times
from statewise.data.tables.times.moments import Moments, Unreadable

NANOSECONDS = 1_704_205_800 * 10**9  # 2024-01-02 14:30:00 UTC
MIDNIGHT = NANOSECONDS - (14 * 3600 + 1800) * 10**9


def read(*texts: str | None, **named) -> Moments:
    moments = read_times(pl.Series("t", texts, dtype=pl.String), **named)
    assert moments.values.dtype == pl.Datetime("ns")
    return moments


def nanoseconds(*texts: str | None, **named) -> list[int | None]:
    return read(*texts, **named).values.cast(pl.Int64).to_list()


@pytest.mark.parametrize(
    ("text", "offset", "utc"),
    [
        ("2024-01-02 14:30:00", 0, False),
        ("2024-01-02T14:30", 0, False),
        ("2024/1/2 14:30:00", 0, False),
        ("2024.01.02 14:30", 0, False),
        ("20240102 143000", 0, False),
        ("20240102T1430", 0, False),
        ("20240102-14:30:00.000", 0, False),
        ("2024-01-02T14:30:00Z", 0, True),
        ("2024-01-02 14:30:00+00:00", 0, True),
        ("2024-01-02 16:30:00+02:00", 0, True),
        ("2024-01-02T20:00:00+0530", 0, True),
        ("2024-01-02T11:00:00-03:30", 0, True),
        ("2024-01-02T09:30:00-05", 0, True),
        ("2024-01-02 14:30:00 UTC", 0, True),
        ("2024-01-02 14:30 gmt", 0, True),
        ("20240102T143000Z", 0, True),
        ("2024-01-02T14:30:00.5", 500_000_000, False),
        ("2024-01-02T14:30:00,25", 250_000_000, False),
        ("2024-01-02T14:30:00.123456789Z", 123_456_789, True),
        ("2024-01-02 2:30:00 PM", 0, False),
        ("2024-01-02 9:30", -5 * 3600 * 10**9, False),
        ("02-Jan-2024 14:30", 0, False),
        ("2 January 2024, 14:30:00", 0, False),
        ("Jan 2, 2024 2:30 p.m.", 0, False),
        ("January 2 2024 2:30 PM", 0, False),
        ("Tue, 02 Jan 2024 14:30:00 GMT", 0, True),
        ("2024-Jan-02 14:30", 0, False),
        ("02. Jan. 2024 14:30", 0, False),
    ],
)
def test_every_usual_form_becomes_nanoseconds(text, offset, utc):
    moments = read(text)
    assert moments.values.cast(pl.Int64).to_list() == [NANOSECONDS + offset]
    assert moments.flags.tolist() == [utc]
    assert not moments.dates


@pytest.mark.parametrize(
    "text",
    ["2024-01-02", "2024/1/2", "2024.01.02", "02-Jan-2024", "Jan 2, 2024", "January 2 2024", "2-JAN-2024", "20240102"],
)
def test_a_date_is_its_midnight(text):
    moments = read(text)
    assert moments.values.cast(pl.Int64).to_list() == [MIDNIGHT]
    assert moments.dates


def test_noon_and_midnight_of_a_clock_of_twelve_hours():
    assert nanoseconds("2024-01-02 12:00 AM", "2024-01-02 12:00 PM", "2024-01-02 1 PM") == [
        MIDNIGHT + hour * 3600 * 10**9 for hour in (0, 12, 13)
    ]
    assert nanoseconds("2024-01-02 12:00 PM", "2024-01-02 13:00 PM", "2024-01-02 0:10 AM")[1:] == [None, None]


def test_the_end_of_a_day_is_the_start_of_the_next():
    assert nanoseconds("2024-01-01 24:00", "2024-01-01 23:00")[0] == MIDNIGHT
    assert nanoseconds("2024-01-01 24:01", "2024-01-01 23:00")[0] is None
    assert nanoseconds("2024-01-01 24:00:00.001", "2024-01-01 23:00")[0] is None


def test_a_month_is_its_first_day():
    assert nanoseconds("2024-02", "2024-01") == [MIDNIGHT + 30 * 86_400 * 10**9, MIDNIGHT - 86_400 * 10**9]


def test_rows_of_different_forms_may_stand_in_one_column():
    texts = ["2024-01-02T14:30:00Z", "2024-01-02T14:30:00.000001Z", "Jan 2, 2024 15:30+01:00"]
    assert nanoseconds(*texts) == [NANOSECONDS, NANOSECONDS + 1000, NANOSECONDS]


def test_rows_with_and_without_a_zone_are_told_apart():
    moments = read("2024-01-02T14:30:00Z", "2024-01-02T14:30:00", "2024-01-02 14:30 Europe/Berlin", None)
    assert moments.flags.tolist() == [True, False, False, False]
    assert moments.zones is not None
    assert moments.zones.to_list() == [None, None, "Europe/Berlin", None]


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-30", "2023-02-29", "1900-02-29", "2024-13-01", "2024-00-10", "2024-04-31", "2024-01-02 10:60",
        "2024-01-02 10:00:60", "1500-01-01", "2300-01-01", "14:30:00", "soon", "2024-01-02 14:30:00 Paris",
        "2024-01-02 soon", "2024-01-023", "31 Foo 2024", "2024-02-30 10:00:00", "(2024-01-02)",
    ],
)  # fmt: skip
def test_text_that_is_no_time_reads_as_null(text):
    assert nanoseconds("2024-01-02", text) == [MIDNIGHT, None]
    assert nanoseconds(text, "2024-01-02") == [None, MIDNIGHT]


def test_leap_days_exist():
    assert None not in nanoseconds("2024-02-29", "2000-02-29")


def test_the_short_name_of_a_zone_is_refused():
    with pytest.raises(Unreadable, match=r"EST is short for several zones.*-05:00.*data.timezone") as caught:
        read("2024-01-02 14:30 UTC", "2024-01-02 14:30 EST")
    assert caught.value.row == 1


def test_missing_times_are_null():
    assert nanoseconds("2024-01-02", None, "NaT", "NA", "") == [MIDNIGHT, None, None, None, None]
    assert nanoseconds("2024-01-02", "-", null_values=("-",)) == [MIDNIGHT, None]


FORMS = {
    "%Y-%m-%d %H:%M:%S.%f": 10**3, "%Y-%m-%dT%H:%M:%S.%fZ": 10**3, "%Y/%m/%d %H:%M:%S": 10**9, "%Y.%m.%d %H:%M": 60 * 10**9,
    "%Y%m%d %H%M%S": 10**9, "%Y%m%dT%H%M": 60 * 10**9, "%Y%m%d%H%M%S": 10**9, "%Y-%m-%d": 86_400 * 10**9,
    "%d-%b-%Y %H:%M:%S": 10**9, "%B %d, %Y %I:%M:%S %p": 10**9, "%Y-%m-%d %H:%M:%S+00:00": 10**9, "%Y%m%d": 86_400 * 10**9,
    "%a, %d %b %Y %H:%M:%S GMT": 10**9, "%Y-%m-%d %I:%M:%S.%f %p": 10**3,
}  # fmt: skip
MOMENTS = st.datetimes(min_value=dt.datetime(1970, 1, 1), max_value=dt.datetime(2100, 1, 1))


def wanted(moment: dt.datetime, grain: int) -> int:
    since = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) * 1000
    return since // grain * grain


@given(st.lists(MOMENTS, min_size=1, max_size=5), st.sampled_from(sorted(FORMS)))
@settings(max_examples=50, deadline=None)
def test_every_moment_survives_every_form_that_can_express_it(moments, form):
    assert nanoseconds(*(moment.strftime(form) for moment in moments)) == [wanted(m, FORMS[form]) for m in moments]


@given(
    st.lists(MOMENTS, min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from("/-."),
    st.sampled_from(["", " %H:%M", " %I:%M %p"]),
)
@settings(max_examples=15, deadline=None)
def test_every_moment_survives_the_order_of_a_country(moments, day_first, mark, clock):
    date = mark.join(("%d", "%m", "%Y") if day_first else ("%m", "%d", "%Y"))
    texts = [moment.strftime(date + clock) for moment in moments]
    grain = 60 * 10**9 if clock else 86_400 * 10**9
    assert nanoseconds(*texts, day_first=day_first) == [wanted(m, grain) for m in moments]
    # Left to itself the column is read the same way, or not at all.
    try:
        alone = nanoseconds(*texts)
    except Unreadable:
        return
    # A few dates in a row may be in order in both ways only by chance.
    if any(m.day > 12 for m in moments):
        assert alone == [wanted(m, grain) for m in moments]


@given(st.lists(MOMENTS, min_size=1, max_size=5), st.integers(-14 * 60, 14 * 60))
@settings(max_examples=50, deadline=None)
def test_every_moment_survives_an_offset(moments, minutes):
    zone = dt.timezone(dt.timedelta(minutes=minutes))
    texts = [m.replace(tzinfo=dt.UTC).astimezone(zone).isoformat(timespec="microseconds") for m in moments]
    assert nanoseconds(*texts) == [wanted(m, 1000) for m in moments]


@given(st.lists(st.integers(0, 4_102_444_800 * 10**9), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_every_nanosecond_survives_its_text(stamps):
    times = pl.Series(stamps).cast(pl.Datetime("ns")).dt.strftime("%Y-%m-%dT%H:%M:%S%.9fZ")
    assert nanoseconds(*times) == stamps


def test_equal_forms_read_as_each_row_does():
    # The way for rows of one form, against the way for any row: a row of another form forces the second.
    texts = ["2024-02-28 23:59:59", "2024-02-29 00:00:00", "1999-12-31 12:30:45"]
    assert nanoseconds(*texts) == nanoseconds(*texts, "Jan 2, 2024")[:-1]
    days = ["28/02/2024 23:59", "13/02/2024 00:00", "01/12/1999 12:30"]
    assert nanoseconds(*days) == nanoseconds(*days, "1/12/2024 9:30")[:-1]
