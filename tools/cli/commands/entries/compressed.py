"""Compressed: a file of gzip or zstd, read as what was packed into it.

Both are read by a decompressor of one frame at a time, for a file may be several put one behind the other, and only
the decompressor knows whether the last one is whole: a file that is cut off must not look like one that has ended.
"""

from __future__ import annotations

import io
import zlib
from typing import Any

from ...status import USAGE, CommandError

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ENDINGS = (".gz", ".zst", ".zstd")
_PIECE = 16 << 10  # of the file: what is very regular becomes a thousand times as much


class Compressed(io.RawIOBase):
    """What is in ``file``, which begins like one of gzip or zstd. CommandError where it is damaged, or cut off."""

    def __init__(self, file: io.BufferedReader, name: str) -> None:
        self._file = file
        self._name = name
        self._kind = "gzip" if file.peek(4).startswith(GZIP) else "zstd"
        self._frame: Any = None  # what unpacks the one that has begun
        self._piece = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Unpack some of it into ``buffer``; 0 at the end."""
        while not self._content:
            self._piece = self._piece or self._file.read1(_PIECE)
            if not self._piece:
                if self._frame is not None:
                    raise self._damaged("it is cut off")
                return 0
            self._unpack()
        size = min(len(buffer), len(self._content))
        buffer[:size], self._content = self._content[:size], self._content[size:]
        return size

    def _unpack(self) -> None:
        from .....storage.format import zstd  # noqa: PLC0415 - loaded for what is packed only

        if self._frame is None:
            if self._kind == "gzip":
                self._piece = self._piece.lstrip(b"\0")  # as gzip itself passes over what a tape has behind it
            if not self._piece:
                return
            self._frame = zlib.decompressobj(wbits=31) if self._kind == "gzip" else zstd.unpacking()
        try:
            self._content = memoryview(self._frame.decompress(self._piece))
        except (zlib.error, *zstd.ERRORS) as error:
            raise self._damaged(str(error)) from None
        self._piece = b""
        if self._frame.eof:
            self._piece, self._frame = self._frame.unused_data, None

    def _damaged(self, why: str) -> CommandError:
        return CommandError(f"{self._name} cannot be read as {self._kind}: {why}", USAGE)


def is_packed(file: io.BufferedReader) -> bool:
    """Whether the file begins like one of gzip or zstd."""
    return file.peek(4).startswith((GZIP, ZSTD))


def name_within(name: str) -> str:
    """The name of what is packed into a file, from which its format may be seen."""
    ending = next((ending for ending in ENDINGS if name.lower().endswith(ending)), "")
    return name.removesuffix(name[-len(ending) :]) if ending else name
