"""What is odd in a file: counted, with the first places, a sentence and a remedy."""

import time
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.files.reading import Reading
from statewise.data.generators.market import market_bars
from statewise.data.oddities import OF_A_COLUMN, OF_THE_TABLE, Subject, in_order_of_severity
from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.refused import repeated_rows
from statewise.data.oddities.subject import longest_run, share
from statewise.data.segments.gaps import Gap
from statewise.data.segments.missing import Missing
from statewise.data.tables.table import Table, read_table

START = np.datetime64("2024-01-02T10:00", "ns")


def table_of(times=None, series=None, **columns):
    """A table of these columns; times are numbers of minutes, or moments."""
    given = {name: np.asarray(values, dtype=float) for name, values in columns.items()}
    frame = pl.DataFrame(given)
    if times is not None:
        times = np.asarray(times)
        stamps = times if times.dtype.kind == "M" else START + times.astype("timedelta64[m]").astype("timedelta64[ns]")
        frame = frame.with_columns(pl.Series("time", stamps.astype("datetime64[ns]")))
    if series is not None:
        frame = frame.with_columns(pl.Series("symbol", series))
    return Table.of(frame, None if times is None else "time", None if series is None else "symbol", list(given))


def looked_at(table, *, trained=None, gap=None, max_gap=None, missing=None, lost=None):
    subject = Subject(table, trained, gap or Gap(), max_gap, missing or Missing(), lost or {})
    found = [oddity for check in OF_THE_TABLE for oddity in check(subject)]
    for name in table.columns:
        found += [oddity for check in OF_A_COLUMN for oddity in check(subject, name, table.read(name))]
    return found


def the(found, name):
    """The one oddity of this kind."""
    of_kind = [oddity for oddity in found if oddity.id == name]
    assert len(of_kind) == 1, found
    return of_kind[0]


def walk(rows, seed=0, scale=1e-3):
    return 100 * np.exp(np.cumsum(np.random.default_rng(seed).normal(size=rows) * scale))


def test_a_healthy_walk_is_not_odd():
    assert looked_at(table_of(np.arange(2000), close=walk(2000))) == []


def test_market_bars_with_overnight_gaps_have_gaps_and_no_more():
    frame = market_bars(0, 0.05, bars=3000, instruments=2).frame
    table = Table.of(frame, "ts", "symbol", [name for name in frame.columns if name not in ("ts", "symbol")])

    found = looked_at(table)

    assert {oddity.severity for oddity in found} <= {"info"}
    assert {oddity.id for oddity in found} <= {"gaps", "zero-volume"}


def test_gaps_are_counted_and_the_longest_is_told_from_where_to_where():
    minutes = np.delete(np.arange(200), np.r_[90:100, 150])

    gaps = the(looked_at(table_of(minutes, close=walk(189)), lost={"gaps": 0.125}), "gaps")

    assert (gaps.severity, gaps.count) == ("info", 2)
    assert gaps.message == (
        "2 gaps in time, the longest 11 minutes from 2024-01-02 11:29:00 to 2024-01-02 11:40:00; the usual step is 1 minute; "
        "12.5 % of the windows are lost by them"
    )
    assert [place.time for place in gaps.first] == ["2024-01-02T11:40:00Z", "2024-01-02T12:31:00Z"]
    assert gaps.remedy == "no window crosses one"


@pytest.mark.parametrize(
    ("gap", "severity", "says"),
    [
        (Gap("error"), "error", "data.gap.policy=error refuses them"),
        (Gap("ignore"), "info", "windows cross them"),
        (Gap("forward_fill"), "info", "of at most 24 absent rows are filled"),
    ],
)
def test_the_policy_for_gaps_says_what_becomes_of_them(gap, severity, says):
    gaps = the(looked_at(table_of([*range(30), *range(40, 70)], close=walk(60)), gap=gap), "gaps")

    assert gaps.severity == severity
    assert says in gaps.remedy


