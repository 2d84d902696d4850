import errno
import logging
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from statewise.data.preparation import cache as module
from statewise.data.preparation.cache import Cache, Entry, cache_folder

KEY = "a" * 64


def entry(rows=20, columns=3) -> Entry:
    tensor = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
    arrays = {"times": np.arange(rows), "none": np.zeros((0, 4), dtype=np.uint8)}
    return Entry({"notes": ["a sentence"], "count": 3}, arrays, tensor)


def assert_same(one: Entry, other: Entry) -> None:
    assert one.plain == other.plain
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.dtype == other.arrays[name].dtype
        np.testing.assert_array_equal(array, other.arrays[name])
    assert one.tensor.dtype == other.tensor.dtype
    assert torch.equal(one.tensor, other.tensor)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def saved(cache):
    assert cache.save(KEY, entry())
    return cache.folder / KEY


def test_what_is_saved_comes_back(cache, saved):
    loaded = cache.load(KEY)

    assert_same(loaded, entry())
    assert loaded.tensor.is_contiguous()
    assert cache.load("b" * 64) is None
    assert [path for path in files(cache.folder) if "/" not in path] == [KEY]


def test_nobodys_changes_reach_the_file(cache, saved):
    loaded = cache.load(KEY)
    loaded.tensor.zero_()
    loaded.arrays["times"][:] = 0
    assert_same(cache.load(KEY), entry())


def test_one_sentence_says_what_was_written_and_read_and_how_large_it_is(cache, caplog):
    with caplog.at_level(logging.INFO):
        cache.save(KEY, entry())
        cache.load(KEY)
    assert [record.getMessage() for record in caplog.records] == [
        f"written to the cache: 240 bytes of scaled values, {cache.folder / KEY}",
        f"read from the cache: 240 bytes of scaled values, {cache.folder / KEY}",
    ]


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["entry.json", "times.npy", "none.npy", "tensor.npy"])
@pytest.mark.parametrize("damage", ["empty", "cut", "longer", "lost", "header"])
def test_a_broken_entry_is_told_of_and_made_anew(cache, saved, caplog, name, damage):
    path = saved / name
    if damage == "lost":
        path.unlink()
    elif damage == "header":
        flipped(path, 0)
    else:
        content = path.read_bytes()
        path.write_bytes({"empty": b"", "cut": content[:-1], "longer": content + b"x"}[damage])

    with caplog.at_level(logging.WARNING):
        assert cache.load(KEY) is None
    assert len(caplog.records) == 1
    assert f"the cache entry {saved} is broken (" in caplog.text
    assert "the files are read again" in caplog.text

    assert cache.save(KEY, entry())
    assert_same(cache.load(KEY), entry())


def test_a_changed_byte_of_a_small_part_is_found(cache, saved, caplog):
    flipped(saved / "times.npy", -1)
    assert cache.load(KEY) is None
    assert "times.npy is damaged" in caplog.text


@pytest.mark.parametrize("call", ["fsync", "write"])
def test_a_full_disk_is_one_warning_and_leaves_nothing(cache, caplog, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "fsync", full) if call == "fsync" else monkeypatch.setattr(module, "_write_array", full)

    assert not cache.save(KEY, entry())
    assert len(caplog.records) == 1
    assert "not kept for the next run" in caplog.text
    assert "No space left" in caplog.text
    assert files(cache.folder) == []


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    assert cache.load(KEY) is None
    assert not cache.save(KEY, entry())
    assert len(caplog.records) == 1


def test_two_that_write_at_once_leave_one_whole_entry(cache, monkeypatch):
    together = threading.Barrier(2, timeout=20)
    write = module._write

    def both_have_written(folder, what):
        write(folder, what)
        together.wait()

    monkeypatch.setattr(module, "_write", both_have_written)
    done: list[bool] = []
    threads = [threading.Thread(target=lambda: done.append(cache.save(KEY, entry()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert done == [True, True]
    assert_same(cache.load(KEY), entry())
    assert [path for path in files(cache.folder) if "/" not in path] == [KEY]


def test_the_entries_that_were_not_used_for_longest_make_room(cache, monkeypatch, caplog):
    for index, key in enumerate("abc"):
        cache.save(64 * key, entry())
        os.utime(cache.folder / (64 * key) / "entry.json", (index, index))
    other = cache.folder / "somebody's own folder"
    shutil.copytree(cache.folder / (64 * "a"), other)
    assert cache.load(64 * "a") is not None  # used again: now the latest
    size = sum(path.stat().st_size for path in (cache.folder / (64 * "a")).iterdir())
    monkeypatch.setattr(module, "LIMIT", 3 * size)

    with caplog.at_level(logging.INFO):
        cache.save(64 * "d", entry())

    assert {path.name[0] for path in cache.folder.iterdir() if len(path.name) == 64} == {"a", "c", "d"}
    assert other.is_dir()
    assert "removed from the cache" in caplog.text


def test_what_a_killed_run_has_left_is_removed_after_a_day(cache):
    cache.folder.mkdir()
    for name, age in ((".new-old", 2 * 24 * 3600), (".new-recent", 60)):
        (cache.folder / name).mkdir()
        then = module.time.time() - age
        os.utime(cache.folder / name, (then, then))
    cache.save(KEY, entry())
    assert sorted(path.name for path in cache.folder.iterdir()) == [".new-recent", KEY]


def test_the_folder_is_as_chosen_else_of_statewise_else_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_folder(tmp_path) == tmp_path
    assert cache_folder(None) == tmp_path / "own"
    monkeypatch.delenv("STATEWISE_CACHE")
    assert cache_folder(None) == tmp_path / "shared" / "statewise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder(None) == Path.home() / ".cache" / "statewise"
