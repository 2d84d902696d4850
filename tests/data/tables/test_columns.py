import pytest

from statewise.data.files.reading import Reading
from statewise.data.tables.table import Table, read_table


@pytest.fixture
def table(tmp_path):
    def read(text: str, **named) -> Table:
        (tmp_path / "a.csv").write_text(text)
        return read_table("a.csv", folder=tmp_path, columns=named.pop("columns", None), reading=Reading(**named))

    return read


def notes(table: Table) -> str:
    return "\n".join(table.notes)


@pytest.mark.parametrize("name", ["time", "ts", "timestamp", "Date", "DateTime", "ts_event", "WINDOW_START", "Open_Time"])
def test_the_time_column_is_found_by_name_whatever_its_case(table, name):
    assert table(f"x,{name}\n1,2024-01-02\n2,2024-01-03\n").time == name


def test_the_start_of_a_bar_goes_before_other_times(table):
    found = table("ts_recv,ts_event,close\n1704205801000000000,1704205800000000000,1\n")
    assert (found.time, found.columns) == ("ts_event", ("close",))
    assert 'a time beside "ts_event": ts_recv' in notes(found)


def test_seconds_since_1970_beside_a_date_are_no_number(table):
    found = table("unix,date,close\n1704205800,2024-01-02 14:30:00,1\n1704205860,2024-01-02 14:31:00,2\n")
    assert (found.time, found.columns) == ("date", ("close",))
    assert 'a time beside "date": unix' in notes(found)


def test_a_time_column_with_another_name_is_found_by_its_contents(table):
    found = table("when,x\n2024-01-02 10:00,1\n2024-01-02 11:00,2\n")
    assert found.time == "when"
    assert 'found by its contents: "when"' in notes(found)


def test_a_time_column_without_a_name_is_found(table):
    found = table(",x\n2024-01-02,1\n2024-01-03,2\n")
    assert found.time is not None
    assert found.columns == ("x",)


def test_numbers_since_1970_are_a_time_only_under_a_name_that_says_so(table):
    assert table("bar_time,x\n1704205800,1\n1704205860,2\n").time == "bar_time"
    volume = table("volume,x\n1704205800,1\n1704205860,2\n")
    assert (volume.time, volume.columns) == (None, ("volume", "x"))
    assert table("runtime,x\n1,1\n2,2\n").time is None


def test_a_column_with_the_name_of_a_time_that_holds_none_is_passed_over(table):
    assert table("time,date,x\nmorning,2024-01-02,1\nnoon,2024-01-03,2\n").time == "date"


def test_a_file_without_times_keeps_its_order_and_says_so(table):
    found = table("x\n3\n1\n2\n")
    assert found.time is None
    assert found.frame["x"].to_list() == [3, 1, 2]
    assert "no time column found" in notes(found)


@pytest.mark.parametrize("name", ["symbol", "Ticker", "series", "instrument_id", "id", "unique_id"])
def test_the_series_column_is_found_by_name(table, name):
    found = table(f"time,{name},x\n2024-01-02,7,1\n2024-01-03,7,2\n2024-01-02,8,3\n")
    assert found.series == name
    assert found.columns == ("x",)
    assert found.frame[name].to_list() == ["7", "7", "8"]


def test_an_id_that_numbers_the_rows_is_no_series(table):
    assert table("id,time,x\n1,2024-01-02,1\n2,2024-01-03,2\n").series is None


def test_a_series_column_of_real_numbers_is_a_number(table):
    found = table("series,x\n1.5,1\n1.5,2\n2.25,3\n")
    assert (found.series, found.columns) == (None, ("series", "x"))


def test_a_second_identifier_is_no_input(table):
    found = table("ts_event,instrument_id,symbol,x\n2024-01-02,101,A,1\n2024-01-02,202,B,2\n")
    assert (found.series, found.columns) == ("symbol", ("x",))
    assert 'an identifier beside "symbol": instrument_id' in notes(found)


def test_text_empty_and_unnamed_columns_are_left_out_and_named(table):
    found = table(",wind,empty,x\n0,NW,,1\n1,SE,NA,2\n")
    assert found.columns == ("x",)
    assert "not numeric: wind" in notes(found)
    assert "empty: empty" in notes(found)
    assert "no name in the header: column without a name 1" in notes(found)


def test_named_roles_are_taken_as_they_are(table):
    text = "day,venue,x,y\n2024-01-02,A,1,a\n2024-01-03,A,2,b\n2024-01-02,B,3,c\n"
    found = table(text, time="day", series="venue", columns=["x"])
    assert (found.time, found.series, found.columns) == ("day", "venue", ("x",))


def test_named_columns_come_in_file_order_and_once(table):
    assert table("a,b,c\n1,2,3\n", columns=["c", "a", "c"]).columns == ("a", "c")


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"time": "tme"}, 'data.time: .* has no column "tme"; did you mean time'),
        ({"series": "Simbol"}, "data.series: .* did you mean symbol"),
        ({"columns": ["Close"]}, "data.features or data.targets: .* did you mean close"),
        ({"columns": ["zzz"]}, 'no column "zzz"; it has time, symbol, close, wind, void$'),
        ({"columns": ["time"]}, '"time" is the time column'),
        ({"columns": ["symbol"]}, '"symbol" is the series column'),
        ({"series": "time"}, '"time" is the time column'),
        ({"columns": ["wind"]}, 'row 1 .*column "wind": "NW" is not a number'),
        ({"columns": ["void"]}, 'column "void" holds no value'),
        ({"time": "wind"}, 'row 1 .* time column "wind" holds "NW", which is no time'),
    ],
)
def test_a_wrong_name_ends_in_one_line_with_the_nearest_one(table, named, words):
    with pytest.raises(ValueError, match=words) as caught:
        table("time,symbol,close,wind,void\n2024-01-02,A,1,NW,\n2024-01-03,A,2,SE,\n", **named)
    assert "\n" not in str(caught.value)


def test_a_file_without_numbers_is_refused(table):
    with pytest.raises(ValueError, match="no numeric column; left out, not numeric: wind"):
        table("time,wind\n2024-01-02,NW\n")


def test_a_symbol_that_is_not_known_for_every_row_gives_way_to_the_number_of_the_instrument(table):
    found = table("ts,instrument_id,symbol,x\n2024-01-02,101,A,1\n2024-01-03,101,A,1\n2024-01-02,202,,2\n")
    assert found.series == "instrument_id"


def test_an_epoch_goes_before_a_date_beside_it(table):
    found = table("unix,date,x\n1704189600,2024-01-02,1\n1704193200,2024-01-02,2\n")
    assert found.time == "unix"


def test_numbers_that_count_rows_are_a_time_only_under_its_name(table):
    assert table("t,x\n0,1\n1,2\n").time is None
    assert table("period_start,x\n2024-01-02,1\n2024-01-03,2\n").time == "period_start"