def test_gaps_that_cost_most_windows_are_a_warning():
    found = looked_at(table_of([*range(30), *range(40, 70)], close=walk(60)), lost={"gaps": 0.6})

    assert the(found, "gaps").severity == "warning"
    assert "data.max_gap=11m lets windows cross nearly all of them" in the(found, "gaps").remedy


def test_jumps_that_max_gap_allows_are_no_gaps():
    assert looked_at(table_of([*range(30), *range(40, 70)], close=walk(60)), max_gap="1h") == []


def test_missing_values_are_counted_with_share_and_longest_run():
    close = walk(100)
    close[[3, 50, 51, 52]] = np.nan

    missing = the(looked_at(table_of(np.arange(100), close=close)), "missing-values")

    assert (missing.severity, missing.count) == ("info", 4)
    assert missing.message == "close: 4 values missing (4 %), at most 3 in a row"
    assert missing.first[0].time == "2024-01-02T10:03:00Z"
    assert "data.missing.max_fill" in missing.remedy


@pytest.mark.parametrize(
    ("missing", "gone", "severity", "says"),
    [
        (Missing("error"), 1, "error", "data.missing.policy=error refuses them"),
        (Missing("segment"), 1, "info", "data.missing.policy=segment"),
        (Missing("fill", 2), 5, "info", "no window crosses a longer run"),
        (Missing(), 30, "warning", "leave close out of data.features"),
    ],
)
def test_the_policy_for_missing_values_says_what_becomes_of_them(missing, gone, severity, says):
    close = walk(100)
    close[10 : 10 + gone] = np.nan

    found = the(looked_at(table_of(np.arange(100), close=close), missing=missing), "missing-values")

    assert found.severity == severity
    assert says in found.remedy


def test_an_infinite_value_is_an_error():
    found = the(looked_at(table_of(np.arange(20), close=[*walk(19), np.inf])), "infinite-values")

    assert (found.severity, found.count, found.first[0].values) == ("error", 1, {"close": np.inf})


def test_constant_columns_are_told_everywhere_in_training_and_in_a_series():
    trained = np.arange(100) < 70
    values = {"flat": np.ones(100), "late": np.where(np.arange(100) < 80, 3.0, np.arange(100)), "tiny": 1e-9 * walk(100)}
    found = looked_at(table_of(np.arange(100), **values), trained=trained)

    assert the(found, "constant-column").message == "flat: constant, 1 in all 100 rows"
    assert the(found, "constant-in-training").message.startswith("late: constant in the 70 rows of the training part")
    assert "data.features" in the(found, "constant-column").remedy
    assert len(found) == 2

    two = table_of([*range(50)] * 2, ["A"] * 50 + ["B"] * 50, close=[*walk(50), *np.ones(50)])
    assert the(looked_at(two), "constant-in-series").message == "close: constant in 1 of 2 series: B"


def test_a_column_with_few_other_values_is_nearly_constant():
    values = np.zeros(5000)
    values[[17, 18]] = 4.0

    nearly = the(looked_at(table_of(np.arange(5000), valve=values)), "nearly-constant")

    assert nearly.message == "valve: nearly constant, 0 in 99.96 % of the rows"
    assert (nearly.severity, nearly.count, nearly.first[0].values) == ("info", 2, {"valve": 4.0})


def test_a_column_that_numbers_the_rows_is_told():
    found = the(looked_at(table_of([*range(30)] * 2, ["A"] * 30 + ["B"] * 30, No=[*range(30)] * 2)), "row-numbers")
    assert found.remedy == "leave No out of data.features"


def bar_columns(rows=60):
    close = walk(rows)
    before = np.append(close[0], close[:-1])
    return {"Open": before, "High": np.maximum(before, close), "LOW": np.minimum(before, close), "Close": close}


def test_bars_outside_of_their_high_and_low_are_errors_whatever_the_case_of_names():
    bars = bar_columns()
    assert looked_at(table_of(np.arange(60), **bars)) == []

    bars["Close"][7] = 1.01 * bars["High"][7]
    bars["LOW"][9] = 1.01 * bars["High"][9]
    found = looked_at(table_of(np.arange(60), **bars))

    assert the(found, "low-above-high").message == "LOW is above High in 1 row"
    assert the(found, "outside-high-low").message == "Close lies outside of LOW and High in 1 row"
    assert set(the(found, "outside-high-low").first[0].values) == {"Close", "High", "LOW"}


