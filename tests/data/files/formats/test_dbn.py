import datetime
import gzip
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.files.formats.content import contents_of
from statewise.data.files.formats.dbn import BAR, TRADE, open_dbn
from statewise.data.files.formats.dbn_writer import write_dbn
from statewise.data.files.raw import Opened
from statewise.data.tables.table import read_table

databento_dbn = pytest.importorskip("databento_dbn")
SHARED = Path(__file__).parents[5] / "shared" / "data" / "dbn"
DAY = datetime.date(2024, 1, 2)
NOON = 1_704_196_800 * 10**9  # of that day
UNDEFINED = 2**63 - 1


def metadata(schema: str | None = "ohlcv-1m", mappings=None, *, stypes=("raw_symbol", "instrument_id"), **more) -> bytes:
    """`mappings`: key -> (first day, day after the last, symbol) of each interval."""
    spans = []
    for key, intervals in (mappings or {}).items():
        each = [SimpleNamespace(start_date=first, end_date=end, symbol=symbol) for first, end, symbol in intervals]
        spans.append(SimpleNamespace(raw_symbol=key, intervals=each))
    return databento_dbn.Metadata(
        dataset="XNAS.ITCH",
        start=NOON,
        stype_in=databento_dbn.SType.from_str(stypes[0]),
        stype_out=databento_dbn.SType.from_str(stypes[1]),
        schema=None if schema is None else databento_dbn.Schema.from_str(schema),
        mappings=spans,
        **more,
    ).encode()


def bar(instrument: int = 1, minute: int = 0, *, publisher=2, rtype=33, close: int = 10**9, volume: int = 7) -> bytes:
    stamp = NOON + minute * 60 * 10**9
    return np.array([(14, rtype, publisher, instrument, stamp, 10**9, 2 * 10**9, 1, close, volume)], BAR).tobytes()


def days(first: int, end: int) -> tuple[datetime.date, datetime.date]:
    return DAY + datetime.timedelta(first), DAY + datetime.timedelta(end)


@pytest.fixture
def opened(tmp_path):
    def write(stored: bytes, name: str = "bars.dbn") -> Opened:
        (tmp_path / name).write_bytes(stored)
        (content,) = contents_of(tmp_path / name)
        return open_dbn(content)

    return write


@pytest.fixture
def refusal(opened):
    def refuse(stored: bytes) -> str:
        with pytest.raises(ValueError, match=r"^data\.path: .*bars\.dbn") as caught:
            opened(stored)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refuse


def decoded(stored: bytes) -> list:
    decoder = databento_dbn.DBNDecoder()
    decoder.write(stored)
    return decoder.decode()[1:]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data files are not here")
