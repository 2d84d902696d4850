"""What a prepared table depends on, as one key: the bytes of its files, the options, and the code that reads them."""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

# A file that was changed so recently may change again without a trace in its times: clocks of file systems are coarse.
_SETTLED = 2 * 10**9


@dataclass(frozen=True)
class Mark:
    """What tells without reading it that a file is still the same."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "Mark":
        real = os.path.realpath(path)
        found = os.stat(real)
        return cls(real, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


class Fingerprint:
    """Of files and options.

    Args:
        files: in the order in which they are read; their paths are part of the key, because sentences name them.
        options: plain values, dataclasses, or whatever says in its repr what it is.
        memory: a folder where the digests of files are remembered.
    """

    def __init__(self, files: Sequence[Path], options: Mapping[str, Any], memory: Path) -> None:
        self.marks = tuple(Mark.of(file) for file in files)
        self._files = tuple(files)
        names = json.dumps([mark.path for mark in self.marks])
        self._memory = memory / f"{hashlib.sha256(names.encode()).hexdigest()}.json"
        known = self._remembered()
        now = time.time_ns()
        self._settled = all(now - max(mark.mtime_ns, mark.ctime_ns) > _SETTLED for mark in self.marks)
        self._digests = {mark: known.get(mark) or _digest(mark.path) for mark in self.marks}
        content = [self._digests[mark] for mark in self.marks]
        whole = [[str(file) for file in files], content, _plain(dict(options)), _code(), pl.__version__]
        self.key = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(mark.size for mark in self.marks)

    def unchanged(self) -> bool:
        """Whether the files are still what they were."""
        try:
            return self.marks == tuple(Mark.of(file) for file in self._files)
        except OSError:
            return False

    def remember(self) -> None:
        """So that the files need not be read again while they stay the same. Raises OSError."""
        if not self._settled or self._remembered() == self._digests:
            return
        self._memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps([{**asdict(mark), "digest": digest} for mark, digest in self._digests.items()])
        new = self._memory.with_name(f".{self._memory.name}.{os.getpid()}.{time.monotonic_ns()}")
        new.write_text(text, encoding="utf-8")
        os.replace(new, self._memory)

    def _remembered(self) -> dict[Mark, str]:
        try:
            entries = json.loads(self._memory.read_text(encoding="utf-8"))
            return {Mark(**{k: v for k, v in entry.items() if k != "digest"}): entry["digest"] for entry in entries}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _code() -> str:
    """A digest of this package: what another version of it made may differ."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"": type(value).__name__, **{name: _plain(part) for name, part in asdict(value).items()}}
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | int | float | None) else repr(value)
