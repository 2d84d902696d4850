"""The doctor: what was understood of files, what is odd, which windows there would be, and whether training begins."""

import gzip
import json
from io import StringIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from rich.console import Console

from statewise.data.datasets import File
from statewise.data.doctor.as_json import as_json
from statewise.data.doctor.examination import examine
from statewise.data.doctor.losses import windows_without_setup
from statewise.data.doctor.page import print_page
from statewise.data.generators.market import market_bars, write_bars
from statewise.data.segments.gaps import Gap
from statewise.data.segments.missing import Missing

SHARED = Path(__file__).parents[4] / "shared" / "data"
KEYS = ["format", "columns", "series", "first_time", "last_time", "rows", "first_row", "last_row", "frequency", "zone"]
KEYS += ["findings", "windows", "refused"]


def walk(rows, seed=0):
    return 100 * np.exp(np.cumsum(np.random.default_rng(seed).normal(size=rows) * 1e-3))


def written(path, minutes, name="bars.csv", **more):
    """One-minute bars at these minutes."""
    close = walk(len(minutes))
    stamps = np.datetime64("2024-01-02T10:00", "us") + np.asarray(minutes).astype("timedelta64[m]")
    frame = pl.DataFrame({"time": stamps, "close": close, "volume": np.arange(len(close)) % 7 + 1, **more})
    frame = frame.with_columns(pl.col("time").dt.to_string("%Y-%m-%d %H:%M:%S"))
    frame.write_csv(path / name)
    return frame


def examined(folder, path="bars.csv", dtype=torch.float32, **keys):
    return examine({"path": path, "folder": str(folder), **keys}, dtype=dtype, further=lambda module: None)


def told(folder, path="bars.csv", **keys):
    """What the doctor says, as JSON."""
    page = json.loads(json.dumps(as_json(examined(folder, path, **keys)), allow_nan=False))
    assert list(page) == KEYS
    return page


def shown(found):
    """What the doctor says, as a page."""
    to = Console(width=160, record=True, file=StringIO())
    print_page(to, found)
    return to.export_text()


def kinds(page):
    return {finding["id"]: finding for finding in page["findings"]}


def test_a_healthy_file_is_understood_and_nothing_is_odd(tmp_path):
    frame = written(tmp_path, range(400))

    page = told(tmp_path)

    assert page["refused"] is None
    assert (page["format"], page["rows"], page["series"], page["frequency"]) == ("CSV", 400, [], "1 minute")
    assert page["zone"] == "not given, taken as UTC"
    assert (page["first_time"], page["last_time"]) == ("2024-01-02T10:00:00Z", "2024-01-02T16:39:00Z")
    first = {"time": "2024-01-02T10:00:00Z", "close": frame["close"][0], "volume": 1}
    assert page["first_row"] == first
    assert [(column["name"], column["role"], column["type"]) for column in page["columns"]] == [
        ("time", "time", "String"),
        ("close", "number", "Float64"),
        ("volume", "number", "Int64"),
    ]
    assert page["columns"][1]["min"] == frame["close"].min()
    assert page["columns"][2]["max"] == 7
    assert page["findings"] == []
    assert page["windows"] == {"train": 220, "val": 40, "test": 80}


def test_the_windows_are_those_of_training(tmp_path):
    gone = walk(500)
    gone[200:240] = np.nan
    written(tmp_path, np.delete(np.arange(560), np.r_[100:160]), gone=gone)
    module = File(path="bars.csv", folder=str(tmp_path), window=24, horizon=3, missing=Missing("fill", 5))
    module.setup()

    page = told(tmp_path, window=24, horizon=3, missing=Missing("fill", 5))

    assert page["windows"] == {name: module.n_windows(name) for name in ("train", "val", "test")}
    lost = kinds(page)
    segmented = lost["windows-lost-to-gaps"], lost["windows-lost-to-missing"], lost["windows-purged"]
    # A cut costs 26 windows; of 40 missing values 5 are filled, the other 35 rows are a cut of 61.
    assert [finding["count"] for finding in segmented] == [26, 61, 2]
    assert lost["gaps"]["count"] == 1
    assert lost["missing-values"]["message"] == "gone: 40 values missing (8 %), at most 40 in a row"


