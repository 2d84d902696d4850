import logging
import os
import threading
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from statewise.data import datamodule, datasets
from statewise.data.datasets import File
from statewise.data.preparation import cache, kept
from statewise.data.preparation.scaling import StandardScaler
from statewise.data.segments.cut import Segments
from statewise.data.segments.gaps import Gap
from statewise.data.segments.missing import Missing
from statewise.data.source import Source
from statewise.data.tables.checked import RawColumns
from statewise.data.windows.folds import Folds

PARTS = ("train", "val", "test")


@pytest.fixture
def folder(tmp_path):
    """Two series with gaps in time and values, as Parquet; and one, as Parquet and as text."""
    random = np.random.default_rng(0)
    rows = 400
    minutes = np.arange(rows) + np.where(np.arange(rows) > 250, 45, 0)
    stamps = np.datetime64("2024-01-01", "ns") + minutes * np.timedelta64(1, "m")
    frames = []
    for name in ("A", "B"):
        values = {f"x{i}": random.normal(size=rows).cumsum() for i in range(10)}
        values["x3"][60:62] = np.nan
        frames.append(pl.DataFrame({"ts": stamps, "symbol": [name] * rows, **values, "flat": np.full(rows, 2.0)}))
    pl.concat(frames).with_columns(pl.col("x3").fill_nan(None)).write_parquet(tmp_path / "two.parquet")
    frames[0].drop("symbol").write_csv(tmp_path / "one.csv")
    frames[0].drop("symbol").write_parquet(tmp_path / "one.parquet", row_group_size=100)
    return tmp_path


def module(folder: Path, path: str = "two.parquet", *, dtype=torch.float32, window: int = 8, **how) -> File:
    made = File(path=path, folder=str(folder), window=window, **{"cache": "on", "cache_folder": "cache", **how})
    made.dtype = dtype
    return made


def change(folder: Path) -> None:
    pl.read_parquet(folder / "two.parquet").with_columns(flat=3.0).write_parquet(folder / "two.parquet")


def ready(*arguments, **how) -> File:
    made = module(*arguments, **how)
    made.setup()
    return made


def assert_same(one: File, other: File) -> None:
    first, second = one.prepared, other.prepared
    assert first.notes == second.notes
    assert torch.equal(first.scaled.view(torch.uint8), second.scaled.view(torch.uint8))
    assert first.scaled.is_contiguous()
    assert second.scaled.is_contiguous()
    assert first.scaler.equals(second.scaler)
    assert (first.scaler.constant, first.scaler.without_values) == (second.scaler.constant, second.scaler.without_values)
    assert first.rows.series == second.rows.series
    np.testing.assert_array_equal(first.rows.offsets, second.rows.offsets)
    np.testing.assert_array_equal(first.rows.times, second.rows.times)
    for field in Segments.__dataclass_fields__:
        if field != "observed":
            np.testing.assert_array_equal(getattr(first.segments, field), getattr(second.segments, field))
    for field in Source.__dataclass_fields__:
        if field != "table":
            assert getattr(first.source, field) == getattr(second.source, field)
    tables = first.source.table, second.source.table
    assert tables[0].understood == tables[1].understood
    assert [(t.time, t.series, t.columns, t.notes) for t in tables[:1]] == [
        (t.time, t.series, t.columns, t.notes) for t in tables[1:]
    ]
    for part in PARTS:
        np.testing.assert_array_equal(first.part(part).starts, second.part(part).starts)
        for answer, again in zip(one.last_step(part), other.last_step(part), strict=True):
            assert torch.equal(answer, again)
    for batch, again in zip(one.train_dataloader(), other.train_dataloader(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, again, strict=True))


@pytest.fixture
def reads(monkeypatch):
    """How often files were opened as tables."""
    count: list[str] = []
    read = datasets.read_table
    monkeypatch.setattr(datasets, "read_table", lambda *a, **k: count.append("read") or read(*a, **k))
    return count


