import math
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.files.reading import Reading
from statewise.data.tables.notation import said, seen
from statewise.data.tables.numbers import Notation, parse_numbers

UNDEFINED = 9223372036854775807


def read(*texts: str | None, **named) -> list[float | None]:
    """The values; None where a text is no number."""
    raw = pl.Series("x", texts, dtype=pl.String)
    parsed = parse_numbers(raw, seen(raw.drop_nulls(), said(Reading(**named))))
    return [None if bad else value for value, bad in zip(parsed.values, parsed.bad, strict=True)]


@pytest.mark.parametrize("text", ["", "NA", "na", "NaN", "nan", "null", "NULL", "None", "N/A", None])
def test_missing_markers_are_nan_and_not_bad(text):
    numbers = parse_numbers(pl.Series([text, "1"], dtype=pl.String))
    assert math.isnan(numbers.values[0])
    assert numbers.bad.to_list() == [False, False]


@pytest.mark.parametrize(
    "text",
    ["1,234.5", "-", "12%", "1 000", "abc", "0x10", "1_000", ".", "true", "NANA", "--", "(1.5)", "$5", "5K", "1,5", "−5"],
)
def test_any_other_text_is_bad(text):
    assert parse_numbers(pl.Series(["1", text])).bad.to_list() == [False, True]
    assert read("1", "2", "3", text) == [1, 2, 3, None]


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_every_number_survives_its_text(numbers):
    parsed = parse_numbers(pl.Series([repr(x) for x in numbers]))
    assert parsed.values.to_list() == numbers
    assert not parsed.bad.any()


@pytest.mark.parametrize("dtype", [pl.String, pl.Int64, pl.UInt64])
def test_the_undefined_price_is_missing_and_counted(dtype):
    numbers = parse_numbers(pl.Series([UNDEFINED, UNDEFINED - 1, 5]).cast(dtype))
    assert math.isnan(numbers.values[0])
    assert numbers.values.to_list()[1:] == [9223372036854775806.0, 5.0]
    assert (numbers.undefined, numbers.inexact) == (1, 1)


@pytest.mark.parametrize("dtype", [pl.String, pl.Int64, pl.UInt64])
def test_whole_numbers_that_do_not_fit_are_counted(dtype):
    whole = [2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**60 + 1]
    assert parse_numbers(pl.Series(whole).cast(dtype)).inexact == 2
    assert parse_numbers(pl.Series([2**64 - 1, 2**63], dtype=pl.UInt64)).inexact == 1


def test_decimal_columns_are_numbers():
    assert parse_numbers(pl.Series([Decimal("1.25"), None])).values[0] == 1.25


def test_truth_values_are_no_numbers():
    assert parse_numbers(pl.Series([True, None])).bad.to_list() == [True, False]
    assert not parse_numbers(pl.Series([True])).mostly_numeric


def test_half_of_the_values_make_a_column_numeric():
    assert parse_numbers(pl.Series(["1", "x", "", ""])).mostly_numeric
    assert not parse_numbers(pl.Series(["1", "x", "y"])).mostly_numeric
    assert not parse_numbers(pl.Series(["", "NA"])).mostly_numeric
    assert not parse_numbers(pl.Series([[1.0]])).mostly_numeric


def test_declared_texts_are_missing_and_no_others():
    values = read("1", "-", "n.a.", "-1", "--", null_values=("-", "n.a."))
    assert [value is None for value in values] == [False, False, False, False, True]
    assert math.isnan(values[1])
    # A number may stand for a missing value too.
    assert math.isnan(read("1", "-999", null_values=("-999",))[1])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.5", 1234.5), ("1,234,567", 1234567), ("-1,234", -1234), ("1234.5", 1234.5), ("12,34", None), ("1,2345", None),
        (",123", None), ("1,23,456", None), ("1234,567", None), ("1,234e3", 1234e3), (".5", 0.5), ("1,,234", None),
    ],
)  # fmt: skip
def test_thousands_must_be_grouped_rightly(text, value):
    assert read("7", text, thousands=",") == [7, value]


@pytest.mark.parametrize(
    ("named", "text", "value"),
    [
        ({"decimal": ","}, "1,5", 1.5),
        ({"decimal": ","}, "1.5", None),
        ({"decimal": ",", "thousands": "."}, "1.234,5", 1234.5),
        ({"decimal": ",", "thousands": "."}, "1.23,5", None),
        ({"thousands": "'"}, "1'234.5", 1234.5),
        ({"thousands": " "}, "1 234.5", 1234.5),
        ({"thousands": "\xa0"}, "1\xa0234.5", 1234.5),
    ],
)
def test_the_decimal_mark_and_other_separators_may_be_said(named, text, value):
    assert read("7", text, **named) == [7, value]


def test_a_decimal_comma_is_seen_where_all_values_fit():
    assert read("1,5", "2", "-0,25") == [1.5, 2, -0.25]
    # These may be thousands as well.
    assert read("1,500", "2,250") == [None, None]
    assert read("1,5", "2.5") == [None, 2.5]


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["0.5%", "-1.25%", "3 %"], [0.5, -1.25, 3]),
        (["12.3K", "1.2M", "4.35B", "7"], [12300, 1.2e6, 4.35e9, 7]),
        (["$1.5", "-$2", "$-3"], [1.5, -2, -3]),
        (["1,5 €", "2,0 €"], [1.5, 2]),
        (["$1.5M", "$2K"], [1.5e6, 2000]),
    ],
)
def test_signs_that_all_values_carry_are_read(texts, values):
    assert read(*texts) == values


@pytest.mark.parametrize(
    "texts", [["1%", "2", "3%"], ["1", "2", "3", "5K"], ["$1", "2"], ["1%", "abc%"], ["(1)", "(2)"], ["0x1", "0x2"]]
)
def test_signs_that_some_values_carry_are_not_guessed(texts):
    assert None in read(*texts)


def test_signs_and_declared_missing_values_go_together():
    values = read("12.3K", "-", "1.2M", null_values=("-",))
    assert (values[0], values[2]) == (12300, 1.2e6)
    assert math.isnan(values[1])
    # Without the declaration the one odd value stands out.
    assert read("12.3K", "-", "1.2M") == [12300, None, 1.2e6]


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=10), st.sampled_from([",", " ", "'"]))
@settings(max_examples=50, deadline=None)
def test_every_whole_number_survives_grouping(numbers, mark):
    assert read(*(f"{number:,}".replace(",", mark) for number in numbers), thousands=mark) == numbers


@pytest.mark.parametrize("dtype", [pl.String, pl.Int64])
def test_billionths_are_divided_exactly(dtype):
    raw = pl.Series([4800250000000, UNDEFINED, -250000000, 3906250]).cast(dtype)
    numbers = parse_numbers(raw, Notation(billionths=True))
    assert numbers.values.to_list()[2:] == [-0.25, 1 / 256]
    assert numbers.values[0] == 4800.25
    assert math.isnan(numbers.values[1])
    assert numbers.undefined == 1


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"thousands": ",,"}, "data.thousands must be one character"),
        ({"thousands": "1"}, "data.thousands must be one character"),
        ({"decimal": ""}, "data.decimal must be one character"),
        ({"thousands": "."}, "data.thousands and data.decimal are both '.'"),
    ],
)
def test_what_is_said_must_make_sense(named, words):
    with pytest.raises(ValueError, match=words):
        said(Reading(**named))
