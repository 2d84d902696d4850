"""What a file holds once it is unpacked: one content, or each member of an archive. Bytes decide, not suffixes."""

import io
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from statewise.data.files.formats.packing import FAULTS, Damaged, packing_of, unpacked, unreadable_packing

_PIECE = 1 << 16
_LAYERS = 4  # packings and archives inside each other; more is no data but an accident or an attack
_FAULTS = (*FAULTS, zipfile.BadZipFile, tarfile.TarError, RuntimeError, NotImplementedError)
# What lies beside data and holds none: texts about them, checksums, programs, pictures.
_BESIDE_NAMES = ("readme", "license", "licence", "copying", "notice", "changelog", "contributing", "makefile", "thumbs.db")
_BESIDE_SUFFIXES = (
    *(".md", ".rst", ".pdf", ".html", ".htm", ".doc", ".docx", ".py", ".r", ".m", ".ipynb", ".sh", ".bat", ".exe"),
    *(".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".log", ".xml", ".png", ".jpg", ".jpeg", ".gif", ".svg"),
    *(".md5", ".sha1", ".sha256", ".sha512", ".checksum", ".sig", ".asc", ".crc", ".lock", ".tmp", ".part", ".crdownload"),
)


@dataclass(frozen=True)
class Content:
    """The bytes of a file, or of one member of an archive, as they are when nothing is packed any more.

    Attributes:
        path: the file.
        member: the place inside an archive; None where the file is none.
        packing: the compressions around the bytes, the outermost first, as ("gzip",); an archive's own does not count.
        size: bytes as they are stored, packed.
    """

    path: Path
    member: str | None
    packing: tuple[str, ...]
    size: int
    pieces: Callable[[], Iterator[bytes]] = field(repr=False, compare=False)  # as stored

    @property
    def name(self) -> str:
        """For messages: the path, and the member behind an exclamation mark."""
        return str(self.path) if self.member is None else f"{self.path}!{self.member}"

    def unpacked(self) -> Iterator[bytes]:
        """The bytes, a piece at a time. Raises ValueError with one line."""
        pieces = self.pieces()
        for packing in self.packing:
            pieces = unpacked(pieces, packing)
        try:
            yield from pieces
        except Damaged as error:
            raise ValueError(f"data.path: {self.name}: {error}") from error
        except _FAULTS as error:
            raise ValueError(f"data.path: {self.name} cannot be read: {_line(error)}") from error

    def head(self, size: int) -> bytes:
        """The first bytes, or all where there are less; no more is unpacked than these."""
        found = bytearray()
        for piece in self.unpacked():
            found += piece
            if len(found) >= size:
                break
        return bytes(found[:size])

    def source(self) -> Path | bytes:
        """The path where its bytes are the content as they stand, else all of the content. Raises ValueError."""
        if self.member is None and not self.packing:
            return self.path
        whole = io.BytesIO()
        for piece in self.unpacked():
            whole.write(piece)
        return whole.getvalue()


def contents_of(path: Path) -> list[Content]:
    """What there is in a file, the members of an archive in the order of their names.

    Raises ValueError with one line: it cannot be unpacked, an archive is protected or holds nothing to read.
    """
    stored = Content(path, None, (), path.stat().st_size, lambda: _of_file(path))
    return list(_inside(stored, _LAYERS))


def lies_beside(place: str) -> bool:
    """Whether a file of this name, a path inside a folder or an archive, lies beside data and holds none."""
    parts = PurePosixPath(place.replace("\\", "/")).parts
    if any(part.startswith((".", "_", "~$")) for part in parts):  # hidden, __MACOSX, _SUCCESS, a lock of an office program
        return True
    name = parts[-1].lower()
    stem = name.split(".")[0]
    return stem in _BESIDE_NAMES or name in _BESIDE_NAMES or name.endswith(_BESIDE_SUFFIXES)


def is_document(names: list[str]) -> bool:
    """Whether a zip with these members is one file to its program: a workbook, arrays of NumPy, a model of PyTorch."""
    marks = ("[Content_Types].xml", "mimetype")
    return any(mark in names for mark in marks) or all(n.endswith(".npy") for n in names) or _is_model(names)


def _is_model(names: list[str]) -> bool:
    return any(name.endswith("/data.pkl") for name in names)


def _inside(content: Content, layers: int) -> Iterator[Content]:
    if layers == 0:
        raise ValueError(f"data.path: {content.name} is packed more than {_LAYERS} times over: unpack it first")
    head = content.head(512)
    unreadable = unreadable_packing(head)
    if unreadable is not None:
        raise ValueError(f"data.path: {content.name} is packed with {unreadable}, which is not read: unpack it first")
    packing = packing_of(head)
    if packing is not None:
        packed = Content(content.path, content.member, (*content.packing, packing), content.size, content.pieces)
        yield from _inside(packed, layers - 1)
    elif head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")):
        yield from _inside_zip(content, layers)
    elif head[257:262] == b"ustar":
        yield from _inside_tar(content, layers)
    else:
        yield content


def _inside_zip(content: Content, layers: int) -> Iterator[Content]:
    try:
        stored = _StoredZip(content)
    except _FAULTS as error:
        raise ValueError(f"data.path: {content.name} is no complete zip archive ({_line(error)}): fetch it again") from error
    members = sorted((m for m in stored.archive.infolist() if not m.is_dir()), key=lambda m: m.filename)
    if members and is_document([m.filename for m in members]):
        yield content
        return
    kept = [m for m in members if not lies_beside(m.filename)]
    _refuse_nothing(content, [m.filename for m in members], bool(kept))
    for info in kept:
        if info.flag_bits & 1:
            raise ValueError(f"data.path: {content.name} is protected by a password ({info.filename}): unpack it first")
        place = _place(content, info.filename)

        def pieces(info: zipfile.ZipInfo = info) -> Iterator[bytes]:
            with stored.archive.open(info) as file:
                while piece := file.read(_PIECE):
                    yield piece

        yield from _inside(Content(content.path, place, (), info.compress_size, pieces), layers - 1)


def _inside_tar(content: Content, layers: int) -> Iterator[Content]:
    stored = _Stored(content)
    try:
        with tarfile.open(fileobj=stored.file, mode="r:") as archive:
            members = sorted((m for m in archive if m.isreg() and not m.issparse()), key=lambda m: m.name)
    except _FAULTS as error:
        raise ValueError(f"data.path: {content.name} is no complete tar archive ({_line(error)}): fetch it again") from error
    kept = [m for m in members if not lies_beside(m.name)]
    _refuse_nothing(content, [m.name for m in members], bool(kept))
    for info in kept:

        def pieces(start: int = info.offset_data, size: int = info.size) -> Iterator[bytes]:
            for place in range(start, start + size, _PIECE):
                stored.file.seek(place)
                piece = stored.file.read(min(_PIECE, start + size - place))
                if not piece:
                    raise EOFError("the tar archive ends too early: fetch it again")
                yield piece

        yield from _inside(Content(content.path, _place(content, info.name), (), info.size, pieces), layers - 1)


class _Stored:
    """A content as a file that can be read from any place, closed with the last that needs it."""

    def __init__(self, content: Content) -> None:
        if content.member is None and not content.packing:
            self.file: IO[bytes] = content.path.open("rb")
            return
        # An archive inside a compression can only be read whole, and may be larger than memory.
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            for piece in content.unpacked():
                self.file.write(piece)
        except BaseException:
            self.file.close()
            raise
        self.file.seek(0)

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.file.close()


class _StoredZip(_Stored):
    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self.archive = zipfile.ZipFile(self.file)


def _of_file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _place(content: Content, member: str) -> str:
    return member if content.member is None else f"{content.member}!{member}"


def _refuse_nothing(content: Content, names: list[str], readable: bool) -> None:
    if not readable:
        held = f"only {', '.join(names[:5])}" if names else "no file at all"
        raise ValueError(f"data.path: {content.name} is an archive with nothing to read: it holds {held}")


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
