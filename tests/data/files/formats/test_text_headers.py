"""Which lines are names: comments, titles, units, several lines of names, none at all."""

import polars as pl
import pytest

from statewise.data.files.formats.content import contents_of
from statewise.data.files.formats.text import open_text
from statewise.data.files.raw import Opened
from statewise.data.files.reading import Reading

BAR = "1.1,1.2,1.0,1.15"
NAMES = ["open", "high", "low", "close"]


@pytest.fixture
def opened(tmp_path):
    def write(content: str, **reading) -> Opened:
        (tmp_path / "bars.csv").write_text(content, encoding="utf-8")
        return open_text(contents_of(tmp_path / "bars.csv")[0], Reading(**reading))

    return write


def rows(one: Opened) -> list[tuple]:
    return one.frame.collect().rows()


def columns(one: Opened) -> list[str]:
    return one.frame.collect_schema().names()


@pytest.mark.parametrize(
    ("above", "line", "note"),
    [
        ("", 2, None),
        ("# made on Monday\n# by hand\n", 4, '2 comment lines above the values left out ("# made on Monday")'),
        ("// made, on, Monday\n", 3, "1 comment line above"),
        ("% made\n", 3, "1 comment line above"),
        ("; made, on, Monday\n", 3, "1 comment line above"),
        ("https://www.CryptoDataDownload.com\n", 3, '1 line above the table left out ("https://www.CryptoDataDownload.com")'),
        ("Report of today\nby me, 2024\n\n", 5, '2 lines above the table left out ("Report of today")'),
        ("Report,,,,\n", 3, "1 line above the table"),
        ("Station,Alpha,,,\nHeight,12,m,,\n", 4, "2 lines above the table"),
    ],
)
def test_what_stands_above_the_names_is_left_out_and_noted(opened, above, line, note):
    one = opened(f"{above}date,open,high,low,close\n2024-01-02,{BAR}\n2024-01-03,{BAR}\n2024-01-04,{BAR}\n")
    assert columns(one) == ["date", *NAMES]
    assert rows(one)[0] == ("2024-01-02", 1.1, 1.2, 1.0, 1.15)
    assert one.first_line == line
    assert (one.notes == ()) if note is None else any(note in n for n in one.notes)


def test_names_in_the_last_comment_are_names(opened):
    one = opened("# volts over time\n# t,v\n0.0,1.5\n0.1,2.5\n")
    assert columns(one) == ["t", "v"]
    assert one.first_line == 3
    assert any('names of columns taken from a comment ("# t,v")' in note for note in one.notes)
    assert columns(opened("# t v\n1 2\n3 4\n")) == ["t", "v"]


@pytest.mark.parametrize("first", ["0,1,2", "1,2,3", ",0,1", "time,0,1", "time,1990,1991", "Unnamed: 0,0,1"])
def test_counted_names_are_names(opened, first):
    one = opened(f"{first}\n7,8,9.5\n8,9,9.5\n9,7,9.5\n")
    assert one.rows == 3
    assert [n for n in columns(one) if not n.startswith("column without")] == [n for n in first.split(",") if n]


def test_a_first_line_of_counted_numbers_is_mentioned(opened):
    assert any("data.header=0" in note for note in opened("0,1\n5,6\n7,8\n").notes)


def test_names_keep_blanks_and_case_and_lose_quotes_and_brackets(opened):
    assert columns(opened('Date, Adj Close ,"Vol, total"\n2024-01-02,1.5,3\n')) == ["Date", "Adj Close", "Vol, total"]
    one = opened("<DATE>\t<TIME>\t<OPEN>\t<TICKVOL>\n2024.01.02\t09:30:00\t1.5\t7\n2024.01.02\t09:31:00\t1.5\t7\n")
    assert columns(one) == ["DATE", "TIME", "OPEN", "TICKVOL"]
    one = opened(
        "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<VOL>,<OPENINT>\nA.US,5,20240102,153000,1.5,2,0\nA.US,5,20240102,153500,1.5,2,0\n"
    )
    assert columns(one) == ["TICKER", "PER", "DATE", "TIME", "OPEN", "VOL", "OPENINT"]
    assert rows(one)[0] == ("A.US", 5, 20240102, 153000, 1.5, 2, 0)


