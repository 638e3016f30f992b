"""zstd: Python's own library from 3.14 on, the package zstandard before it, behind the same calls.

Either takes a while to load, and most stores compress nothing: storage/ imports this where it is needed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import BinaryIO, cast

LEVEL = 3  # level 6 and up cost three times the time for at most 15 % of the bytes

if sys.version_info >= (3, 14):
    from compression import zstd

    ERRORS = (zstd.ZstdError, EOFError)

    def compress(content: bytes) -> bytes:
        """One frame, which states the size of its content."""
        return zstd.compress(content, LEVEL)

    def decompress(frame: bytes, most: int) -> bytes:
        """What a frame holds. One of ERRORS where it is not whole, or holds more than so many bytes."""
        unpacking = zstd.ZstdDecompressor()
        content = unpacking.decompress(frame, most + 1)
        if not unpacking.eof or len(content) > most:
            raise zstd.ZstdError(f"the frame is cut off, or holds more than {most} bytes")
        return content

    def stated_size(frame: bytes) -> int | None:
        """How many bytes a frame says it holds. One of ERRORS where it is none."""
        return zstd.get_frame_info(frame).decompressed_size

    def create(path: Path) -> BinaryIO:
        """A new file: what is written to it comes into one frame with a checksum."""
        parameter = zstd.CompressionParameter
        options: dict[int, int] = {parameter.compression_level: LEVEL, parameter.checksum_flag: 1}
        return cast(BinaryIO, zstd.ZstdFile(path, "wb", options=options))

    def unpacked(file: BinaryIO) -> BinaryIO:
        """What the frame in a file holds, to be read. One of ERRORS where it is damaged."""
        return cast(BinaryIO, zstd.ZstdFile(file))

else:
    import zstandard

    ERRORS = (zstandard.ZstdError,)

    class _Contexts(threading.local):
        """What must not be used by two threads at a time: one pair per thread."""

        def __init__(self) -> None:
            self.compressor = zstandard.ZstdCompressor(level=LEVEL)
            self.decompressor = zstandard.ZstdDecompressor()

    _contexts = _Contexts()

    def compress(content: bytes) -> bytes:
        """One frame, which states the size of its content."""
        return _contexts.compressor.compress(content)

    def decompress(frame: bytes, most: int) -> bytes:
        """What a frame holds. One of ERRORS where it is not whole, or states no size and holds more bytes."""
        return _contexts.decompressor.decompress(frame, max_output_size=most)

    def stated_size(frame: bytes) -> int | None:
        """How many bytes a frame says it holds. One of ERRORS where it is none."""
        size = zstandard.frame_content_size(frame)
        return None if size < 0 else size

    def create(path: Path) -> BinaryIO:
        """A new file: what is written to it comes into one frame with a checksum."""
        return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(path.open("wb"))

    def unpacked(file: BinaryIO) -> BinaryIO:
        """What the frame in a file holds, to be read. One of ERRORS where it is damaged."""
        return zstandard.ZstdDecompressor().stream_reader(file)
