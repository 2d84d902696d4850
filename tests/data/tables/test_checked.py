import numpy as np
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
        return read_table(name, folder=tmp_path, columns=named.pop("columns", None), reading=Reading(**named))

    return read


def refusal(table, content, **named) -> str:
    with pytest.raises(ValueError, match=r"^data\.path") as caught:
        table(content, **named).frame  # noqa: B018
    assert "\n" not in str(caught.value)
    return str(caught.value)


def notes(table: Table) -> str:
    return "\n".join(table.notes)


INVESTING = 'Date,Price,Vol.,Change %\n"Jan 02, 2024","4,742.83",1.2M,-0.57%\n"Jan 03, 2024","4,704.81",-,0.80%\n'


def test_thousands_are_asked_for_before_they_are_read(table):
    message = refusal(table, INVESTING)
    assert 'row 1 (line 2), column "Price": "4,742.83" is not a number; 2 such values' in message
    assert "set data.thousands=','" in message


def test_an_odd_text_may_be_declared_missing(table):
    message = refusal(table, INVESTING, thousands=",")
    assert 'row 2 (line 3), column "Vol.": "-" is not a number' in message
    assert "data.null_values=['-']" in message


def test_signs_and_powers_are_read_with_a_note(table):
    found = table(INVESTING, thousands=",", null_values=("-",))
    assert found.read("Price").tolist() == [4742.83, 4704.81]
    assert found.read("Change %").tolist() == [-0.57, 0.8]
    assert found.read("Vol.")[0] == 1.2e6
    assert np.isnan(found.read("Vol.")[1])
    assert 'column "Change %": percent signs taken off' in notes(found)
    assert 'column "Vol.": K, M, B and T read as thousands' in notes(found)


DATABENTO = "ts_event,rtype,publisher_id,instrument_id,open,close,volume\n"


def test_prices_in_billionths_are_divided_and_said(table):
    found = table(DATABENTO + "1704153600000000000,33,1,7,4800250000000,9223372036854775807,5\n")
    assert found.read("open").tolist() == [4800.25]
    assert np.isnan(found.read("close")[0])
    assert found.read("volume").tolist() == [5]
    assert 'column "open": prices in units of 1e-9, divided by 1e9' in notes(found)
    assert 'column "close": 9223372036854775807 read as missing, an undefined price, 1 time' in notes(found)


@pytest.mark.parametrize("price", ["4800.250000000", "4800"])
def test_pretty_prices_are_left_as_they_are(table, price):
    found = table(DATABENTO + f"2024-01-02T00:00:00.000000000Z,33,1,7,{price},1.5,5\n")
    assert found.read("open").tolist() == [float(price)]
    assert "1e-9" not in notes(found)


def test_whole_numbers_of_other_files_are_left_as_they_are(table):
    assert table("ts_event,open\n1704153600000000000,4800250000000\n").read("open").tolist() == [4800250000000]


def test_large_whole_numbers_are_counted(table):
    frame = pl.DataFrame({"x": [2**53 + 1, 5, 9223372036854775807], "y": pl.Series([2**64 - 1, 1, 2], dtype=pl.UInt64)})
    found = table(frame)
    assert 'column "x": 1 value beyond 2^53' in notes(found)
    assert 'column "x": 9223372036854775807 read as missing' in notes(found)
    assert 'column "y": 1 value beyond 2^53' in notes(found)


def test_columns_of_numbers_are_read_when_they_are_asked_for(table, tmp_path):
    found = table(pl.DataFrame({"x": [1.0, 2.0], "y": [3.0, float("inf")]}))
    assert found.read("x").tolist() == [1, 2]
    with pytest.raises(ValueError, match=r'a\.parquet: row 2, column "y": "inf" is infinite'):
        found.read("y")


def test_truth_values_are_left_out_or_refused(table):
    frame = pl.DataFrame({"x": [1.0, 2.0], "flag": [True, False]})
    assert table(frame).columns == ("x",)
    assert 'row 1, column "flag": "True" is not a number' in refusal(table, frame, columns=["flag"])


def test_a_column_of_prices_in_words_is_not_left_out_in_silence(table):
    assert '"(1.5)" is not a number' in refusal(table, "x,y\n1,(1.5)\n2,(2.5)\n")


def test_a_column_that_begins_empty_is_judged_by_what_follows(table):
    rows = "".join(f"{i},\n" for i in range(1500)) + "1500,7\n"
    found = table("x,y\n" + rows)
    assert found.columns == ("x", "y")
    assert found.read("y")[1500] == 7
