import datetime as dt
import zoneinfo

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from statewise.data.tables.times.moments import Moments, Unreadable
from statewise.data.tables.times.zones import check_zone, says_utc, to_utc

ZONES = [
    "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Tokyo",
    "Europe/London", "Africa/Casablanca", "America/St_Johns", "UTC",
]  # fmt: skip


def local(*texts: str, dates: bool = False) -> Moments:
    return Moments(pl.Series(texts).str.to_datetime("%Y-%m-%d %H:%M", time_unit="ns"), False, "times", dates=dates)


def utc(*texts: str, zone: str = "Europe/Berlin", series: list[str] | None = None, dates: bool = False) -> list[str]:
    found = to_utc(local(*texts, dates=dates), zone, None if series is None else pl.Series(series))
    return found.dt.strftime("%d %H:%M").to_list()


def refusal(*texts: str, **named) -> Unreadable:
    with pytest.raises(Unreadable) as caught:
        utc(*texts, **named)
    return caught.value


@given(
    st.sampled_from(ZONES),
    st.datetimes(min_value=dt.datetime(1970, 1, 2), max_value=dt.datetime(2036, 12, 30)),
)
@settings(max_examples=50, deadline=None)
def test_a_local_time_becomes_what_the_standard_library_says(name, moment):
    zone = zoneinfo.ZoneInfo(name)
    there = moment.replace(tzinfo=dt.UTC).astimezone(zone)
    wall = there.replace(tzinfo=None)
    assume(wall.replace(tzinfo=zone, fold=0).utcoffset() == wall.replace(tzinfo=zone, fold=1).utcoffset())
    found = to_utc(Moments(pl.Series([wall]).cast(pl.Datetime("ns")), False, ""), name, None)
    assert found.to_list() == [moment]


@given(
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Europe/London"]),
    st.integers(1990, 2036),
    st.sampled_from([5, 10, 15]),
)
@settings(max_examples=25, deadline=None)
def test_a_regular_year_of_local_times_survives_both_changes_of_clocks(name, year, minutes):
    zone = zoneinfo.ZoneInfo(name)
    moments = []
    # The days around each change, found without reading any table of changes.
    for day in range(365):
        noon = dt.datetime(year, 1, 1, 12, tzinfo=dt.UTC) + dt.timedelta(days=day)
        if noon.astimezone(zone).utcoffset() != (noon + dt.timedelta(days=1)).astimezone(zone).utcoffset():
            moments += [noon + dt.timedelta(minutes=i) for i in range(0, 24 * 60, minutes)]
    walls = pl.Series([m.astimezone(zone).replace(tzinfo=None) for m in moments]).cast(pl.Datetime("ns"))
    wanted = [m.replace(tzinfo=None) for m in moments]
    assert to_utc(Moments(walls, False, ""), name, None).to_list() == wanted
    # Newest first.
    assert to_utc(Moments(walls.reverse(), False, ""), name, None).to_list() == wanted[::-1]
    # Two series row by row.
    twice = pl.select(walls.gather([i // 2 for i in range(2 * len(walls))])).to_series()
    both = to_utc(Moments(twice, False, ""), name, pl.Series(["A", "B"] * len(walls)))
    assert both.to_list()[1::2] == wanted


def test_an_hour_that_clocks_show_twice_is_told_by_the_order_of_rows():
    texts = [
        "2024-10-27 01:30",
        "2024-10-27 02:00",
        "2024-10-27 02:30",
        "2024-10-27 02:00",
        "2024-10-27 02:30",
        "2024-10-27 03:00",
    ]
    assert utc(*texts) == ["26 23:30", "27 00:00", "27 00:30", "27 01:00", "27 01:30", "27 02:00"]
    hourly = ["2024-10-27 01:00", "2024-10-27 02:00", "2024-10-27 02:00", "2024-10-27 03:00"]
    assert utc(*hourly) == ["26 23:00", "27 00:00", "27 01:00", "27 02:00"]


def test_an_hour_that_is_there_once_is_refused_with_both_readings():
    fault = refusal("2024-10-27 01:00", "2024-10-27 02:00", "2024-10-27 03:00")
    assert fault.row == 1
    assert "holds 2024-10-27 02:00:00, which clocks in Europe/Berlin show twice" in fault.reason
    assert "(2024-10-27 00:00:00 and 2024-10-27 01:00:00 UTC)" in fault.reason


def test_rows_in_no_order_do_not_tell():
    assert refusal("2024-10-27 05:00", "2024-10-27 02:00", "2024-10-27 02:00", "2024-10-27 01:00", "2024-10-27 06:00").row == 1


def test_a_time_that_clocks_never_show_is_refused_with_both_readings():
    fault = refusal("2024-03-31 01:30", "2024-03-31 02:30")
    assert fault.row == 1
    assert "holds 2024-03-31 02:30:00, which clocks in Europe/Berlin never show" in fault.reason
    assert "2024-03-31 01:30:00 or 2024-03-31 00:30:00 UTC" in fault.reason


def test_a_date_is_the_first_moment_of_its_day():
    # In Beirut and Havana clocks change at midnight.
    assert utc("2024-03-31 00:00", zone="Asia/Beirut", dates=True) == ["30 22:00"]
    assert utc("2024-11-03 00:00", zone="America/Havana", dates=True) == ["03 04:00"]
    assert utc("2024-07-01 00:00", dates=True) == ["30 22:00"]


@pytest.mark.parametrize(
    ("zone", "words"),
    [
        ("Europe/Belin", "did you mean Europe/Berlin"),
        ("berlin", "did you mean Europe/Berlin"),
        ("New York", "did you mean America/New_York"),
        ("EST", "did you mean America/New_York"),
        ("Mars", "must be the name of a zone such as Europe/Berlin"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest(zone, words):
    with pytest.raises(ValueError, match=r"^data\.timezone") as caught:
        check_zone(zone)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("time_utc", True), ("timestamp (UTC)", True), ("Gmt time", True), ("UTC", True), ("timeUTC", True), ("UTCTime", True),
        ("local_time", False), ("time", False), ("outcome", False), ("cutc", False),
    ],
)  # fmt: skip
def test_a_name_may_say_that_times_are_in_utc(name, says):
    assert says_utc(name) is says