def test_rounding_in_float32_puts_no_bar_outside():
    bars = {name: values.astype(np.float32) * np.float32(0.7131) for name, values in bar_columns().items()}
    assert looked_at(table_of(np.arange(60), **bars)) == []


def test_a_price_of_zero_is_a_warning():
    bars = bar_columns()
    bars["LOW"][3] = 0.0
    found = the(looked_at(table_of(np.arange(60), **bars)), "price-not-positive")
    assert (found.severity, found.message) == ("warning", "LOW is zero or below in 1 row")


def test_zero_volume_is_counted_with_its_longest_run():
    volume = np.arange(1.0, 101.0)
    volume[[5, 50, 51]] = 0

    found = the(looked_at(table_of(np.arange(100), volume=volume)), "zero-volume")

    assert (found.severity, found.count) == ("info", 3)
    assert found.message == "volume: zero in 3 rows (3 %), at most 2 in a row"
    assert the(looked_at(table_of(np.arange(100), Volume=np.r_[1:41, [0] * 60])), "zero-volume").severity == "warning"
    assert "zero-volume" not in {oddity.id for oddity in looked_at(table_of(np.arange(100), volatility=volume))}


def test_a_wrong_digit_is_a_jump_there_and_back():
    sensor = np.random.default_rng(1).normal(size=500)
    sensor[100] = 1e4

    found = the(looked_at(table_of(np.arange(500), sensor=sensor)), "jumps")

    assert (found.severity, found.count) == ("warning", 2)
    assert found.first[0].values == {"sensor": 1e4}
    assert "standard deviations of the others" in found.message


def test_a_split_is_found_in_daily_bars_and_across_a_night():
    days = START + np.arange(300).astype("timedelta64[D]").astype("timedelta64[ns]")
    daily = walk(300, scale=0.02)
    daily[150:] /= 2
    found = the(looked_at(table_of(days, close=daily)), "jumps")
    assert (found.count, found.first[0].time) == (1, "2024-05-31T10:00:00Z")
    assert "unadjusted split" in found.remedy

    intraday = walk(600)
    intraday[300:] /= 2
    minutes = np.r_[0:300, 1440:1740]
    assert the(looked_at(table_of(minutes, close=intraday)), "jumps").first[0].time == "2024-01-03T10:00:00Z"


def test_a_night_of_news_is_no_jump():
    close = walk(600)
    close[300:] *= 1.08
    assert [oddity.id for oddity in looked_at(table_of(np.r_[0:300, 1440:1740], close=close))] == ["gaps"]


def test_values_that_rest_most_of_the_time_are_no_jumps():
    snow = np.zeros(2000)
    for start in range(100, 2000, 200):
        snow[start : start + 20] = np.arange(1, 21)
    assert looked_at(table_of(np.arange(2000), snow=snow)) == []


def test_times_in_the_future_and_before_1900_and_of_1970_are_strange():
    tomorrow = np.datetime64(time.time_ns(), "ns") + np.timedelta64(30, "D")
    table = table_of(np.array(["1899-12-31", tomorrow], dtype="datetime64[ns]"), close=[1.0, 2.0])
    found = looked_at(table)
    assert the(found, "future-times").message == "1 time in the future"
    assert the(found, "times-before-1900").first[0].time == "1899-12-31T00:00:00Z"

    wrong = table_of(np.arange(5).astype("datetime64[s]"), close=np.arange(5.0))
    assert the(looked_at(wrong), "times-of-1970").severity == "warning"


def test_steps_of_no_grid_are_a_warning_and_months_are_none():
    ticks = np.cumsum(np.random.default_rng(0).integers(1, 100, 200))
    found = the(looked_at(table_of(ticks, close=walk(200))), "irregular-steps")
    assert found.severity == "warning"
    assert "data.gap.step" in found.remedy

    months = np.arange(np.datetime64("2015-01"), np.datetime64("2023-01"))
    assert looked_at(table_of(months, close=walk(len(months)))) == []


