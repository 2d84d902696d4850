"""Compressed streams: which kind, by their first bytes, and their content a piece at a time."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import zstandard

_MAGIC = {
    "gzip": (b"\x1f\x8b\x08",),
    # Parallel compressors put a skippable frame in front.
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([nibble]) + b"\x2a\x4d\x18" for nibble in range(0x50, 0x60))),
    "bzip2": (b"BZh",),
    "xz": (b"\xfd7zXZ\x00",),
}
_UNREADABLE = {
    "7-Zip": b"7z\xbc\xaf\x27\x1c",
    "RAR": b"Rar!\x1a\x07",
    "LZ4": b"\x04\x22\x4d\x18",
    "compress (.Z)": b"\x1f\x9d",
    "Snappy": b"\xff\x06\x00\x00sNaPpY",
    "LZIP": b"LZIP",
}
FAULTS = (zlib.error, OSError, EOFError, lzma.LZMAError, zstandard.ZstdError)


class Damaged(Exception):
    """A compressed stream that cannot be unpacked to its end; the text says why."""


def packing_of(head: bytes) -> str | None:
    """The compression of a stream that begins like this: gzip, zstd, bzip2, xz or None."""
    found = next((name for name, starts in _MAGIC.items() if head.startswith(starts)), None)
    # BZh alone could be text: a digit and the mark of a block, or of an empty stream, follow.
    if found == "bzip2" and head[4:10] not in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"):
        return None
    return found


def unreadable_packing(head: bytes) -> str | None:
    """The name of an archive or compression that is known and not read."""
    return next((name for name, start in _UNREADABLE.items() if head.startswith(start)), None)


def unpacked(pieces: Iterable[bytes], packing: str) -> Iterator[bytes]:
    """The content of a compressed stream, of all its parts where there are several.

    Raises Damaged: it ends too early, or does not unpack.
    """
    start = _decompressor(packing)
    decompressor = None
    try:
        for piece in pieces:
            rest = piece
            while rest:
                if decompressor is None:
                    # gzip files may be padded with zeros.
                    rest = rest.lstrip(b"\x00")
                    if not rest:
                        break
                    decompressor = start()
                content = decompressor.decompress(rest)
                if content:
                    yield content
                rest = b""
                if decompressor.eof:
                    rest, decompressor = decompressor.unused_data, None
    except FAULTS as error:
        raise Damaged(f"its {packing} data are damaged ({error}): fetch the file again") from error
    if decompressor is not None:
        raise Damaged(f"its {packing} data end too early, as after a download that stopped: fetch the file again")


def _decompressor(packing: str) -> Callable[[], Any]:
    makers: dict[str, Callable[[], Any]] = {
        "gzip": lambda: zlib.decompressobj(wbits=31),
        "zstd": lambda: zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj(),
        "bzip2": bz2.BZ2Decompressor,
        "xz": lzma.LZMADecompressor,
    }
    return makers[packing]
