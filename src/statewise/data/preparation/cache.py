"""Tensors that are kept in files, to be mapped into memory by the next run that needs the same."""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.data.progress import readable

log = logging.getLogger(__name__)

POLICIES = ("auto", "on", "off")
# What is smaller is read and scaled anew in less than a second: not worth a file.
WORTHWHILE = 64 * 2**20
# All entries together. A table of 10 million rows and 32 columns takes 1.3 GB in float32: a dozen of them, and no full disk.
LIMIT = 20 * 10**9
_ABANDONED = 24 * 3600  # seconds after which a half-written entry belongs to no living run
_ENTRY = re.compile(r"[0-9a-f]{64}")


def cache_folder(chosen: Path | None) -> Path:
    """Where entries lie: as chosen, else $STATEWISE_CACHE, else the user's cache folder."""
    if chosen is not None:
        return chosen
    if own := os.environ.get("STATEWISE_CACHE"):
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "statewise"


@dataclass(frozen=True)
class Entry:
    """One tensor with what belongs to it: plain values, and arrays that are small beside it."""

    plain: dict[str, Any]
    arrays: dict[str, np.ndarray]
    tensor: Tensor


class Cache:
    """Entries in a folder, each in a folder of its own that appears whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: str, *, told: bool = True) -> Entry | None:
        """The entry, its tensor mapped copy-on-write: nobody's changes reach the file. None: there is none.

        One that is broken is told of, removed and taken for none.

        told: whether the log says what was read; not where it has just said that this was written.
        """
        place = self.folder / key
        if not place.is_dir():
            return None
        try:
            entry = _read(place)
        except FileNotFoundError:
            if not place.is_dir():
                return None  # another run has just removed it
            why: object = "a file is missing"
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = error
        else:
            with contextlib.suppress(OSError):
                os.utime(place / "entry.json")  # the least recently used goes first
            if told:
                log.info("read from the cache: %s of scaled values, %s", readable(entry.tensor.nbytes), place)
            return entry
        log.warning("the cache entry %s is broken (%s): the files are read again", place, str(why).splitlines()[0])
        self._remove(place)
        return None

    def save(self, key: str, entry: Entry) -> bool:
        """Writes an entry unless it is there already; says whether it is there now. A full disk is a warning."""
        place = self.folder / key
        new = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
            _write(new, entry)
            try:
                os.rename(new, place)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return True  # another run was faster and has written the same
            _sync(self.folder)
        except OSError as error:
            what = error.strerror or type(error).__name__
            log.warning("the scaled values are not kept for the next run: %s: %s", self.folder, what)
            return False
        finally:
            if new is not None:
                shutil.rmtree(new, ignore_errors=True)
        log.info("written to the cache: %s of scaled values, %s", readable(entry.tensor.nbytes), place)
        self._make_room(place)
        return True

    def _make_room(self, newest: Path) -> None:
        """Removes the entries that were not used for longest, and what a run that was killed has left."""
        with contextlib.suppress(OSError):
            for left in self.folder.glob(".new-*"):
                if time.time() - left.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(left, ignore_errors=True)
        used: list[tuple[float, int, Path]] = []
        for place in self.folder.iterdir():
            # The folder may be one that holds other things: only what bears the name of an entry is one.
            if _ENTRY.fullmatch(place.name) and place != newest:
                with contextlib.suppress(OSError):
                    used.append(((place / "entry.json").stat().st_mtime, _size(place), place))
        total = _size(newest) + sum(size for _, size, _ in used)
        for _, size, place in sorted(used):
            if total <= LIMIT:
                break
            self._remove(place)
            total -= size
            log.info("removed from the cache, because it holds more than %s: %s", readable(LIMIT), place.name)

    def _remove(self, place: Path) -> None:
        # Under another name first: what is half removed must not be found. Runs that have mapped it keep it.
        away = self.folder / f".new-{place.name}-{os.getpid()}-{time.monotonic_ns()}"
        with contextlib.suppress(OSError):
            os.rename(place, away)
            shutil.rmtree(away, ignore_errors=True)


def _write(folder: Path, entry: Entry) -> None:
    files: dict[str, dict[str, int]] = {}
    for name, array in entry.arrays.items():
        _write_array(folder / f"{name}.npy", array)
        files[name] = {"size": (folder / f"{name}.npy").stat().st_size, "checksum": _checksum(array)}
    values = entry.tensor.numpy()
    _write_array(folder / "tensor.npy", values)
    shape = {"shape": list(values.shape), "dtype": values.dtype.str, "size": (folder / "tensor.npy").stat().st_size}
    content = json.dumps({"plain": entry.plain, "files": files, "tensor": shape})
    with open(folder / "entry.json", "w", encoding="utf-8") as file:
        file.write(json.dumps({"checksum": zlib.crc32(content.encode()), "content": content}))
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)


def _write_array(path: Path, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        np.lib.format.write_array_header_2_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(_bytes(array))
        file.flush()
        os.fsync(file.fileno())


def _read(folder: Path) -> Entry:
    written = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
    if zlib.crc32(written["content"].encode()) != written["checksum"]:
        raise ValueError("entry.json is damaged")
    content = json.loads(written["content"])
    arrays = {}
    for name, said in content["files"].items():
        arrays[name] = _mapped(folder / f"{name}.npy", said["size"])
        if _checksum(arrays[name]) != said["checksum"]:
            raise ValueError(f"{name}.npy is damaged")
    said = content["tensor"]
    values = _mapped(folder / "tensor.npy", said["size"])
    if list(values.shape) != said["shape"] or values.dtype.str != said["dtype"]:
        raise ValueError("tensor.npy is damaged")
    return Entry(content["plain"], arrays, torch.from_numpy(values))


def _mapped(path: Path, size: int) -> np.ndarray:
    if path.stat().st_size != size:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes instead of {size:,}")
    # Nothing can be mapped of an array without values.
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    return np.asarray(array)


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(_bytes(array))


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _sync(folder: Path) -> None:
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _size(place: Path) -> int:
    return sum(file.stat().st_size for file in place.iterdir())