def test_without_a_window_in_a_part_the_windows_are_counted_all_the_same(tmp_path):
    written(tmp_path, range(400))
    page = told(tmp_path, window=390)
    assert page["refused"].startswith("no window fits into the train part")
    assert page["windows"] == {"train": 0, "val": 0, "test": 10}


def test_the_count_without_windows_in_a_part_is_that_of_a_module_with_some(tmp_path):
    written(tmp_path, np.delete(np.arange(460), np.r_[100:160]))
    module = File(path="bars.csv", folder=str(tmp_path), window=16, stride=3, gap=Gap("forward_fill", max_fill=10))
    module.setup()
    counted = windows_without_setup(File(path="bars.csv", folder=str(tmp_path), window=16, stride=3))
    assert {name: part.windows for name, part in counted.parts.items()} == {
        name: module.n_windows(name) for name in ("train", "val", "test")
    }
    # With a stride, what is lost is never below nothing.
    assert all(part.lost_to_gaps >= 0 for part in counted.parts.values())


def test_repeated_rows_are_refused_and_the_rest_is_told(tmp_path):
    frame = written(tmp_path, range(200))
    pl.concat([frame, frame[5:8]]).write_csv(tmp_path / "bars.csv")

    page = told(tmp_path)

    assert "data.duplicates=first" in page["refused"]
    assert [(f["id"], f["severity"], f["count"]) for f in page["findings"]] == [("repeated-rows", "error", 3)]
    assert (page["rows"], page["first_time"]) == (200, "2024-01-02T10:00:00Z")

    page = told(tmp_path, duplicates="first")
    assert page["refused"] is None
    assert [(f["id"], f["severity"]) for f in page["findings"]] == [("repeated-rows", "info")]


def test_impossible_bars_that_are_refused_leave_the_rest_to_be_told(tmp_path):
    times = [f"2024-01-02T{10 + minute // 60}:{minute % 60:02d}:00Z" for minute in range(200)]
    lines = ["time,high,low,close", *(f"{time},{2 if row != 9 else 0},1,1.5" for row, time in enumerate(times))]
    (tmp_path / "bars.csv").write_text("\n".join(lines) + "\n")

    page = told(tmp_path, impossible_bars="error")

    assert "data.impossible_bars=keep" in page["refused"]
    first = page["findings"][0]
    assert (first["id"], first["severity"], first["count"]) == ("low-above-high", "error", 1)
    assert (page["rows"], page["first_time"]) == (200, "2024-01-02T10:00:00Z")
    assert told(tmp_path)["refused"] is None


def test_a_local_time_that_does_not_exist_names_its_key(tmp_path):
    lines = ["time,close", *(f"2024-03-31 0{hour}:00:00,{hour}" for hour in range(6))]
    (tmp_path / "bars.csv").write_text("\n".join(lines))
    page = told(tmp_path, timezone="Europe/Berlin")
    assert "row 3 (line 4)" in page["refused"]


def test_a_split_inside_a_day_needs_a_zone(tmp_path):
    written(tmp_path, range(400))
    split = ["2024-01-02T14:00", "2024-01-02T15:00"]
    page = told(tmp_path, split=split)
    assert page["rows"] == 400
    assert "data.timezone" in page["refused"]
    page = told(tmp_path, split=split, timezone="Europe/Berlin")
    assert (page["refused"], page["first_time"]) == (None, "2024-01-02T09:00:00Z")
    assert page["zone"] == "Europe/Berlin (data.timezone)"


def test_a_policy_that_refuses_gaps_makes_them_an_error(tmp_path):
    written(tmp_path, [*range(200), *range(300, 500)])
    page = told(tmp_path, gap=Gap("error"))
    assert kinds(page)["gaps"]["severity"] == "error"
    assert page["windows"]["train"] is None


