import datetime as dt

import polars as pl
import pytest

from statewise.data.files.reading import Reading
from statewise.data.tables.table import Table, read_table


@pytest.fixture
def table(tmp_path):
    def read(content: str | pl.DataFrame, **named) -> Table:
        name = "a.csv" if isinstance(content, str) else "a.parquet"
        if isinstance(content, str):
            (tmp_path / name).write_text(content)
        else:
            content.write_parquet(tmp_path / name)
        return read_table(name, folder=tmp_path, reading=Reading(**named))

    return read


def stamps(table: Table) -> list[str]:
    return [str(time.astype("datetime64[s]")).replace("T", " ") for time in table.rows.times]


MORNING = ["2024-01-02 09:30:00", "2024-01-02 09:31:00"]


@pytest.mark.parametrize(
    ("text", "name", "columns"),
    [
        ("Date,Time,x\n2024-01-02,09:30,1\n2024-01-02,09:31,2\n", "Date Time", ("x",)),
        ("<DATE>,<TIME>,<CLOSE>\n2024.01.02,09:30:00,1\n2024.01.02,09:31:00,2\n", "DATE TIME", ("CLOSE",)),
        ("Date,Timestamp,Open\n20240102,09:30:00,1\n20240102,09:31:00,2\n", "Date Timestamp", ("Open",)),
        ("<TICKER>,<DATE>,<TIME>,x\nA,20240102,093000,1\nA,20240102,093100,2\n", "DATE TIME", ("x",)),
        ("x,date,time\n1,20240102,930\n2,20240102,931\n", "date time", ("x",)),
        ("x,date,time\n1,20240102,93000\n2,20240102,93100\n", "date time", ("x",)),
        ("Date,Time,x\n30/12/2023,9:30 AM,0\n01/02/2024,9:30 AM,1\n", "Date Time", ("x",)),
        ("year,month,day,hour,minute,x\n2024,1,2,9,30,1\n2024,1,2,9,31,2\n", "year month day hour minute", ("x",)),
        ("#YY,MM,DD,hh,mm,x\n2024,01,02,09,30,1\n2024,01,02,09,31,2\n", "YY MM DD hh mm", ("x",)),
        ("day,hour,minute,x\n2024-01-02,9,30,1\n2024-01-02,9,31,2\n", "day hour minute", ("x",)),
        ("YEAR,DOY,HR,MINUTE,x\n2024,2,9,30,1\n2024,2,9,31,2\n", None, None),
        ("year,doy,hour,minute,second,x\n2024,2,9,30,0,1\n2024,2,9,31,0.0,2\n", "year doy hour minute second", ("x",)),
    ],
)
def test_the_columns_of_a_time_are_found(table, text, name, columns):
    found = table(text)
    if "30/12/2023" in text:
        assert stamps(found) == ["2023-12-30 09:30:00", "2024-02-01 09:30:00"]
    else:
        assert stamps(found) == MORNING
    if name is not None:
        assert (found.time, found.columns) == (name, columns)
    assert found.understood.naive


def test_clocks_with_dots_and_a_decimal_comma_are_read(table):
    text = "Date;Time;CO(GT);NOx\n10/03/2004;18.00.00;2,6;166\n13/03/2004;19.00.00;-200;1174,5\n"
    found = table(text, separator=";")
    assert stamps(found) == ["2004-03-10 18:00:00", "2004-03-13 19:00:00"]
    assert found.frame["CO(GT)"].to_list() == [2.6, -200]
    assert found.frame["NOx"].to_list() == [166, 1174.5]


def test_year_month_day_and_hour_make_a_time(table):
    found = table("No,year,month,day,hour,pm2.5\n1,2010,1,1,0,NA\n2,2010,1,1,1,7\n")
    assert stamps(found) == ["2010-01-01 00:00:00", "2010-01-01 01:00:00"]
    assert found.columns == ("No", "pm2.5")


def test_the_last_hour_of_a_day_may_be_24(table):
    found = table("date,hour,x\n2024-01-01,23,1\n2024-01-01,24,2\n")
    assert stamps(found) == ["2024-01-01 23:00:00", "2024-01-02 00:00:00"]