def test_a_few_daily_rows_on_weekends_are_told():
    days = np.arange(np.datetime64("2023-01-02"), np.datetime64("2024-01-01"))
    weekdays = days[(days.astype(int) + 3) % 7 < 5]
    assert [oddity.id for oddity in looked_at(table_of(weekdays, close=walk(len(weekdays))))] == ["gaps"]

    odd = np.sort(np.append(weekdays, np.datetime64("2023-06-10")))
    found = the(looked_at(table_of(odd, close=walk(len(odd)))), "weekend-rows")
    assert (found.count, found.first[0].time) == (1, "2023-06-10T00:00:00Z")


def test_series_that_are_short_or_end_early_are_named():
    lengths = {"A": 200, "B": 200, "C": 10, "D": 120}
    minutes = np.concatenate([np.arange(count) for count in lengths.values()])
    names = np.repeat(list(lengths), list(lengths.values()))

    found = looked_at(table_of(minutes, names, close=walk(len(names))))

    assert the(found, "short-series").message.endswith("the usual 160 rows: C")
    assert the(found, "series-end-early").message == "1 of 4 series end much earlier than the last one: D"
    assert the(found, "series-end-early").first[0].series == "D"


def test_what_the_reader_counted_is_told(tmp_path):
    rows = [f"2024-01-{day:02d},{day},{2**60 + day}" for day in range(1, 21)]
    (tmp_path / "bars.csv").write_text("\n".join(["date,close,order", *rows, rows[4], "2024-01-07,99,1"]))
    table = read_table("bars.csv", folder=tmp_path, reading=Reading(duplicates="last"))
    found = looked_at(table)

    repeated = the(found, "repeated-rows")
    assert (repeated.severity, repeated.count) == ("warning", 2)
    assert "row 5 (line 6)" in repeated.message
    assert "data.duplicates=last" in repeated.remedy
    assert the(found, "large-numbers").severity == "warning"
    assert "data.features" in the(found, "large-numbers").remedy

    with pytest.raises(ValueError, match="repeated rows in all") as refused:
        read_table("bars.csv", folder=tmp_path)
    found = repeated_rows(str(refused.value))
    assert (found.severity, found.count) == ("error", 2)
    assert "data.duplicates" in found.remedy
    assert repeated_rows("data.path: another line") is None


def test_without_times_places_are_numbers_of_rows():
    assert the(looked_at(table_of(close=[*walk(20), np.nan])), "missing-values").first[0].time == "row 20"


def test_no_more_than_three_places_are_kept():
    assert len(the(looked_at(table_of(close=[*walk(20), *[np.nan] * 9])), "missing-values").first) == 3


def test_errors_come_first():
    kinds = [Oddity(name, name, 1, (), "", "") for name in ("info", "warning", "error", "info")]
    assert [oddity.id for oddity in in_order_of_severity(kinds)] == ["error", "warning", "info", "info"]


def test_a_share_is_never_rounded_to_nothing_or_all():
    assert [share(1, 10**6), share(999_999, 10**6), share(0, 5), share(1, 3)] == [
        "below 0.01 %",
        "above 99.99 %",
        "0 %",
        "33.3 %",
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=8), min_size=1, max_size=4))
def test_the_longest_run_never_crosses_a_series(series):
    offsets = np.cumsum([0, *map(len, series)])
    flags = np.array([flag for one in series for flag in one], dtype=bool)

    expected = max((len(run) for one in series for run in "".join("x" if flag else " " for flag in one).split()), default=0)

    assert longest_run(flags, offsets) == expected


def test_an_empty_series_is_no_trouble():
    table = table_of([*range(30)] * 2, ["A"] * 30 + ["B"] * 30, close=walk(60))
    rows = replace(table.rows, series=("A", "none", "B", "nothing"), offsets=np.array([0, 30, 30, 60, 60]))
    assert {oddity.severity for oddity in looked_at(replace(table, rows=rows))} <= {"info", "warning"}