WAYS = {
    "as it is": {},
    "one series": {"path": "one.parquet"},
    "text": {"path": "one.csv"},
    "float64": {"dtype": torch.float64},
    "targets apart": {"features": ["x0", "x1", "x5"], "targets": ["x5", "x3", "x0"]},
    "all steps": {"supervision": "all", "targets": ["x3", "x7", "x9"]},
    "streams": {"sampling": "contiguous", "batch_size": 4},
    "one scale": {"scale": "global", "horizon": 3},
    "inserted rows": {"gap": Gap("forward_fill", max_fill=60)},
    "expressions": {"features": ["log_return(x0)", "x3"], "targets": ["difference(x3, 2)"], "path": "one.parquet"},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_second_start_gives_the_same_and_reads_nothing(folder, reads, way):
    how = dict(WAYS[way])
    if way == "expressions":
        how["features"][0] = "difference(x0)"
    plain = ready(folder, **how, cache="off")
    first, second = ready(folder, **how), ready(folder, **how)

    assert len(reads) == 2
    assert_same(plain, first)
    assert_same(plain, second)


def test_a_constant_column_is_warned_of_at_every_start(folder, caplog):
    ready(folder)
    told = [r.getMessage() for r in caplog.records if "does not vary" in r.getMessage()]
    caplog.clear()
    ready(folder)
    assert [r.getMessage() for r in caplog.records if "does not vary" in r.getMessage()] == told != []


@pytest.fixture
def key(folder, monkeypatch):
    """The key of the entry that a start would look for."""

    def of(**how) -> str:
        stores: list[kept.Store] = []
        with monkeypatch.context() as patched:
            patched.setattr(datamodule, "Prepared", lambda read, *, store, **options: stores.append(store))
            ready(folder, **how)
        return stores[0]._fingerprint.key

    return of


def test_what_shapes_the_tensor_has_an_entry_of_its_own(key):
    ways = [
        {},
        {"features": ["x0"]},
        {"features": ["x0"], "targets": ["x1"]},
        {"dtype": torch.float64},
        {"split": [0.5, 0.2, 0.3]},
        {"scale": "global"},
        {"gap": Gap("ignore")},
        {"missing": Missing("segment")},
        {"max_gap": "2h"},
        {"series": "symbol"},
        {"folds": Folds(n=2)},
        {"folds": Folds(n=2), "fold": 1},
        {"path": "one.parquet"},
    ]
    assert len({key(**how) for how in ways}) == len(ways)


def test_windows_and_batches_share_an_entry(key):
    others = [
        {"window": 5, "horizon": 2, "stride": 3, "batch_size": 7, "seed": 4, "supervision": "all", "num_workers": 1},
        {"window": 4, "sampling": "contiguous", "batch_size": 2},
        {"cache": "auto"},
    ]
    assert {key(**how) for how in others} == {key()}


def test_a_changed_file_is_read_again(folder, reads):
    ready(folder)
    change(folder)
    assert_same(ready(folder), ready(folder, cache="off"))
    assert len(reads) == 3


def test_small_data_is_kept_only_where_it_is_asked_for(folder, monkeypatch):
    ready(folder, cache="auto")
    ready(folder, cache="off")
    assert not (folder / "cache").exists()
    monkeypatch.setattr(kept, "WORTHWHILE", 1000)
    ready(folder, cache="off")
    assert not (folder / "cache").exists()
    ready(folder, cache="auto")
    assert (folder / "cache").is_dir()


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match=r"data\.cache must be one of auto, on, off, got 'of'"):
        File(path="x", cache="of")


def test_a_file_that_changes_while_it_is_read_is_not_kept(folder, monkeypatch):
    read = datasets.read_table

    def slowly(*arguments, **how):
        table = read(*arguments, **how)
        os.utime(folder / "two.parquet", (0, 0))
        return table

    monkeypatch.setattr(datasets, "read_table", slowly)
    ready(folder)
    assert not (folder / "cache").exists()


def test_without_a_place_to_write_the_run_goes_on(folder, caplog):
    (folder / "cache").write_text("a file where the folder should be")
    first = ready(folder)
    assert [r.getMessage() for r in caplog.records if "not kept" in r.getMessage()] != []
    (folder / "cache").unlink()
    assert_same(first, ready(folder, cache="off"))


def test_a_broken_entry_is_made_anew(folder, caplog, reads):
    first = ready(folder)
    tensor = next((folder / "cache").glob("*/tensor.npy"))
    tensor.write_bytes(tensor.read_bytes()[:-1000])
    again = ready(folder)
    assert len(reads) == 2
    assert sum("is broken" in r.getMessage() for r in caplog.records) == 1
    assert_same(again, ready(folder))
    assert first.notes == again.notes


def test_a_checkpoints_scaler_rescales_and_leaves_the_entry_as_it_is(folder):
    plain, mapped = ready(folder, cache="off"), ready(folder)
    before = next((folder / "cache").glob("*/tensor.npy")).read_bytes()
    other = ready(folder, split=[0.3, 0.3, 0.4], cache="off").scaler

    for made in (plain, mapped, second := ready(folder)):
        made.prepared.adopt(other)
    assert torch.equal(plain.prepared.scaled.view(torch.uint8), mapped.prepared.scaled.view(torch.uint8))
    assert torch.equal(plain.prepared.scaled.view(torch.uint8), second.prepared.scaled.view(torch.uint8))
    assert next((folder / "cache").glob("*/tensor.npy")).read_bytes() == before


