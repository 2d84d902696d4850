import os
import time
from pathlib import Path

import pytest

from statewise.data.preparation import fingerprint
from statewise.data.preparation.fingerprint import Fingerprint
from statewise.data.segments.gaps import Gap


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "bars.csv"
    made.write_text("x\n1\n")
    old = time.time() - 60
    os.utime(made, (old, old))
    return made


@pytest.fixture
def read(monkeypatch):
    """The paths whose bytes have been read."""
    paths: list[str] = []
    digest = fingerprint._digest
    monkeypatch.setattr(fingerprint, "_digest", lambda path: paths.append(path) or digest(path))
    monkeypatch.setattr(fingerprint, "_SETTLED", -(10**18))
    return paths


def key(file: Path, memory: Path, **options) -> str:
    return Fingerprint([file], options, memory).key


def test_the_bytes_of_a_file_that_is_remembered_are_not_read_again(file, tmp_path, read):
    first = Fingerprint([file], {}, tmp_path / "digests")
    first.remember()

    assert Fingerprint([file], {}, tmp_path / "digests").key == first.key
    assert read == [str(file)]


def test_a_file_that_was_only_touched_is_read_again_and_has_the_same_key(file, tmp_path, read):
    first = Fingerprint([file], {}, tmp_path / "digests")
    first.remember()
    os.utime(file)

    assert key(file, tmp_path / "digests") == first.key
    assert len(read) == 2
    assert not first.unchanged()


def test_other_bytes_of_the_same_size_and_time_have_another_key(file, tmp_path, read):
    first = Fingerprint([file], {}, tmp_path / "digests")
    first.remember()
    was = file.stat()
    file.write_text("x\n2\n")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))

    assert key(file, tmp_path / "digests") != first.key


def test_a_file_that_has_just_been_written_is_not_remembered(file, tmp_path):
    file.write_text("x\n2\n")
    Fingerprint([file], {}, tmp_path / "digests").remember()
    assert not (tmp_path / "digests").exists()


def test_every_option_and_the_order_of_files_count(file, tmp_path):
    other = tmp_path / "more.csv"
    other.write_text("x\n2\n")
    keys = [
        key(file, tmp_path),
        key(file, tmp_path, features=("x",)),
        key(file, tmp_path, features=("x", "y")),
        key(file, tmp_path, gap=Gap()),
        key(file, tmp_path, gap=Gap(step="1m")),
        Fingerprint([file, other], {}, tmp_path).key,
        Fingerprint([other, file], {}, tmp_path).key,
    ]
    assert len(set(keys)) == len(keys)
    assert key(file, tmp_path, gap=Gap(step="1m")) == key(file, tmp_path, gap=Gap(step="1m"))


def test_a_damaged_memory_is_as_good_as_none(file, tmp_path, read):
    memory = tmp_path / "digests"
    first = Fingerprint([file], {}, memory)
    first.remember()
    for text in ("", "[1]", "{}", '[{"digest": "a"}]', '[{"path": 1}]'):
        next(memory.glob("*.json")).write_text(text)
        assert key(file, memory) == first.key
    assert len(read) == 6