def test_daily_bars_are_told_which_gap_to_cross(tmp_path):
    days = np.arange(np.datetime64("2020-01-01"), np.datetime64("2022-01-01"))
    days = days[(days.astype(int) + 3) % 7 < 5]
    pl.DataFrame({"date": days, "close": walk(len(days))}).write_csv(tmp_path / "bars.csv")

    page = told(tmp_path)
    assert page["frequency"] == "1 day (weekdays)"
    assert page["refused"].startswith("no window fits")
    assert "data.max_gap=3d" in kinds(page)["gaps"]["remedy"]

    page = told(tmp_path, max_gap="3d")
    assert (page["refused"], page["findings"]) == (None, [])


def test_float32_says_which_changes_it_does_not_see_and_float64_has_none(tmp_path):
    written(tmp_path, range(400), counter=1e6 * (np.arange(400) >= 200) + 1e-3 * np.arange(400))
    page = told(tmp_path)
    lost = kinds(page)["lost-to-rounding"]
    assert lost["message"].startswith("counter: float32 cannot tell ")
    assert "hardware.precision=64-true" in lost["remedy"]
    page = told(tmp_path, dtype=torch.float64)
    assert "lost-to-rounding" not in kinds(page)


def test_expressions_and_forward_filled_rows_are_examined_too(tmp_path):
    written(tmp_path, np.delete(np.arange(400), [50, 51]))
    keys = {"features": ["log_return(close)", "zscore(volume, 20)"], "targets": ["log_return(close, 3)"]}
    page = told(tmp_path, **keys, gap=Gap("forward_fill"))
    assert page["refused"] is None
    assert page["rows"] == 398
    assert kinds(page)["gaps"]["remedy"].startswith("those of at most 24 absent rows")


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "dbn"])
def test_market_bars_read_alike_in_every_format(tmp_path, kind):
    if kind == "dbn":
        pytest.importorskip("databento_dbn")
    frame = market_bars(0, 0.05, bars=300, instruments=2).frame
    if kind == "csv.gz":
        write_bars(frame, tmp_path / "bars.csv")
        (tmp_path / "bars.csv.gz").write_bytes(gzip.compress((tmp_path / "bars.csv").read_bytes()))
        (tmp_path / "bars.csv").unlink()
    else:
        write_bars(frame, tmp_path / f"bars.{kind}")

    page = told(tmp_path, f"bars.{kind}", window=16)

    assert page["refused"] is None
    assert (page["rows"], page["frequency"], page["series"]) == (600, "1 minute", frame["symbol"].unique().sort().to_list())
    assert {finding["severity"] for finding in page["findings"]} <= {"info"}
    ordered = frame.sort("symbol", "ts")
    assert page["first_row"]["close"] == pytest.approx(ordered["close"][0])
    assert page["last_row"]["close"] == pytest.approx(ordered["close"][-1])
    assert page["first_time"] == ordered["ts"].min().strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_folder_and_a_pattern_are_read_as_one(tmp_path):
    for day, name in ((0, "a"), (1440, "b")):
        (tmp_path / f"symbol={name}").mkdir()
        written(tmp_path, np.arange(200) + day, name=f"symbol={name}/bars.csv")

    whole = told(tmp_path, ".", window=16)

    assert (whole["rows"], whole["series"]) == (400, ["a", "b"])
    assert told(tmp_path, "symbol=*/*.csv", window=16) == whole


def test_the_page_has_columns_what_is_odd_and_windows(tmp_path):
    volume = np.arange(400) % 5
    written(tmp_path, [*range(200), *range(300, 500)], flat=np.ones(400), volume=volume)

    page = shown(examined(tmp_path))

    assert "bars.csv: 400 rows" in page
    assert '"time", times, zone: not given, taken as UTC' in page
    assert "frequency         1 minute" in page
    assert "constant-column" in page
    assert "leave flat out of data.features" in page
    assert "1 gap in time, 1 hour 41 minutes from 2024-01-02 13:19:00 to 2024-01-02 15:00:00" in page
    assert "lost to gaps" in page
    assert "all 2 runs of rows are longer" in page
    assert page.rstrip().endswith("training would begin")


