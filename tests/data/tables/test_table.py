import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.files.reading import Reading
from statewise.data.tables.table import Table, read_table

SHARED = Path(__file__).parents[4] / "shared" / "data"
BARS = "ts,symbol,close\n2024-01-02 10:00,A,1\n2024-01-02 10:01,A,2\n2024-01-02 10:00,B,3\n"


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "bars.csv").write_text(text)
        return tmp_path / "bars.csv"

    return write


def read(path: Path, **named) -> Table:
    return read_table(str(path), folder=path.parent, columns=named.pop("columns", None), reading=Reading(**named))


def refusal(path: Path, **named) -> str:
    with pytest.raises(ValueError, match=r"^data\.path") as caught:
        read(path, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_are_sorted_by_series_then_time(file):
    table = read(file("ts,symbol,x\n2024-01-02,B,1\n2024-01-02,A,2\n2024-01-01,B,3\n"))
    assert table.frame["symbol"].to_list() == ["A", "B", "B"]
    assert table.frame["x"].to_list() == [2, 3, 1]
    assert table.frame.schema == {"ts": pl.Datetime("ns"), "symbol": pl.String, "x": pl.Float64}


def test_a_file_out_of_order_is_sorted_and_says_so(file):
    table = read(file("date,x\n2024-01-03,3\n2024-01-02,2\n"))
    assert table.frame["x"].to_list() == [2, 3]
    assert any("not in the order of time" in note for note in table.notes)
    assert not any("not in the order" in note for note in read(file(BARS)).notes)


def test_series_without_times_keep_their_order(file):
    table = read(file("symbol,x\nB,1\nA,2\nB,3\nA,0\n"))
    assert table.frame["x"].to_list() == [2, 0, 1, 3]


def test_missing_values_are_nan_and_never_null(file):
    table = read(file("date,x,y\n2024-01-01,1,NA\n2024-01-02,,NaN\n2024-01-03,null,7\n2024-01-04,None,N/A\n"))
    assert [math.isnan(x) for x in table.frame["x"]] == [False, True, True, True]
    assert [math.isnan(y) for y in table.frame["y"]] == [True, True, False, True]
    assert sum(table.frame.null_count().row(0)) == 0


def test_two_rows_of_one_moment_are_refused_with_their_places(file):
    message = refusal(file("date,x\n2024-01-02,1\n2024-01-03,2\n2024-01-02,1\n2024-01-02,1\n"))
    assert "row 1 (line 2)" in message
    assert "row 3 (line 4)" in message
    assert "2024-01-02 00:00:00 (2 repeated rows in all)" in message


def test_repeated_times_point_to_the_column_that_tells_series_apart(file):
    text = "date,venue,x\n2024-01-02,N,1\n2024-01-02,S,2\n"
    assert 'set data.series="venue"' in refusal(file(text))
    assert read(file(text), series="venue").frame["x"].to_list() == [1, 2]


def test_repeated_times_in_a_series_name_the_series(file):
    assert 'of series "A"' in refusal(file(BARS + "2024-01-02 10:01,A,9\n"))


def test_the_same_moment_in_two_zones_is_one_moment(file):
    assert "the same time" in refusal(file("ts,x\n2024-01-02T10:00Z,1\n2024-01-02T11:00+01:00,2\n"))


def test_text_in_a_numeric_column_stops_with_its_place(tmp_path):
    rows = 300_000
    close = [str(100 + i % 50) for i in range(rows)]
    close[123_456], close[200_000], close[250_000] = '"1,234.5"', "-", "NaN"
    path = tmp_path / "bars.csv"
    path.write_text("row,close\n" + "\n".join(f"{i},{c}" for i, c in enumerate(close)) + "\n")
    message = refusal(path)
    assert f'{path}: row 123457 (line 123458), column "close": "1,234.5" is not a number' in message
    assert "2 such values" in message


def test_text_in_a_column_that_is_not_asked_for_does_not_matter(file):
    assert read(file("x,y\n1,1\n2,-\n3,3\n"), columns=["x"]).columns == ("x",)


@pytest.mark.parametrize("text", ["inf", "-Infinity", "1e400"])
def test_an_infinite_value_stops_with_its_place(file, text):
    message = refusal(file(f"x,y\n1,1\n2,{text}\n"))
    assert f'row 2 (line 3), column "y": "{text}" is infinite' in message


def test_a_row_of_a_later_file_is_named_by_its_own_place(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "b.csv").write_text("x\n3\noops\n")
    with pytest.raises(ValueError, match=r'b\.csv: row 2 \(line 3\), column "x": "oops"'):
        read_table("*.csv", folder=tmp_path)


@pytest.mark.parametrize(("text", "words"), [("", "is empty"), ("soon", 'holds "soon", which is no time')])
def test_a_row_without_a_time_stops_with_its_place(file, text, words):
    message = refusal(file(f"date,x\n2024-01-01,1\n{text},2\n2024-01-03,3\n"))
    assert f'row 2 (line 3): the time column "date" {words}' in message


def test_a_row_without_a_series_stops_with_its_place(file):
    assert 'row 4 (line 5): the series column "symbol" is empty' in refusal(file(BARS + "2024-01-02 10:05,,9\n"))


def test_a_series_may_have_the_name_of_a_missing_marker(file):
    table = read(file("date,symbol,x\n2024-01-01,NA,1\n2024-01-01,None,2\n2024-01-01,X,3\n"))
    assert table.frame["symbol"].to_list() == ["NA", "None", "X"]


def test_blank_lines_are_no_rows_where_there_are_times(file):
    table = read(file("date,x\n2024-01-01,1\n\n2024-01-03,3\n\n"))
    assert table.frame["x"].to_list() == [1, 3]
    assert "1 blank row dropped" in table.notes


def test_blank_lines_are_missing_rows_where_order_is_all_there_is(file):
    assert np.isnan(read(file("x,y\n1,1\n\n3,3\n")).frame["x"][1])


def test_the_place_of_a_fault_counts_blank_lines(file):
    assert "row 3 (line 4)" in refusal(file("date,x\n\n2024-01-01,1\n2024-01-03,oops\n2024-01-04,2\n"))


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 50), st.none() | st.floats(allow_nan=False, allow_infinity=False)),
        min_size=1,
        max_size=30,
        unique_by=lambda row: row[:2],
    ),
    st.sampled_from(["bars.csv", "bars.parquet"]),
)
@settings(max_examples=40, deadline=None)
def test_any_rows_read_back_sorted_and_unchanged(tmp_path_factory, rows, name):
    path = tmp_path_factory.mktemp("rows") / name
    moments = pl.Series([minute * 60 for _, minute, _ in rows]).cast(pl.Int64) * 10**9
    frame = pl.DataFrame(
        {
            "ts": moments.cast(pl.Datetime("ns")),
            "symbol": [f"S{code}" for code, _, _ in rows],
            "x": pl.Series([value for *_, value in rows], dtype=pl.Float64),
        }
    )
    if name.endswith("csv"):
        frame.write_csv(path)
    else:
        frame.write_parquet(path)
    # A column without a single value is no numeric column, so it is named.
    if frame["x"].is_null().all():
        with pytest.raises(ValueError, match="holds no value"):
            read(path, columns=["x"])
        return
    table = read(path)
    wanted = frame.sort("symbol", "ts").with_columns(pl.col("x").fill_null(float("nan")))
    assert table.frame.equals(wanted)


