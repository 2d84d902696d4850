import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.files.formats.content import contents_of
from statewise.data.files.formats.text import open_text
from statewise.data.files.raw import Opened
from statewise.data.files.reading import Reading

SHARED = Path(__file__).parents[5] / "shared" / "data"


@pytest.fixture
def opened(tmp_path):
    def write(content: bytes | str, **reading) -> Opened:
        (tmp_path / "bars.csv").write_bytes(content.encode() if isinstance(content, str) else content)
        return open_text(contents_of(tmp_path / "bars.csv")[0], Reading(**reading))

    return write


def rows(one: Opened) -> list[tuple]:
    frame = one.frame.collect()
    assert frame.height == one.rows
    return frame.rows()


def columns(one: Opened) -> list[str]:
    return one.frame.collect_schema().names()


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("t,x\n1,2.5\n2,3.5\n", None),
        ("t;x\n1;2.5\n2;3.5\n", "fields are separated by ';'"),
        ("t\tx\n1\t2.5\n2\t3.5\n", "fields are separated by tabs"),
        ("t|x\n1|2.5\n2|3.5\n", "fields are separated by '|'"),
        ("t x\n1 2.5\n2 3.5\n", "fields are separated by blanks"),
        ("  t     x \n   1   2.5\n  2   3.5\n", "fields are separated by blanks"),
        ('"t","x"\n"1","2.5"\n"2","3.5"\n', None),
        ("'t','x'\n'1','2.5'\n'2','3.5'\n", None),
        ('t, "x"\n1, "2.5"\n2, "3.5"\n', None),
        ("t , x \n1 , 2.5 \n2 , 3.5 \n", None),
        ("t,x\r\n1,2.5\r\n2,3.5\r\n", None),
        ("t,x\n1,2.5\n2,3.5", None),
        ("t,x\r1,2.5\r2,3.5\r", "lines end in a carriage return"),
        ("t,x,\n1,2.5,\n2,3.5,\n", "field 3 has neither name nor values"),
        ("t,x\n1,2.5,\n2,3.5,\n", "field 3 has neither name nor values"),
        ("t,x,\n1,2.5\n2,3.5\n", None),
        ("\n\nt,x\n1,2.5\n2,3.5\n\n\n", None),
        ("sep=;\nt;x\n1;2.5\n2;3.5\n", "comment line"),
        ("t;x\n1;2,5\n2;3,5\n", "decimal comma"),
        ('t,x\n1,"2,5"\n2,"3,5"\n', "decimal comma"),
        ("t x\n1 2,5\n2 3,5\n", "decimal comma"),
        ("t,x\n1,+2.5\n2,35e-1\n", None),
        ("t,x\n1,2.5\n2,3.5\n\x1a", "end of the file"),
    ],
)
def test_a_dialect_is_seen_in_the_text(opened, content, note):
    one = opened(content)
    assert columns(one) == ["t", "x"]
    assert rows(one) == [(1, 2.5), (2, 3.5)]
    assert one.frame.collect_schema() == {"t": pl.Int64, "x": pl.Float64}
    if note is None:
        assert one.notes == ()
    else:
        assert any(n.startswith("bars.csv: ") and note in n for n in one.notes)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "latin-1"])
def test_units_of_any_encoding_can_be_read(opened, encoding):
    one = opened("Zeit,T in °C,µ\n1,2.5,ä\n".encode(encoding))
    assert columns(one) == ["Zeit", "T in °C", "µ"] or encoding == "utf-16-be"
    assert rows(one) == [(1, 2.5, "ä")]


def test_a_byte_far_down_tells_the_encoding(opened):
    content = b"t,where\n" + b"1,here\n" * 20_000 + "2,Köln\n".encode("cp1252") + b"3,here\n" * 40_000
    one = opened(content)
    assert rows(one)[20_000] == (2, "Köln")
    assert any("Windows-1252" in note for note in one.notes)