def test_a_file_that_has_changed_since_the_start_is_not_mixed_with_what_was_kept(folder):
    ready(folder)
    made = ready(folder)
    change(folder)
    with pytest.raises(ValueError, match=r"data\.path: the files have changed since this run began"):
        made.prepared.source.table.read("x0")


def test_two_runs_that_start_at_once_get_the_same(folder, monkeypatch):
    together = threading.Barrier(2, timeout=20)
    write = cache._write

    def both_have_written(place, entry):
        write(place, entry)
        together.wait()

    monkeypatch.setattr(cache, "_write", both_have_written)
    modules = [module(folder), module(folder)]
    threads = [threading.Thread(target=made.setup) for made in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(*modules)
    assert_same(modules[0], ready(folder, cache="off"))


def test_workers_read_from_the_map(folder):
    ready(folder)
    alone, with_worker = ready(folder), ready(folder, num_workers=1)
    for batch, again in zip(alone.val_dataloader(), with_worker.val_dataloader(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, again, strict=True))


def test_each_column_is_read_at_most_twice_and_never_all_of_them_as_float64(tmp_path, monkeypatch):
    rows, columns = 60_000, 32
    random = np.random.default_rng(0)
    frame = pl.DataFrame({f"x{i}": random.normal(size=rows) for i in range(columns)})
    frame.write_parquet(tmp_path / "wide.parquet", row_group_size=10_000)
    counts: Counter[str] = Counter()
    read = RawColumns.read
    monkeypatch.setattr(RawColumns, "read", lambda self, name: counts.update([name]) or read(self, name))
    made = module(tmp_path, "wide.parquet", cache="off", targets=["x0"])

    tracemalloc.start()
    made.setup()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert set(counts.values()) == {2}
    assert peak < 8 * rows * 10, f"{peak / (8 * rows):.1f} columns of float64 at once"


def test_prices_of_a_256th_and_large_volumes_keep_the_sign_of_their_steps(tmp_path):
    random = np.random.default_rng(0)
    rows = 5000
    price = 100 + random.integers(-1, 2, rows).cumsum() / 256
    volume = 2.0**24 + 1000 * random.random(rows) // 1 + 1
    pl.DataFrame({"price": price, "volume": volume}).write_csv(tmp_path / "bars.csv")
    made = ready(tmp_path, "bars.csv", cache="off")

    for column, values in enumerate((price, volume)):
        np.testing.assert_array_equal(np.sign(np.diff(made.prepared.scaled[:, column].numpy())), np.sign(np.diff(values)))
    assert not any("too small for float32" in note for note in made.notes)


def test_steps_that_float32_loses_are_counted_in_one_sentence(tmp_path):
    rows = 1000
    steps = np.where(np.arange(rows) % 2, 1e-3, 0.0)
    frame = pl.DataFrame({"level": np.linspace(0, 1e6, rows) // 1e5 * 1e5 + steps + 1e6, "even": np.arange(rows) * 1.0})
    frame.write_csv(tmp_path / "a.csv", float_precision=6)

    single = ready(tmp_path, "a.csv", cache="off")
    lost = int(np.sum(np.diff(single.prepared.scaled[:, 0].numpy()) == 0))
    notes = [note for note in single.notes if "too small for float32" in note]
    assert len(notes) == 1
    assert f"scaling: level ({lost:,} of 999); hardware.precision=64 keeps them" in notes[0]
    assert lost > 800
    double = ready(tmp_path, "a.csv", cache="off", dtype=torch.float64)
    assert not any("too small" in note for note in double.notes)


def test_steps_between_series_are_not_counted():
    scaler = StandardScaler()
    scaler.begin(["x"])
    scaler.scale[:] = 1.0
    values = np.array([1.0, 1.0 + 1e-12, 1.0, 1.0 + 1e-12])
    out = torch.empty(4)
    assert scaler.transform_column(0, values, np.array([0, 4]), out) == 3
    assert scaler.transform_column(0, values, np.array([0, 2, 4]), out) == 2


def test_the_log_says_once_what_was_written_or_read(folder, caplog):
    with caplog.at_level(logging.INFO):
        ready(folder)
        assert sum("written to the cache" in r.getMessage() for r in caplog.records) == 1
        assert not any("read from the cache" in r.getMessage() for r in caplog.records)
        caplog.clear()
        ready(folder)
    assert sum("read from the cache" in r.getMessage() for r in caplog.records) == 1