def test_the_page_of_a_file_without_times_says_so(tmp_path):
    pl.DataFrame({"u": walk(300), "y": walk(300, 1)}).write_csv(tmp_path / "bars.csv")
    page = shown(examined(tmp_path))
    assert "no time column: rows are taken in the order of the file" in page
    assert "row 299" in page
    assert "odd               nothing" in page
    assert told(tmp_path)["first_row"] == {"u": walk(300)[0], "y": walk(300, 1)[0]}


def test_the_page_says_how_many_rows_are_too_few(tmp_path):
    written(tmp_path, range(50))
    page = shown(examined(tmp_path))
    assert "each needs 61 rows without a gap; the rows are one run of 50, 11 too few" in page
    assert "training would refuse: the last line says why" in page
    written(tmp_path, [*range(20), *range(40, 70)])
    assert "2 of 2 runs of rows are shorter and in none, the longest lacks 31 rows" in shown(examined(tmp_path))


def test_the_page_of_many_series_shows_twenty(tmp_path):
    one = written(tmp_path, range(40))
    pl.concat([one.with_columns(symbol=pl.lit(f"S{k:02d}")) for k in range(25)]).write_csv(tmp_path / "bars.csv")
    page = shown(examined(tmp_path, window=4))
    assert "S19" in page
    assert "S20" not in page
    assert "and 5 more" in page


def test_the_page_of_many_oddities_shows_forty(tmp_path):
    written(tmp_path, range(400), **{f"c{k}": np.ones(400) for k in range(45)})
    assert "and 5 more: --json has them all" in shown(examined(tmp_path))