def test_what_the_user_says_comes_before_what_is_seen(opened):
    assert rows(opened("a:b\n1:2\n", separator=":")) == [(1, 2)]
    assert rows(opened("a\tb c\n1\t2 3\n", separator="\\t")) == [(1, "2 3")]
    assert rows(opened("a,b c\n1;2 3\n", separator=" ")) == [("1;2", 3)]
    assert rows(opened("a;b\n1;1,234\n", decimal=",")) == [(1, 1.234)]
    assert rows(opened("a;b\n1;1,234\n", thousands=",")) == [(1, 1234)]
    assert rows(opened("a;b\n1;1.234,5\n", decimal=",", thousands=".")) == [(1, 1234.5)]
    assert rows(opened("a;b\n1;1'234.5\n", thousands="'")) == [(1, 1234.5)]
    assert rows(opened("a,b\n1,-999\n-999,2\n", null_values=("-999",))) == [(1, None), (None, 2)]
    assert rows(opened("a, b\n1, -999\n2, -999 \n", null_values=("-999",))) == [(1, None), (2, None)]


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        ({"separator": "::"}, "data.separator must be one character"),
        ({"separator": "5"}, "data.separator must be one character"),
        ({"decimal": "x"}, 'data.decimal must be "." or ","'),
        ({"thousands": "ab"}, "data.thousands must be one character"),
        ({"decimal": ",", "thousands": ","}, "cannot both be ','"),
        ({"header": 5}, "data.header is 5"),
        ({"header": -1}, "data.header is -1"),
        ({"skip": 9}, "data.skip is 9"),
        ({"names": ("a",)}, "data.names has 1 name"),
    ],
)
def test_what_the_user_says_must_be_possible(opened, reading, words):
    with pytest.raises(ValueError, match=r"^data\.") as caught:
        opened("t,x\n1,2\n", **reading)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lines_of_names_must_have_the_same_number_of_fields(opened):
    with pytest.raises(ValueError, match=r"data\.header is 2, and these lines of .* have 2 and 3 fields"):
        opened("a,b\n1,2,3\n4,5,6\n7,8,9\n", header=2, skip=0)


def test_a_text_that_ends_inside_a_character_is_no_utf_8(opened):
    assert rows(opened("t,x\n1,ä".encode()[:-1])) == [(1, "Ã")]


def test_decimal_commas_with_points_between_thousands(opened):
    one = opened("Datum;Wert;Menge\n02.01.2024;1.234,56;1.000\n03.01.2024;12,5;900\n04.01.2024;;1.234.567\n")
    assert rows(one) == [("02.01.2024", 1234.56, 1000), ("03.01.2024", 12.5, 900), ("04.01.2024", None, 1234567)]
    assert "bars.csv: fields are separated by ';', decimal comma" in one.notes
    assert any("points between thousands" in note for note in one.notes)


@pytest.mark.parametrize("blank", [" ", "\xa0", "\u202f"])
def test_decimal_commas_with_blanks_between_thousands(opened, blank):
    one = opened(f"t;x\n1;1{blank}234,5\n2;12{blank}345{blank}678,5\n3;4,5\n")
    assert rows(one) == [(1, 1234.5), (2, 12345678.5), (3, 4.5)]


def test_thousands_that_come_after_the_sample_are_thousands(opened):
    few = "".join(f"2024-01-02;{i % 900},5\n" for i in range(20_000))
    one = opened("t;x\n" + few + "2024-01-02;1.234,5\n" + few + few)
    assert rows(one)[20_000] == ("2024-01-02", 1234.5)
    assert one.frame.collect_schema()["x"] == pl.Float64


def test_a_column_with_decimal_points_among_decimal_commas_keeps_them(opened):
    assert rows(opened("epoch;x\n1704153600.0;2,5\n1704153600.5;3,5\n")) == rows(
        opened("epoch,x\n1704153600.0,2.5\n1704153600.5,3.5\n")
    )
    mixed = opened("t;x\n1;2,5\n2;3,5\n3;4.5\n")
    assert rows(mixed) == [(1, "2,5"), (2, "3,5"), (3, "4.5")]


@pytest.mark.parametrize("text", ["1,234", "1,234.5"])
def test_commas_that_may_stand_between_thousands_stay_text(opened, text):
    assert rows(opened(f't,x\n1,"{text}"\n2,"{text}"\n')) == [(1, text), (2, text)]


def test_numbers_that_are_names_or_too_large_stay_text(opened):
    one = opened(
        "symbol,code,station,ts,big\n000001,007,5,1704153600.123456789,18446744073709551615\n600000,7,6,1704153601.5,1\n"
    )
    assert rows(one)[0] == ("000001", "007", "5", "1704153600.123456789", "18446744073709551615")
    assert one.frame.collect_schema().dtypes() == [pl.String] * 5


def test_dates_and_clocks_of_digits_keep_what_they_say(opened):
    one = opened("date,clock,late\n20240102,000500,93000\n20240102,093000,93100\n")
    assert rows(one) == [(20240102, "000500", 93000), (20240102, "093000", 93100)]