def test_a_full_time_goes_before_its_pieces(table):
    found = table("datetime,date,time,year,x\n2024-01-02T09:30Z,2024-01-02,09:30,2024,1\n")
    assert found.time == "datetime"
    assert not found.understood.naive


def test_temporal_types_make_a_time(table):
    frame = pl.DataFrame({"date": [dt.date(2024, 1, 2)] * 2, "time": [dt.time(9, 30), dt.time(9, 31, 0, 500)], "x": [1, 2]})
    assert table(frame).rows.times.astype(int).tolist() == [1704187800 * 10**9, 1704187860 * 10**9 + 500_000]
    midnights = frame.with_columns(pl.col("date").cast(pl.Datetime("us")))
    assert stamps(table(midnights)) == MORNING
    assert stamps(table(frame.with_columns(pl.lit(93000).alias("time"), pl.Series("date", [20240102, 20240103])))) == [
        "2024-01-02 09:30:00",
        "2024-01-03 09:30:00",
    ]


def test_the_columns_may_be_named(table):
    text = "a,b,x\n2024-01-02,9:30,1\n2024-01-02,9:31,2\n"
    assert stamps(table(text, time=("a", "b"))) == MORNING
    assert stamps(table(text, time=("b", "a"))) == MORNING
    assert stamps(table("y,m,year,month,day,x\n1,2,2024,1,2,1\n", time=("year", "month", "day"))) == ["2024-01-02 00:00:00"]


@pytest.mark.parametrize(
    ("text", "named", "words"),
    [
        ("time,x\n09:30,1\n09:31,2\n", {}, '"time" holds times of day and no column holds dates'),
        ("time,x\n09:30,1\n09:31,2\n", {"time": "time"}, 'holds "09:30", which is a time of day without a date'),
        ("a,b,x\n2024-01-02,9:30,1\n", {"time": ("a", "c")}, 'data.time: .* has no column "c"'),
        ("a,b,x\n2024-01-02 10:00,9:30,1\n", {"time": ("a", "b")}, 'data.time: "a" holds full times'),
        ("a,b,x\n9:00,9:30,1\n", {"time": ("a", "b")}, '"b" is a second clock'),
        ("a,b,x\n9:00,foo,1\n", {"time": ("a", "b")}, '"b" is no part of a time that is known'),
        ("hour,minute,x\n9,0,1\n9,1,2\n", {"time": ("hour", "minute")}, "has no date"),
        ("a,b,x\n2024-01-02,9,1\n2024-01-02,10,2\n", {"time": ("a", "b")}, "hours or minutes: call the column hour"),
        ("date,time,x\n2024-01-02,9:30,1\n2024-01-02,,2\n", {}, r'row 2 \(line 3\).*has no value in "time"'),
        (
            "date,time,x\n2024-01-02,9:30,1\n2024-01-02,25:30,2\n",
            {},
            r'row 2 \(line 3\).*holds "2024-01-02 25:30", which is no time',
        ),
        ("year,month,day,x\n2024,2,29,1\n2023,2,29,2\n", {}, r'row 2 \(line 3\).*holds "2023 2 29", which is no time'),
        ("date,time,x\n03/04/2024,9:30,1\n03/04/2024,9:31,2\n", {}, r"data\.day_first=true"),
        ("a,x\n2024-01-02,1\n", {"time": ()}, "must name one column"),
        ("a,x\n2024-01-02,1\n", {"time": ("a", "a")}, "several different ones"),
    ],
)
def test_pieces_that_make_no_time_are_refused(table, text, named, words):
    with pytest.raises(ValueError, match=words) as caught:
        table(text, **named)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "Date;x\n02.01.2024;1\n13.01.2024;2\n",
        "Date;x\n02.01.24;1\n31.01.24;2\n01.02.24;3\n",
        "Date;x\n2.1.2024;1\n13.1.2024;2\n",
    ],
)
def test_dates_with_dots_are_no_clocks(table, text):
    assert stamps(table(text))[0] == "2024-01-02 00:00:00"


@pytest.mark.parametrize("text", ["date,x\n2024Q1,1\n2024Q2,2\n", "Datetime,x\nday 1,1\nday 2,2\n"])
def test_a_column_called_a_time_that_cannot_be_read_is_not_passed_over(table, text):
    with pytest.raises(ValueError, match="which is no time that can be read"):
        table(text)