# The files of the shared folder: name -> (format, rows, first and last time, series, first and last row in part).
@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "ett/ETTh1.csv": (
            17_420, "2016-07-01T00:00:00Z", "2018-06-26T19:00:00Z", [], {"OT": 30.5310001373291}, {"OT": 9.56700038909912},
        ),
        "ett/ETTh2.csv": (17_420, "2016-07-01T00:00:00Z", "2018-06-26T19:00:00Z", [], {}, {}),
        "air_quality/beijing_pm25_uci381.csv": (
            43_824, "2010-01-01T00:00:00Z", "2014-12-31T23:00:00Z", [], {"pm2.5": None, "DEWP": -21}, {"pm2.5": 12, "Ir": 0},
        ),
        "silverbox/SNLS80mV.csv": (131_072, None, None, [], {"V1": 0.0057756}, {"V2": -0.0072247}),
        "headers/alpaca_bars.csv": (1, "2024-01-02T14:30:00Z", "2024-01-02T14:30:00Z", ["XYZ"], {"vwap": 100.12}, {}),
        "headers/binance_klines_ms_noheader.csv": (
            2, "2024-01-01T00:00:00Z", "2024-01-01T00:01:00Z", [], {"open": 42000.1}, {"close": 42011.0},
        ),
        "headers/databento_pretty.csv": (
            2, "2024-01-02T00:00:00Z", "2024-01-02T00:00:00Z", ["ESH4", "NQH4"], {"symbol": "ESH4"}, {"symbol": "NQH4"},
        ),
        "headers/databento_raw.csv": (
            2, "2024-01-02T00:00:00Z", "2024-01-02T00:01:00Z", ["101"], {"open": 4800}, {"open": None, "high": 4800.5},
        ),
        "headers/ett.csv": (1, "2016-07-01T00:00:00Z", "2016-07-01T00:00:00Z", [], {"OT": 30.5}, {"HUFL": 5.8}),
        "headers/kaggle_btc.csv": (
            2, "2024-01-02T00:00:00Z", "2024-01-02T00:01:00Z", [], {"Open": 42000.1}, {"Open": None},
        ),
        "headers/polygon_flat.csv": (
            1, "2024-01-02T14:30:00Z", "2024-01-02T14:30:00Z", ["XYZ"], {"volume": 4930}, {"transactions": 129},
        ),
        "headers/stooq_daily.csv": (1, "2024-01-02T00:00:00Z", "2024-01-02T00:00:00Z", [], {"Volume": 1_200_300}, {}),
        "headers/tradingview.csv": (1, "2024-01-02T00:00:00Z", "2024-01-02T00:00:00Z", [], {"close": 101.0}, {}),
        "headers/yahoo_site.csv": (
            2, "2024-01-02T00:00:00Z", "2024-01-03T00:00:00Z", [], {"Adj Close": 98.7}, {"Adj Close": None},
        ),
        "dbn/XNAS.ITCH/test_data.ohlcv-1h.dbn.zst": (
            4, "2020-12-28T09:00:00Z", "2020-12-28T12:00:00Z", ["NVDA"], {"open": 521.0, "volume": 308}, {"close": 521.8},
        ),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_shared_files_are_understood(name, expected):
    path = SHARED / name
    if not path.is_file():
        pytest.skip("the shared files are not here")
    if name.startswith("dbn/"):
        pytest.importorskip("databento_dbn")
    rows, first_time, last_time, series, first, last = expected

    found = examine({"path": str(path), "cache": "off"}, dtype=torch.float32, further=lambda _: None)
    page = json.loads(json.dumps(as_json(found), allow_nan=False))

    assert (page["rows"], page["first_time"], page["last_time"], page["series"]) == (rows, first_time, last_time, series)
    assert {key: page["first_row"][key] for key in first} == first
    assert {key: page["last_row"][key] for key in last} == last
    assert "error" not in {finding["severity"] for finding in page["findings"]}
    if rows > 1000:
        assert page["refused"] is None
        assert {finding["severity"] for finding in page["findings"]} <= {"info"}
        assert len(page["findings"]) <= 4
    else:
        assert page["refused"].startswith("no window fits into")


def test_the_shared_bars_of_databento_are_understood():
    pytest.importorskip("databento_dbn")
    files = sorted((SHARED / "dbn").glob("*/*.dbn.zst"))
    if not files:
        pytest.skip("the shared files are not here")
    for path in files:
        page = told(path.parent, path.name)
        assert page["format"].startswith("Databento DBN 3, ")
        assert (page["zone"], len(page["series"]) > 0, 1 <= page["rows"] <= 4) == ("given in the file", True, True)
        assert page["first_row"]["ts_event"] == page["first_time"] <= page["last_time"] == page["last_row"]["ts_event"]
        assert {finding["severity"] for finding in page["findings"]} <= {"info"}, path


def test_a_file_whose_time_nobody_can_read_is_seen_as_far_as_it_goes(tmp_path):
    (tmp_path / "bars.csv").write_text("date,close,note\n02/03/2024,1,a\n03/03/2024,2,b\n")
    found = examined(tmp_path)
    if found.refused.startswith("data.path"):
        assert "data.day_first" in found.refused
    page = told(tmp_path)
    assert (page["format"], page["rows"]) == ("CSV", 2)
    assert [(column["name"], column["role"]) for column in page["columns"]][1:] == [("close", "number"), ("note", "left out")]

    (tmp_path / "bars.csv").write_text("time,close\n10:00:00,1\n10:01:00,2\n")
    page = told(tmp_path)
    assert "holds times of day and no column holds dates" in page["refused"]
    assert (page["format"], page["rows"]) == ("CSV", 2)


def test_a_key_that_no_data_set_takes_is_refused_before_anything_is_read(tmp_path):
    found = examined(tmp_path, window=0)
    assert found.refused.startswith("data.window must be at least 1")
    assert (found.formats, shown(found)) == ((), "")
