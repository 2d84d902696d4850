import datetime

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.files.joining import joined
from statewise.data.files.reading import AS_IT_IS, Reading

NANOSECONDS = 1_704_067_200_123_456_789


def together(*columns: pl.Series, name: str = "x") -> pl.Series:
    files = [(f"{i}.csv", pl.DataFrame({name: column}).lazy()) for i, column in enumerate(columns)]
    frame, _ = joined(files, None, AS_IT_IS)
    return frame.collect()[name]


def refusal(*frames: pl.DataFrame, wanted=None, reading=AS_IT_IS) -> str:
    with pytest.raises(ValueError, match=r"^data\.path: ") as caught:
        joined([(f"{i}.csv", frame.lazy()) for i, frame in enumerate(frames)], wanted, reading)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_columns_are_joined_by_name_whatever_their_order():
    frames = [("a", pl.LazyFrame({"t": [1], "x": [2]})), ("b", pl.LazyFrame({"x": [4], "t": [3]}))]
    frame, notes = joined(frames, None, AS_IT_IS)
    assert frame.collect().rows() == [(1, 2), (3, 4)]
    assert notes == []


@pytest.mark.parametrize(
    ("types", "dtype"),
    [
        ((pl.Int32, pl.Int64), pl.Int64),
        ((pl.UInt8, pl.Int16), pl.Int64),
        ((pl.UInt64, pl.UInt32), pl.UInt64),
        ((pl.UInt64, pl.Int64), pl.Int128),
        ((pl.Float32, pl.Float64), pl.Float64),
        ((pl.Int64, pl.Float64), pl.Float64),
        ((pl.Decimal(10, 2), pl.Float64), pl.Float64),
        ((pl.Null, pl.Int64), pl.Int64),
        ((pl.Int64, pl.Int64), pl.Int64),
        ((pl.Null, pl.Null), pl.Null),
    ],
)
def test_numbers_of_different_types_become_one(types, dtype):
    column = together(*(pl.Series([None if kind == pl.Null else 1], dtype=kind) for kind in types))
    assert column.dtype == dtype
    assert column.drop_nulls().cast(pl.Float64).to_list() == [1.0] * sum(kind != pl.Null for kind in types)


def test_a_large_count_and_a_signed_one_stay_exact():
    assert together(pl.Series([2**64 - 1], dtype=pl.UInt64), pl.Series([-5])).to_list() == [2**64 - 1, -5]


def test_nanoseconds_never_become_floating_point():
    whole, real = pl.Series([NANOSECONDS]), pl.Series([1.5])
    assert together(whole, real, name="ts").to_list() == [str(NANOSECONDS), "1.5"]
    frame, _ = joined([("a", pl.LazyFrame({"q": whole})), ("b", pl.LazyFrame({"q": real}))], None, Reading(time=("q", "clock")))
    assert frame.collect()["q"].to_list() == [str(NANOSECONDS), "1.5"]


def test_milliseconds_in_one_year_and_microseconds_in_the_next_join():
    assert together(pl.Series([1_704_067_200_000]), pl.Series([1_735_689_600_000_000])).dtype == pl.Int64


def test_text_and_numbers_become_text():
    assert together(pl.Series([1, None]), pl.Series(["1,5", "-"])).to_list() == ["1", None, "1,5", "-"]
    assert together(pl.Series([1.25]), pl.Series(["x"])).to_list() == ["1.25", "x"]


def test_text_without_a_value_leaves_numbers_as_they_are():
    assert together(pl.Series([1.5]), pl.Series([None], dtype=pl.String)).to_list() == [1.5, None]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_of_different_resolution_become_nanoseconds(unit):
    noon = datetime.datetime(2024, 1, 2, 12)
    column = together(pl.Series([noon], dtype=pl.Datetime(unit)), pl.Series([noon.date()]), name="ts")
    assert column.dtype == pl.Datetime("ns")
    assert column.to_list() == [noon, datetime.datetime(2024, 1, 2)]


def test_times_of_different_zones_become_utc():
    noon = pl.Series([datetime.datetime(2024, 7, 2, 12)], dtype=pl.Datetime("us"))
    column = together(noon.dt.replace_time_zone("Europe/Berlin"), noon.dt.replace_time_zone("UTC"), name="ts")
    assert column.dtype == pl.Datetime("ns", "UTC")
    assert column.dt.hour().to_list() == [10, 12]


def test_times_with_and_without_a_zone_keep_the_difference():
    noon = pl.Series([datetime.datetime(2024, 7, 2, 12)], dtype=pl.Datetime("ns"))
    column = together(noon, noon.dt.replace_time_zone("Europe/Berlin"), name="ts")
    assert column.to_list() == ["2024-07-02T12:00:00.000000000", "2024-07-02T10:00:00.000000000Z"]


