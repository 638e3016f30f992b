"""zstd: Python's own library from 3.14 on, the package zstandard before it, behind the same calls.

    compress(content)         one frame, which states the size of its content
    decompress(frame, most)   what it holds; one of ERRORS where it is not whole, or holds more bytes than that
    stated_size(frame)        how many bytes it says it holds, None where it does not; one of ERRORS for no frame
    create(path)              a new file: what is written to it comes into one frame, with a checksum
    unpacked(file)            what the frame in a file holds, to be read; one of ERRORS where it is damaged
    unpacking()               of a frame in pieces: decompress(piece), then eof and unused_data; one of ERRORS

Either takes a while to load, and most stores compress nothing: storage/ imports this where it is needed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, cast

LEVEL = 3  # level 6 and up cost three times the time for at most 15 % of the bytes

if sys.version_info >= (3, 14):
    from compression import zstd

    ERRORS = (zstd.ZstdError, EOFError)

    def compress(content: bytes) -> bytes:
        return zstd.compress(content, LEVEL)

    def decompress(frame: bytes, limit: int) -> bytes:
        unpacking = zstd.ZstdDecompressor()
        content = unpacking.decompress(frame, limit + 1)
        if not unpacking.eof or len(content) > limit:
            raise zstd.ZstdError(f"the frame is cut off, or holds more than {limit} bytes")
        return content

    def stated_size(frame: bytes) -> int | None:
        return zstd.get_frame_info(frame).decompressed_size

    def create(path: Path) -> BinaryIO:
        names = zstd.CompressionParameter
        options: dict[int, int] = {names.compression_level: LEVEL, names.checksum_flag: 1}
        return cast(BinaryIO, zstd.ZstdFile(path, "wb", options=options))

    def unpacked(file: BinaryIO) -> BinaryIO:
        return cast(BinaryIO, zstd.ZstdFile(file))

    def unpacking() -> Any:
        return zstd.ZstdDecompressor()

else:
    import zstandard

    ERRORS = (zstandard.ZstdError,)

    class _Contexts(threading.local):
        """What must not be used by two threads at a time: one pair per thread."""

        def __init__(self) -> None:
            self.compress = zstandard.ZstdCompressor(level=LEVEL).compress
            self.decompress = zstandard.ZstdDecompressor().decompress

    _contexts = _Contexts()

    def compress(content: bytes) -> bytes:
        return _contexts.compress(content)

    def decompress(frame: bytes, limit: int) -> bytes:
        return _contexts.decompress(frame, max_output_size=limit)

    def stated_size(frame: bytes) -> int | None:
        size = zstandard.frame_content_size(frame)
        return None if size < 0 else size

    def create(path: Path) -> BinaryIO:
        return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(path.open("wb"))

    def unpacked(file: BinaryIO) -> BinaryIO:
        return zstandard.ZstdDecompressor().stream_reader(file)

    def unpacking() -> Any:
        return zstandard.ZstdDecompressor().decompressobj()