def test_a_name_that_looks_like_a_missing_number_is_a_name(opened):
    one = opened("symbol,x\nNA,1\nTD,NA\n\nnull,null\nRY,2\n")
    assert rows(one) == [("NA", 1), ("TD", None), (None, None), ("null", None), ("RY", 2)]


def test_whole_numbers_that_turn_into_fractions_far_down_lose_nothing(opened):
    one = opened("t,x,y\n" + "1,2,9007199254740993\n" * 20_000 + "2,2.5,3\n" + "3,4,5\n" * 40_000)
    frame = one.frame.collect()
    assert frame["x"][20_000] == 2.5
    assert frame["y"][0] == 9007199254740993
    assert frame.height == 60_001


def test_one_odd_text_far_down_leaves_its_column_as_text_and_the_others_as_numbers(opened):
    one = opened("t,x,y\n" + "1,2,3.5\n" * 20_000 + '1,"1,234.5",3.5\n1,-,nan\n' + "1,2,3.5\n" * 40_000)
    frame = one.frame.collect()
    assert frame.schema == {"t": pl.Int64, "x": pl.String, "y": pl.Float64}
    assert frame["x"][20_000] == "1,234.5"
    assert math.isnan(frame["y"][20_001])


def test_many_columns_with_odd_texts_far_down_are_read(opened):
    names = [f"x{i}" for i in range(6)]
    odd = "".join(",".join("?" if i == j else "1" for i in range(6)) + "\n" for j in range(6))
    one = opened(",".join(names) + "\n" + "1,2,3,4,5,6\n" * 20_000 + odd + "1,2,3,4,5,6\n" * 40_000)
    assert [one.frame.collect()[name][20_000 + i] for i, name in enumerate(names)] == ["?"] * 6


def test_an_infinite_number_keeps_its_text(opened):
    assert rows(opened("t,x\n1,2\n2,1e400\n3,-Infinity\n")) == [(1, "2"), (2, "1e400"), (3, "-Infinity")]


def test_blank_lines_and_lines_of_separators_are_rows_without_values(opened):
    one = opened("t,x\n\n1,2\n,\n   \n2,3\n,\n\n")
    assert rows(one) == [(None, None), (1, 2), (None, None), (None, None), (2, 3)]
    assert one.first_line == 2


def test_a_header_or_comments_among_the_rows_leave_empty_rows_and_a_note(opened):
    one = opened("t,x\n1,2.5\nt,x\n2,3.5\n# pause, for, lunch\n3,4.5\n\ufefft,x\n4,5.5\n# the end\n")
    assert rows(one) == [(1, 2.5), (None, None), (2, 3.5), (None, None), (3, 4.5), (None, None), (4, 5.5)]
    assert "bars.csv: the header stands again in line 3 and 1 more: left out" in one.notes
    assert any("comments (#) stand among the rows in line 5 and 1 more" in note for note in one.notes)


def test_a_comment_below_a_table_of_text_is_no_row(opened):
    assert rows(opened("t,x,y\n2024-01-01,a,1\n2024-01-02,b,2\n# the end\n")) == [
        ("2024-01-01", "a", 1),
        ("2024-01-02", "b", 2),
    ]