@pytest.mark.parametrize("name", sorted(str(p.relative_to(SHARED)) for p in SHARED.rglob("*.dbn.zst")))
def test_every_file_of_databento_reads_as_its_own_decoder_does(name):
    (content,) = contents_of(SHARED / name)
    frame = open_dbn(content).frame.collect()
    records = decoded(content.source())
    assert len(frame) == len(records)
    assert frame["ts_event"].to_physical().to_list() == [record.ts_event for record in records]
    assert frame["ts_event"].dtype == pl.Datetime("ns", "UTC")
    assert frame["instrument_id"].to_list() == [record.instrument_id for record in records]
    assert frame["publisher_id"].to_list() == [record.publisher_id for record in records]
    prices = ("price",) if "trades" in name else ("open", "high", "low", "close")
    for price in prices:
        assert frame[price].to_list() == [getattr(record, price) / 1e9 for record in records]
    count = "size" if "trades" in name else "volume"
    assert frame[count].to_list() == [getattr(record, count) for record in records]
    symbol = {"EQUS.MINI": "QQQ", "GLBX.MDP3": "ESH1", "OPRA.PILLAR": "AAPL  250221C00250000", "XNAS.ITCH": "NVDA"}
    assert all(text.startswith(symbol[name.split("/")[0]]) for text in frame["symbol"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data files are not here")
@pytest.mark.parametrize("name", sorted(str(p.relative_to(SHARED)) for p in SHARED.rglob("*.dbn.zst")))
def test_every_file_of_databento_becomes_a_table(name):
    table = read_table(name, folder=SHARED)
    assert (table.time, table.series) == ("ts_event", "symbol")
    trades = "trades" in name
    assert table.columns == (("price", "size") if trades else ("open", "high", "low", "close", "volume"))
    assert len(table.rows.series) == (4 if "OPRA" in name else 1)


def test_a_missing_price_and_a_missing_time_are_null(opened):
    stored = metadata() + bar(close=UNDEFINED) + bar(minute=1)
    frame = opened(stored).frame.collect()
    assert frame["close"].to_list() == [None, 1.0]
    raw = np.frombuffer(bar(), BAR).copy()
    raw["ts_event"] = 2**64 - 1
    assert opened(metadata() + raw.tobytes()).frame.collect()["ts_event"].to_list() == [None]


def test_nanoseconds_and_large_volumes_are_exact(opened):
    raw = np.frombuffer(bar(volume=2**63 + 1), BAR).copy()
    raw["ts_event"] = NOON + 123_456_789
    frame = opened(metadata() + raw.tobytes()).frame.collect()
    assert frame["ts_event"].to_physical().to_list() == [NOON + 123_456_789]
    assert frame["volume"].to_list() == [2**63 + 1]


def test_a_number_means_a_symbol_on_its_days_only(opened):
    mapped = {"OLD": [(*days(0, 1), "1")], "NEW": [(*days(1, 2), "1")], "OTHER": [(*days(0, 5), "2")]}
    day = 24 * 60
    stored = metadata(mappings=mapped) + bar(1) + bar(1, day) + bar(2, day) + bar(1, 2 * day) + bar(3)
    one = opened(stored)
    assert one.frame.collect()["symbol"].to_list() == ["OLD", "NEW", "OTHER", "1", "3"]
    assert any("no symbol is mapped in 2 rows" in note for note in one.notes)


def test_a_continuous_symbol_is_one_series_of_several_instruments(opened):
    mapped = {"ES.c.0": [(*days(0, 1), "1"), (*days(1, 9), "2")]}
    one = opened(metadata(mappings=mapped, stypes=("continuous", "instrument_id")) + bar(1) + bar(2, 24 * 60))
    assert one.frame.collect()["symbol"].to_list() == ["ES.c.0", "ES.c.0"]
    assert any("several instruments follow one another under ES.c.0" in note for note in one.notes)


def test_a_parent_symbol_is_a_series_for_each_instrument(opened):
    mapped = {"ES.FUT": [(*days(0, 9), "1"), (*days(0, 9), "2")]}
    one = opened(metadata(mappings=mapped, stypes=("parent", "instrument_id")) + bar(1) + bar(2))
    assert sorted(one.frame.collect()["symbol"].to_list()) == ["ES.FUT 1", "ES.FUT 2"]


def test_a_mapping_from_numbers_to_symbols_is_read_backwards(opened):
    mapped = {"1": [(*days(0, 9), "NVDA")]}
    one = opened(metadata(mappings=mapped, stypes=("instrument_id", "raw_symbol")) + bar(1))
    assert one.frame.collect()["symbol"].to_list() == ["NVDA"]


def test_a_file_that_maps_nothing_has_no_symbol(opened, tmp_path):
    assert "symbol" not in opened(metadata() + bar()).frame.collect_schema()
    opened(metadata() + bar(1) + bar(2) + bar(1, 1))
    assert read_table("bars.dbn", folder=tmp_path).series == "instrument_id"


def test_venues_that_report_the_same_symbol_are_series_of_their_own(opened):
    mapped = {"QQQ": [(*days(0, 9), "1")]}
    one = opened(metadata(mappings=mapped) + bar(publisher=20) + bar(publisher=31))
    assert one.frame.collect()["symbol"].to_list() == ["QQQ (publisher 20)", "QQQ (publisher 31)"]
    assert any("several venues report the same symbol" in note for note in one.notes)
    unmapped = opened(metadata() + bar(publisher=20) + bar(publisher=31))
    assert unmapped.frame.collect()["symbol"].to_list() == ["1 (publisher 20)", "1 (publisher 31)"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_all_versions_are_read(opened, version):
    stored = metadata(mappings={"QQQ": [(*days(0, 9), "1")]}, version=version) + bar() + bar(minute=1)
    assert stored[3] == version
    one = opened(stored)
    assert one.format == f"Databento DBN {version}, ohlcv-1m"
    assert one.frame.collect()["symbol"].to_list() == ["QQQ", "QQQ"]


@pytest.mark.parametrize(("pack", "name"), [(zstandard.compress, "zstd"), (gzip.compress, "gzip")])
def test_a_packed_file_reads_like_the_plain_one(opened, pack, name):
    stored = metadata() + bar() + bar(minute=1)
    one = opened(pack(stored))
    assert one.format == f"Databento DBN 3, ohlcv-1m, {name}"
    assert one.frame.collect().equals(opened(stored).frame.collect())


def test_a_time_of_sending_behind_each_record_is_passed_over(opened):
    sent = b"".join(bytes([16]) + bar(minute=m)[1:] + bytes(8) for m in range(3))
    frame = opened(metadata(ts_out=True) + sent).frame.collect()
    assert frame["ts_event"].to_physical().diff().to_list() == [None, 60 * 10**9, 60 * 10**9]
    assert frame["close"].to_list() == [1.0, 1.0, 1.0]


def test_trades_have_a_price_and_a_size(opened):
    records = np.zeros(2, TRADE)
    records["length"], records["ts_event"], records["price"], records["size"] = 12, NOON, (10**9, UNDEFINED), (3, 4)
    one = opened(metadata("trades") + records.tobytes())
    assert one.frame.select("price", "size").collect().rows() == [(1.0, 3), (None, 4)]
    assert any("of each trade the price and the size are read" in note for note in one.notes)


def test_a_file_without_records_has_no_rows(opened):
    one = opened(metadata())
    assert (one.rows, one.format) == (0, "Databento DBN 3, ohlcv-1m")
    assert "close" in one.frame.collect_schema()


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (metadata("mbp-1") + bar(), 'holds records of the schema "mbp-1": only bars and trades are read, ask Databento for'),
        (metadata(None) + bar(rtype=22), "holds other records (type [22]), as a live recording does"),
        (metadata(None) + bar() + bar(rtype=34), "holds records of several kinds"),
        (metadata(None) + bar() + bytes([20]) + bytes(79), "holds records of several kinds"),
        (metadata() + bar() + bar()[:30], "ends inside record 2: fetch the file again"),
        (metadata() + bar()[:30], "ends inside record 1"),
        (metadata() + bar()[:1], "holds other records (type [])"),
        (metadata()[:40], "ends inside its metadata: fetch the file again"),
        (b"DBN\x03", "ends inside its metadata"),
        (b"DBN\x03\x05\x00\x00\x00hello", "has metadata that cannot be read"),
    ],
)
def test_what_cannot_be_read_ends_in_one_line(refusal, stored, words):
    assert words in refusal(stored)


def test_without_the_package_it_is_said_how_to_install_it(refusal, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "databento_dbn", None)
    assert "pip install 'statewise[dbn]'" in refusal(b"DBN\x03" + bytes(100))
    with pytest.raises(ValueError, match=r"pip install 'statewise\[dbn\]'"):
        write_dbn(pl.DataFrame({"symbol": []}), tmp_path / "a.dbn")


def bars(rows) -> pl.DataFrame:
    prices = {name: [row[i] for row in rows] for i, name in enumerate(("open", "high", "low", "close"))}
    return pl.DataFrame(
        {
            "ts": pl.Series([NOON + 60 * 10**9 * i for i in range(len(rows))]).cast(pl.Datetime("ns")),
            "symbol": [f"S{i % 3}" for i in range(len(rows))],
            **{name: pl.Series(values, dtype=pl.Float64) for name, values in prices.items()},
            "volume": pl.Series([row[4] for row in rows], dtype=pl.Int64),
        }
    )


PRICE = st.integers(-(10**15), 10**15).map(lambda price: price / 1e9) | st.none()


@given(st.lists(st.tuples(PRICE, PRICE, PRICE, PRICE, st.integers(0, 2**62)), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_written_bars_read_back_and_the_decoder_agrees(tmp_path_factory, rows):
    frame = bars(rows)
    path = tmp_path_factory.mktemp("dbn") / "bars.dbn.zst"
    write_dbn(frame, path)
    (content,) = contents_of(path)
    read = open_dbn(content).frame.collect()
    assert read["ts_event"].dt.replace_time_zone(None).to_list() == frame["ts"].to_list()
    for name in ("symbol", "open", "high", "low", "close", "volume"):
        assert read[name].to_list() == frame[name].to_list()
    records = decoded(content.source())
    assert [record.volume for record in records] == frame["volume"].to_list()
    assert [record.close == UNDEFINED for record in records] == frame["close"].is_null().to_list()


def test_written_files_say_which_symbols_they_hold(tmp_path):
    write_dbn(bars([(1, 1, 1, 1, 1)] * 4), tmp_path / "bars.dbn")
    written = databento_dbn.Metadata.decode((tmp_path / "bars.dbn").read_bytes())
    assert (str(written.schema), written.symbols) == ("ohlcv-1m", ["S0", "S1", "S2"])
    assert written.mappings["S1"] == [{"start_date": DAY, "end_date": DAY + datetime.timedelta(1), "symbol": "2"}]
