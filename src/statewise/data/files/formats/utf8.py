"""A text as UTF-8 with line feeds, in a file as it stands or in memory."""

import codecs
import io
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

_PIECE = 1 << 20
MARKS = (b"\0", b"\n", b'"', b".")  # what some questions about a text hang on
_CODECS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x19\x1b-\x1f\x7f]")


class NotUtf8(Exception):
    """A byte that is no UTF-8 stands further down than where a text was looked at."""


@dataclass(frozen=True)
class Text:
    """UTF-8 with lines that end in a line feed (a carriage return may stand before it)."""

    source: Path | bytes

    @property
    def size(self) -> int:
        return self.source.stat().st_size if isinstance(self.source, Path) else len(self.source)

    def piece(self, start: int, size: int) -> bytes:
        if isinstance(self.source, bytes):
            return self.source[start : start + size]
        with self.source.open("rb") as file:
            file.seek(start)
            return file.read(size)

    def whole(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()

    @cached_property
    def first_places(self) -> dict[bytes, int]:
        """Where each of MARKS stands first, -1 where it does not; found in one pass."""
        places = dict.fromkeys(MARKS, -1)
        # Faster than a memory map, whose pages cost more than to copy them.
        buffer = bytearray(_PIECE)
        with io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb", buffering=0) as file:
            start = 0
            while size := file.readinto(buffer):
                for mark in MARKS:
                    if places[mark] == -1 and (place := buffer.find(mark, 0, size)) != -1:
                        places[mark] = start + place
                start += size
        return places

    def has(self, byte: bytes) -> bool:
        """Whether a byte stands anywhere."""
        place = self.first_places.get(byte)
        return self.count(byte) > 0 if place is None else place != -1

    def lines(self) -> int:
        """How many there are, the last one with or without a line feed."""
        return self.count(b"\n") + (self.piece(self.size - 1, 1) != b"\n")

    def count(self, byte: bytes, start: int = 0, end: int | None = None) -> int:
        """How often a byte stands between two places."""
        stop = self.size if end is None else end
        counts = 0
        with io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb", buffering=0) as file:
            file.seek(start)
            while start < stop and (piece := file.read(min(_PIECE, stop - start))):
                counts += int(np.count_nonzero(np.frombuffer(piece, dtype=np.uint8) == byte[0]))
                start += len(piece)
        return counts


def as_text(source: Path | bytes, name: str) -> tuple[Text, list[str]]:
    """The text, and how it was written where that is not UTF-8 with line feeds.

    Raises:
        ValueError: the source is empty or holds bytes that no text has.
    """
    text = Text(source)
    head = text.piece(0, 1 << 16) if text.size else b""
    if not head.strip(b"\0 \t\r\n") and not text.piece(0, 1 << 24).strip(b"\0 \t\r\n\xef\xbb\xbf"):
        holds = "holds nothing but NUL bytes: fetch it again" if b"\0" in head else "is empty (0 rows, not even a header)"
        raise ValueError(f"data.path: {name} {holds}")
    encoding = next((codec for mark, codec in _CODECS if head.startswith(mark)), None) or _unmarked(head)
    notes = []
    if encoding is None:
        _refuse_binary(text, head, name)
        tail = text.piece(max(0, text.size - (1 << 16)), 1 << 16)
        if not (_is_utf8(head, len(head) == text.size) and _is_utf8(tail, True)):
            return as_windows_text(text)
    elif encoding != "utf-8":
        try:
            text = Text(text.whole().decode(encoding).lstrip("\ufeff").encode())
        except UnicodeDecodeError as error:
            raise ValueError(f"data.path: {name} begins as {encoding.upper()} and goes on as none: {error.reason}") from error
        notes.append(f"written in {encoding.upper()}")
    else:
        _refuse_binary(text, head, name)
    return _with_line_feeds(text, notes)


def as_windows_text(text: Text) -> tuple[Text, list[str]]:
    """The text where its bytes are no UTF-8: every byte means a character in the encodings of Western Europe."""
    whole = text.whole()
    try:
        decoded, name = whole.decode("cp1252"), "Windows-1252"
    except UnicodeDecodeError:
        decoded, name = whole.decode("latin-1"), "Latin-1"
    return _with_line_feeds(Text(decoded.encode()), [f"no UTF-8, read as {name}"])


def is_padded(line: str, separator: str, quote: str) -> bool:
    """Whether blanks stand between a separator and a quote behind it."""
    return _unpadded(line.encode(), separator, quote) != line.encode()


def without_padding(text: Text, separator: str, quote: str) -> Text:
    """Without blanks between a separator and the quote behind it, which would make the quote a part of the field."""
    return Text(_unpadded(text.whole(), separator, quote))


def _unpadded(whole: bytes, separator: str, quote: str) -> bytes:
    mark, between = re.escape(quote.encode()), re.escape(separator.encode())
    # What stands in quotes stays as it is.
    pattern = rb"(%b[^%b\n]*%b)|(%b)[ \t]+(?=%b)" % (mark, mark, mark, between, mark)
    return re.sub(pattern, lambda found: found.group(1) or found.group(2), whole)


def with_tabs(text: Text, quote: str) -> Text:
    """Runs of blanks, outside of quotes, replaced by a tab; those at both ends of a line are gone."""
    whole = text.whole()
    mark = quote.encode()
    if mark in whole:
        quoted = re.compile(rb"(%b[^%b\n]*%b)|[ \t]+" % (mark, mark, mark))
        whole = quoted.sub(lambda found: found.group(1) or b"\t", whole)
    else:
        whole = re.sub(rb"[ \t]+", b"\t", whole)
    return Text(re.sub(rb"(?m)^\t+|\t+(?=\r?$)", b"", whole))


def _with_line_feeds(text: Text, notes: list[str]) -> tuple[Text, list[str]]:
    head = text.piece(0, 1 << 16)
    if b"\n" in head or b"\r" not in head:
        return text, notes
    # A file with very long lines may have its first line feed further on.
    if text.first_places[b"\n"] != -1:
        return text, notes
    return Text(text.whole().replace(b"\r", b"\n")), [*notes, "lines end in a carriage return"]


def _unmarked(head: bytes) -> str | None:
    """UTF-16 without a mark shows in the zeros of its Latin characters."""
    even, odd = head[:1000:2].count(0), head[1:1000:2].count(0)
    length = len(head[:1000]) // 2
    if length > 4 and odd > 0.7 * length and even == 0:
        return "utf-16-le"
    if length > 4 and even > 0.7 * length and odd == 0:
        return "utf-16-be"
    return None


def _is_utf8(piece: bytes, ends: bool) -> bool:
    """Whether a piece cut out of a text may be UTF-8: characters may be cut at its start, and where the text goes on."""
    start = 0
    while start < min(3, len(piece)) and piece[start] & 0xC0 == 0x80:
        start += 1
    try:
        codecs.getincrementaldecoder("utf-8")().decode(piece[start:], ends)
    except UnicodeDecodeError:
        return False
    return True


def _refuse_binary(text: Text, head: bytes, name: str) -> None:
    place = text.first_places[b"\0"]
    if place != -1 and _NO_TEXT.search(head.replace(b"\0", b"")) is None and head[:1] != b"\0":
        line = text.count(b"\n", 0, place) + 1
        raise ValueError(f"data.path: {name} holds a NUL byte in line {line}: it is damaged there, fetch it again")
    odd = _NO_TEXT.search(head)
    if odd is not None or place != -1:
        raise ValueError(f"data.path: {name} is no text but binary: it begins with {head[:8]!r}")
