import polars as pl
import pytest

from statewise.data.tables.times.column import read_times
from statewise.data.tables.times.moments import Unreadable


def dates(*texts: str, **named) -> list[str | None]:
    return read_times(pl.Series("date", texts, dtype=pl.String), **named).values.dt.strftime("%m-%d").to_list()


def refusal(*texts: str, **named) -> Unreadable:
    with pytest.raises(Unreadable) as caught:
        dates(*texts, **named)
    return caught.value


@pytest.mark.parametrize(
    ("texts", "months"),
    [
        (["03/04/2024", "13/04/2024"], ["04-03", "04-13"]),
        (["03/04/2024", "03/14/2024"], ["03-04", "03-14"]),
        (["3.4.2024 9:30", "31.12.2024 16:00"], ["04-03", "12-31"]),
        (["03-04-2024", "12-31-2024"], ["03-04", "12-31"]),
        (["05/05/2024", "06/06/2024"], ["05-05", "06-06"]),
    ],
)
def test_a_number_above_twelve_tells_the_day_for_the_whole_column(texts, months):
    assert dates(*texts) == months


def test_the_reading_counts_in_which_the_rows_are_in_order():
    assert dates("11/01/2024", "12/01/2024", "01/02/2024") == ["01-11", "01-12", "02-01"]
    assert dates("01/11/2024", "01/12/2024", "02/01/2024") == ["01-11", "01-12", "02-01"]
    assert dates("02/01/2024 10:00", "01/12/2024 10:00", "01/11/2024 10:00") == ["02-01", "01-12", "01-11"]


def test_the_reading_counts_in_which_the_rows_are_successive_days():
    assert dates("03/04/2024", "03/05/2024", "03/06/2024", "03/07/2024") == ["03-04", "03-05", "03-06", "03-07"]
    assert dates("04/03/2024", "05/03/2024", "06/03/2024", "07/03/2024") == ["03-04", "03-05", "03-06", "03-07"]
    # From Friday to Monday no working day is lost.
    assert dates("03/07/2024", "03/08/2024", "03/11/2024") == ["03-07", "03-08", "03-11"]


@pytest.mark.parametrize(
    "texts",
    [
        ["03/04/2024"],
        ["03/04/2024 10:00", "03/04/2024 11:00"],
        ["01/02/2024", "01/03/2024", "01/04/2024"],  # days of January, or the first of three months
        ["03/04/2024", "03/05/2024", "03/09/2024"],
    ],
)
def test_where_nothing_tells_the_key_is_named(texts):
    fault = refusal(*texts)
    assert fault.row == 0
    assert f'"{texts[0]}"' in fault.reason
    assert "data.day_first=true" in fault.reason
    assert "data.day_first=false" in fault.reason


def test_dates_with_points_have_the_day_first_unless_something_tells_otherwise():
    assert dates("03.04.2024") == ["04-03"]
    assert dates("03.04.2024 10:00", "03.04.2024 11:00") == ["04-03", "04-03"]
    assert dates("03.14.2024", "03.15.2024") == ["03-14", "03-15"]
    assert dates("03.04.2024", day_first=False) == ["03-04"]
    assert "data.day_first" in refusal("03.04.2024", "03/04/2024").reason


def test_what_the_user_says_is_taken():
    assert dates("03/04/2024", day_first=True) == ["04-03"]
    assert dates("03/04/2024", day_first=False) == ["03-04"]
    assert dates("01/02/2024", "01/03/2024", "01/04/2024", day_first=True) == ["02-01", "03-01", "04-01"]


@pytest.mark.parametrize(("day_first", "text"), [(True, "03/14/2024"), (False, "14/03/2024 9:30")])
def test_a_row_that_contradicts_the_user_is_named(day_first, text):
    fault = refusal("03/04/2024", text, "05/04/2024", day_first=day_first)
    assert fault.row == 1
    assert f'holds "{text}", which is no date with data.day_first={str(day_first).lower()}' in fault.reason


def test_rows_that_contradict_each_other_read_as_null():
    assert dates("13/04/2024", "14/04/2024", "03/14/2024") == ["04-13", "04-14", None]


def test_years_of_two_digits_are_read_where_the_column_tells():
    moments = read_times(pl.Series(["30.12.99", "31.12.99", "02.01.00"]))
    assert moments.values.dt.strftime("%Y-%m-%d").to_list() == ["1999-12-30", "1999-12-31", "2000-01-02"]
    assert "years of two digits" in moments.how
    assert read_times(pl.Series(["02-Jan-24"])).values.dt.year().to_list() == [2024]
    assert read_times(pl.Series(["02-Jan-70"])).values.dt.year().to_list() == [1970]


def test_years_of_two_digits_are_refused_where_nothing_tells():
    assert "write four digits" in refusal("02.01.24").reason