def test_quotes_inside_a_text_mean_nothing(opened):
    assert rows(opened('t,x\n1,5 in\n2,5" pipe\n3,a\n')) == [(1, "5 in"), (2, '5" pipe'), (3, "a")]
    assert rows(opened("t,x\n1,O'Brien\n2,x\n")) == [(1, "O'Brien"), (2, "x")]
    assert rows(opened('t,x\n1,"a, ""b"""\n')) == [(1, 'a, "b"')]


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1), min_size=1))
@settings(max_examples=50, deadline=None)
def test_a_number_reads_as_exactly_as_its_text_alone(tmp_path_factory, values):
    texts = [repr(value) for value in values]
    path = tmp_path_factory.mktemp("exact") / "bars.csv"
    path.write_text("n,v\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)))
    frame = open_text(contents_of(path)[0], Reading()).frame.collect()
    column = frame["v"]
    if column.dtype == pl.Int64:
        assert column.to_list() == values
    else:
        exact = pl.Series(texts).cast(pl.Float64).to_numpy()
        assert np.array_equal(column.cast(pl.Float64).to_numpy(), exact)
        assert exact.tolist() == [float(value) for value in values]


SEPARATORS = (",", ";", "\t", "|", " ")
WORDS = st.sampled_from(["alpha", "Beta", "x_1", "wind speed", "°C", "a-b", "NA", "5m", "q"])
CELLS = st.floats(-1e12, 1e12, allow_nan=False).map(lambda x: round(x, 4))


@st.composite
def tables(draw):
    width = draw(st.integers(2, 5))
    names = draw(st.lists(WORDS, min_size=width, max_size=width, unique=True))
    height = draw(st.integers(1, 12))
    values = [[draw(CELLS) for _ in range(width)] for _ in range(height)]
    return names, values


@given(
    table=tables(),
    separator=st.sampled_from(SEPARATORS),
    quote=st.sampled_from(["", '"', "'"]),
    decimal=st.sampled_from([".", ","]),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    mark=st.booleans(),
    header=st.booleans(),
    ended=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-16", "cp1252"]),
)
@settings(max_examples=50, deadline=None)
def test_any_table_in_any_dialect_reads_back_equal(
    tmp_path_factory, table, separator, quote, decimal, newline, mark, header, ended, encoding
):
    names, values = table
    if decimal == "," and separator == "," and not quote:
        decimal = "."
    if separator == " " and not quote:
        names = [name.replace(" ", "_") for name in names]
    lines = [separator.join(f"{quote}{name}{quote}" for name in names)] if header else []
    for row in values:
        texts = [f"{value:.4f}".replace(".", decimal) for value in row]
        lines.append(separator.join(f"{quote}{text}{quote}" for text in texts))
    text = newline.join(lines) + (newline if ended else "")
    path = tmp_path_factory.mktemp("dialect") / "table.csv"
    path.write_bytes(text.encode("utf-8-sig" if mark and encoding == "utf-8" else encoding))
    one = open_text(contents_of(path)[0], Reading(names=None if header else tuple(names), header=None if header else 0))
    frame = one.frame.collect()
    assert frame.columns == names
    assert frame.height == len(values)
    got = frame.select(pl.all().cast(pl.Float64)).rows()
    assert [list(row) for row in got] == values
    assert one.first_line == (2 if header else 1)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data files are not here")
@pytest.mark.parametrize(
    ("place", "count", "first", "last"),
    [
        ("headers/alpaca_bars.csv", 1, ("XYZ", "2024-01-02 14:30:00+00:00", 100.0), (99.9, 100.2, 5321.0, 88.0, 100.12)),
        ("headers/binance_klines_ms_noheader.csv", 2, (1704067200000, 42000.1, 42010.0), (424000.1, 300, 5.1, 214000.2)),
        ("headers/databento_pretty.csv", 2, ("2024-01-02T00:00:00.000000000Z", 33, 1, 101), (16999.0, 9, "NQH4")),
        ("headers/databento_raw.csv", 2, (1704153600000000000, 33, 1, 101, 4800000000000), (4800250000000, 456)),
        ("headers/ett.csv", 1, ("2016-07-01 00:00:00", 5.8), (4.2, 1.3, 30.5)),
        ("headers/kaggle_btc.csv", 2, ("1704153600.0", 42000.1), (None, None, None, None, None)),
        ("headers/polygon_flat.csv", 1, ("XYZ", 4930, 200.29), (1704205800000000000, 129)),
        ("headers/stooq_daily.csv", 1, ("2024-01-02", 100, 101.5), (99.5, 101, 1200300)),
        ("headers/tradingview.csv", 1, (1704153600, 100.0, 101.5), (101.0, 1200300)),
        ("headers/yahoo_site.csv", 2, ("2024-01-02", 100.0), (None, None, None)),
        (
            "ett/ETTh1.csv",
            17_420,
            ("2016-07-01 00:00:00", 5.827000141143799),
            (3.7160000801086426, 1.462000012397766, 9.56700038909912),
        ),
        ("silverbox/SNLS80mV.csv", 131_072, (0.0057756, 0.0093978), (0.0096732, -0.0072247)),
        ("air_quality/beijing_pm25_uci381.csv", 43_824, (1, 2010, 1, 1, 0, None, -21), ("NW", 249.85, 0, 0)),
    ],
)
def test_shared_files_have_the_right_first_and_last_row(place, count, first, last):
    one = open_text(contents_of(SHARED / place)[0], Reading())
    frame = one.frame.collect()
    assert one.rows == frame.height == count
    assert frame.row(0)[: len(first)] == first
    ending = frame.row(-1)[frame.width - len(last) :]
    assert ending == last