def test_names_of_a_row_index_may_be_missing(opened):
    one = opened('"x" "y"\n"1" 1.5 2.5\n"2" 2.5 3.5\n')
    assert columns(one)[1:] == ["x", "y"]
    assert rows(one)[1][1:] == (2.5, 3.5)


@pytest.mark.parametrize("units", [",(mg/m3),[C]", "s,V,A", "[s],[V],[A]", "UTC,µg/m³,°C"])
def test_a_line_of_units_below_the_names_is_left_out(opened, units):
    one = opened(f"time,NO2,T\n{units}\n2024-01-02,1.5,2\n2024-01-03,2.5,3\n")
    assert columns(one) == ["time", "NO2", "T"]
    assert rows(one) == [("2024-01-02", 1.5, 2), ("2024-01-03", 2.5, 3)]
    assert one.first_line == 3
    assert any("below the names left out" in note for note in one.notes)


def test_names_in_two_lines_are_joined(opened):
    one = opened("time,Inlet,,Outlet,\n,temp,flow,temp,flow\n2024-01-02,1,2,3,4\n2024-01-03,1,2,3,4\n")
    assert columns(one) == ["time", "Inlet_temp", "Inlet_flow", "Outlet_temp", "Outlet_flow"]
    assert any("joined from 2 lines" in note for note in one.notes)


YFINANCE = "Price,Close,High,Volume\nTicker,AAPL,AAPL,AAPL\nDate,,,\n2024-01-02,1.5,2.5,100\n2024-01-03,1.6,2.6,200\n"


def test_the_name_of_one_series_above_its_columns_becomes_a_column(opened):
    one = opened(YFINANCE)
    assert columns(one) == ["Date", "symbol", "Close", "High", "Volume"]
    assert rows(one)[-1] == ("2024-01-03", "AAPL", 1.6, 2.6, 200)
    assert one.first_line == 4


@pytest.mark.parametrize(
    "lines",
    [
        "Price,Close,Close,High,High\nTicker,AAPL,MSFT,AAPL,MSFT\nDate,,,,\n2024-01-02,1,2,3,4\n2024-01-03,5,,7,\n",
        "Ticker,AAPL,AAPL,MSFT,MSFT\nPrice,Close,High,Close,High\nDate,,,,\n2024-01-02,1,3,2,4\n2024-01-03,5,7,,\n",
        "Attributes,Close,,High,\nSymbols,AAPL,MSFT,AAPL,MSFT\nDate,,,,\n2024-01-02,1,2,3,4\n2024-01-03,5,,7,\n",
    ],
)
def test_series_side_by_side_become_rows(opened, lines):
    one = opened(lines)
    assert columns(one) == ["Date", "symbol", "Close", "High"]
    assert rows(one) == [("2024-01-02", "AAPL", 1, 3), ("2024-01-03", "AAPL", 5, 7), ("2024-01-02", "MSFT", 2, 4)]
    assert one.rows == 3
    assert one.first_line is None
    assert any("2 series stand side by side (AAPL, MSFT)" in note for note in one.notes)


def test_series_side_by_side_are_seen_by_the_names_of_prices(opened):
    top = "," + ",".join(["Open"] * 3 + ["High"] * 3 + ["Low"] * 3 + ["Close"] * 3)
    below = "," + ",".join(["A", "B", "C"] * 4)
    values = ",".join(map(str, range(12)))
    one = opened(f"{top}\n{below}\nDate{',' * 12}\n2024-01-02,{values}\n2024-01-03,{values}\n")
    assert columns(one) == ["Date", "symbol", "Open", "High", "Low", "Close"]
    assert rows(one)[2] == ("2024-01-02", "B", 1, 4, 7, 10)


def test_how_many_lines_are_names_can_be_said(opened):
    text = "7,8\n100,101\n200,201\n"
    assert columns(opened(text, header=1)) == ["7", "8"]
    one = opened(text, skip=1, header=0, names=("a", "b"))
    assert rows(one) == [(100, 101), (200, 201)]
    assert one.first_line == 2
    assert columns(opened("a,b\nc,d\n1,2\n3,4\n", header=2)) == ["a", "b"]
    assert columns(opened("x,y\na,b\n1,2\n3,4\n", skip=1)) == ["a", "b"]