# time, series, columns, rows, first and last time, some value of the first row (by time, in the first series)
FILES = {
    "headers/alpaca_bars.csv": ("timestamp", "symbol", 7, 1, "2024-01-02T14:30", "2024-01-02T14:30", ("vwap", 100.12)),
    "headers/binance_klines_ms_noheader.csv": (
        "open_time", None, 9, 2, "2024-01-01T00:00", "2024-01-01T00:01", ("close", 42005.5),
    ),
    "headers/databento_pretty.csv": ("ts_event", "symbol", 5, 2, "2024-01-02T00:00", "2024-01-02T00:00", ("high", 4800.25)),
    "headers/databento_raw.csv": ("ts_event", "instrument_id", 5, 2, "2024-01-02T00:00", "2024-01-02T00:01", ("high", 4800.25)),
    "headers/ett.csv": ("date", None, 7, 1, "2016-07-01T00:00", "2016-07-01T00:00", ("OT", 30.5)),
    "headers/kaggle_btc.csv": ("Timestamp", None, 5, 2, "2024-01-02T00:00", "2024-01-02T00:01", ("Volume", 12.3)),
    "headers/polygon_flat.csv": ("window_start", "ticker", 6, 1, "2024-01-02T14:30", "2024-01-02T14:30", ("close", 200.5)),
    "headers/stooq_daily.csv": ("Date", None, 5, 1, "2024-01-02T00:00", "2024-01-02T00:00", ("Volume", 1200300)),
    "headers/tradingview.csv": ("time", None, 5, 1, "2024-01-02T00:00", "2024-01-02T00:00", ("high", 101.5)),
    "headers/yahoo_site.csv": ("Date", None, 6, 2, "2024-01-02T00:00", "2024-01-03T00:00", ("Adj Close", 98.7)),
    "ett/ETTh1.csv": ("date", None, 7, 17_420, "2016-07-01T00:00", "2018-06-26T19:00", ("OT", 30.5310001373291)),
    "ett/ETTh2.csv": ("date", None, 7, 17_420, "2016-07-01T00:00", "2018-06-26T19:00", ("OT", 38.6619987487793)),
    "air_quality/beijing_pm25_uci381.csv": (
        "year month day hour", None, 8, 43_824, "2010-01-01T00:00", "2014-12-31T23:00", ("PRES", 1021),
    ),
    "silverbox/SNLS80mV.csv": (None, None, 2, 131_072, None, None, ("V1", 0.0057756)),
}  # fmt: skip


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data files are not here")
@pytest.mark.parametrize("name", sorted(FILES))
def test_files_of_vendors_are_understood(name):
    time, series, columns, rows, first, last, (column, value) = FILES[name]
    table = read(SHARED / name)
    assert (table.time, table.series, len(table.columns), len(table.rows)) == (time, series, columns, rows)
    assert table.read(column)[0] == value
    assert table.understood is not None
    if time is None:
        assert table.rows.times is None
    else:
        assert table.rows.times.dtype == "datetime64[ns]"
        assert [str(t.astype("datetime64[m]")) for t in table.rows.times[[0, -1]]] == [first, last]
        zoned = name.startswith("headers") and not any(word in name for word in ("/ett", "stooq", "yahoo"))
        assert table.understood.naive is not zoned


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data files are not here")
def test_missing_values_of_vendors_are_nan():
    raw = read(SHARED / "headers" / "databento_raw.csv")
    assert np.isnan(raw.read("open")[1])
    assert any("undefined price" in note for note in raw.notes)
    assert np.isnan(read(SHARED / "headers" / "yahoo_site.csv").read("Close")[1])
    assert np.isnan(read(SHARED / "headers" / "kaggle_btc.csv").read("Open")[1])
    assert int(np.isnan(read(SHARED / "air_quality" / "beijing_pm25_uci381.csv").read("pm2.5")).sum()) == 2067