def test_categories_become_text():
    assert together(pl.Series(["a"], dtype=pl.Categorical), pl.Series(["b"], dtype=pl.Enum(["b"]))).to_list() == ["a", "b"]


def test_lists_and_bytes_are_left_out_with_a_note():
    frame, notes = joined([("a", pl.LazyFrame({"x": [1], "l": [[1]], "b": [b"1"]}))], None, AS_IT_IS)
    assert frame.collect_schema().names() == ["x"]
    assert notes == ["left out, lists, structures or bytes: l, b"]


@pytest.mark.parametrize(("one", "other"), [([[1]], ["1"]), ([1], [[1]]), ([datetime.timedelta(1)], [1]), ([{"a": 1}], [1.5])])
def test_types_that_do_not_go_together_are_refused(one, other):
    message = refusal(pl.DataFrame({"x": one}), pl.DataFrame({"x": other}))
    assert 'the column "x" has different types that do not go together' in message
    assert "in 0.csv" in message
    assert "in 1.csv" in message


def test_a_missing_column_is_named_with_the_file_that_lacks_it():
    message = refusal(pl.DataFrame({"t": [1], "x": [1]}), pl.DataFrame({"t": [1]}), pl.DataFrame({"x": [1]}))
    assert 'different columns: 1.csv has no "x"; 2.csv has no "t"; give them the same columns' in message


def test_many_files_without_a_column_are_counted():
    message = refusal(pl.DataFrame({"t": [1], "x": [1]}), *[pl.DataFrame({"t": [1]})] * 6)
    assert "(3 more such files)" in message


def test_names_that_differ_in_case_are_said_to():
    assert "differ in upper and lower case only" in refusal(pl.DataFrame({"Close": [1]}), pl.DataFrame({"close": [1]}))


@pytest.mark.parametrize("wanted", [["x"], lambda names: [name for name in names if name == "x"]])
def test_a_column_that_nobody_asked_for_may_be_missing(wanted):
    files = [("a", pl.LazyFrame({"t": [1], "x": [1], "y": [1]})), ("b", pl.LazyFrame({"t": [2], "x": [2]}))]
    frame, notes = joined(files, wanted, AS_IT_IS)
    assert frame.collect().rows() == [(1, 1), (2, 2)]
    assert notes == ['left out, not in all files: "y"']


@pytest.mark.parametrize("name", ["ts", "open_time", "openTime", "Date", "t", "datetime", "Timestamp", "time (UTC)"])
def test_a_time_may_not_be_missing_whatever_it_is_called(name):
    assert f'no "{name}"' in refusal(pl.DataFrame({name: [1], "x": [1]}), pl.DataFrame({"x": [2]}), wanted=["x"])


@pytest.mark.parametrize("name", ["sentiment", "rate", "update_count", "tsla", "lifetime"])
def test_other_words_are_no_times(name):
    files = [("a", pl.LazyFrame({name: [1], "x": [1]})), ("b", pl.LazyFrame({"x": [2]}))]
    assert joined(files, ["x"], AS_IT_IS)[0].collect().rows() == [(1,), (2,)]


def test_a_column_that_is_needed_may_not_be_missing():
    frames = pl.DataFrame({"ts": [1], "x": [1], "symbol": ["a"]}), pl.DataFrame({"x": [2]})
    assert 'no "ts", "symbol"' in refusal(*frames, wanted=["x"])
    frames = pl.DataFrame({"x": [1], "who": ["a"]}), pl.DataFrame({"x": [2]})
    assert 'no "who"' in refusal(*frames, wanted=["x"], reading=Reading(series="who"))
    assert 'no "who"' in refusal(*frames, wanted=["x", "who"])


VALUES = st.one_of(
    st.lists(st.integers(-(2**53), 2**53) | st.none(), min_size=1, max_size=4).map(lambda v: pl.Series(v, dtype=pl.Int64)),
    st.lists(st.floats(allow_nan=False) | st.none(), min_size=1, max_size=4).map(lambda v: pl.Series(v, dtype=pl.Float64)),
    st.lists(st.integers(0, 2**53), min_size=1, max_size=4).map(lambda v: pl.Series(v, dtype=pl.UInt64)),
    st.lists(st.integers(-100, 100), min_size=1, max_size=4).map(lambda v: pl.Series(v, dtype=pl.Int8)),
)


@given(st.lists(VALUES, min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_joined_numbers_are_the_numbers_of_the_files(columns):
    values = [value for column in columns for value in column.to_list()]
    assert together(*columns).to_list() == values