def test_names_that_the_user_gives_win(opened):
    assert columns(opened("s,t,y\nA,2024-01-02,1.5\n", names=("symbol", "date", "x"))) == ["symbol", "date", "x"]
    assert rows(opened("A,2024-01-02,1.5\nA,2024-01-03,1.5\n", names=("symbol", "date", "x")))[0] == ("A", "2024-01-02", 1.5)


@pytest.mark.parametrize("unit", [1, 1000])
def test_klines_of_binance_are_known_in_milliseconds_and_microseconds(opened, unit):
    def line(start: int) -> str:
        last = (start + 60_000) * unit - 1
        return f"{start * unit},42000.1,42010.0,41990.0,42005.5,12.345,{last},518000.1,321,6.1,256000.2,0\n"

    one = opened(line(1704067200000) + line(1704067260000))
    assert columns(one)[:7] == ["open_time", *NAMES, "volume", "close_time"]
    assert "ignore" not in columns(one)
    assert rows(one)[1][0] == 1704067260000 * unit
    assert one.first_line == 1
    assert any("Binance" in note for note in one.notes)


@pytest.mark.parametrize(
    ("times", "names"),
    [
        (("1704067200", "1704067260"), ["time", *NAMES, "volume", "trades"]),  # Kraken
        (("20240102 093000", "20240102 093100"), ["time", *NAMES, "volume"]),  # histdata.com
        (("2024.01.02,09:30", "2024.01.02,09:31"), ["date", "time", *NAMES, "volume"]),  # MetaTrader 4
        (("01/02/2024,09:30", "01/02/2024,09:31"), ["date", "time", *NAMES, "volume"]),  # Kibot
        (("2024-01-02 09:30:00", "2024-01-02 09:31:00"), ["time", *NAMES, "volume"]),  # FirstRate
        (("2024-01-02T09:30:00Z", "2024-01-02T09:31:00Z"), ["time", *NAMES]),
        (("20240102,093000", "20240102,093100"), ["date", "time", *NAMES, "volume"]),
        (("20240102", "20240103"), ["time", *NAMES, "volume"]),
    ],
)
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_bars_without_names_are_known_by_their_order(opened, times, names, separator):
    more = {"volume": ",5.5", "trades": ",5.5,7"}.get(names[-1], "")
    text = "".join(f"{time},{BAR}{more}\n" for time in times).replace(",", separator)
    one = opened(text)
    assert columns(one) == names
    assert one.rows == 2
    assert one.first_line == 1
    assert any("no line of names" in note and "low <= open, close <= high" in note for note in one.notes)


def test_bars_without_names_and_with_decimal_commas_are_known(opened):
    one = opened("20240102 093000;1,1;1,2;1,0;1,15;0\n20240102 093100;1,1;1,2;1,0;1,15;0\n")
    assert columns(one) == ["time", *NAMES, "volume"]
    assert one.frame.collect()["close"].to_list() == [1.15, 1.15]


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-02,1.1,1.2,1.3,1.15,5\n2024-01-03,1.1,1.2,1.0,1.15,5\n",  # a low above the open
        "2024-01-02,1,1,1,1,5\n2024-01-03,2,2,2,2,5\n",  # nothing shows which is which
        "2024-01-02,1.1,1.0,1.2,1.15,5\n2024-01-03,1.1,1.0,1.2,1.15,5\n",  # low before high
        "AAPL,2024-01-02,1.1,1.2,1.0,1.15,5\nAAPL,2024-01-03,1.1,1.2,1.0,1.15,5\n",
        "2024-01-02,100,101\n2024-01-03,100,101\n",
        f"2024-01-02,{BAR},5,6.5,7\n2024-01-03,{BAR},5,6.5,7\n",
    ],
)
def test_fields_that_may_be_anything_need_names(opened, text):
    with pytest.raises(ValueError, match=r"bars\.csv has no header and is of no known layout") as caught:
        opened(text)
    message = str(caught.value)
    assert "\n" not in message
    assert ", ".join(text.split("\n")[0].split(",")[:3]) in message
    assert f"name its {text.split()[0].count(',') + 1} columns in data.names=[...]" in message


def test_types_do_not_hang_on_how_the_names_are_told(opened):
    one = opened(f"1704067200,{BAR},5\n1704067260,{BAR},5\n")
    assert one.frame.collect_schema().dtypes() == [pl.Int64, pl.Float64, pl.Float64, pl.Float64, pl.Float64, pl.Int64]
