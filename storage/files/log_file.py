"""The log's file: a header, and the ring of records behind it (log.py).

    +----------+---------+-----------+----------+--------------+-------------+
    | xxh3_64  | magic   | version   | ring     | store's ID   | zeros …     |  ring …
    +----------+---------+-----------+----------+--------------+-------------+
      8          8         8           8 (bytes)  16             up to 4,096    integers little-endian

It lies beside the data file, of which the record APPLIED says up to where it holds what the log does. A data file
with that record is never used without its log.
"""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path

from xxhash import xxh3_64_intdigest

from ..errors import CorruptionError, UnsupportedFormat
from ..format import keys

LOG, STATE = "log", "log-state"
APPLIED = keys.family(0, keys.JOURNAL) + b"\x09"
HEADER = 4096
VERSION = 1
RING = 1 << 22  # bytes
LEAST = 1 << 16
_MAGIC = b"raxlog\x00\x01"
_FIELDS = struct.Struct("<8sQQ16s")


def asked_ring(room: int) -> int:
    """How many bytes of ring a new store with so much room gets; 0: no log.

    By the environment variable RAXLOG_LOG: 1, or another size, which is for tests.
    """
    asked = int(os.environ.get("RAXLOG_LOG") or 0)
    if asked == 1:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        room = room if limit == resource.RLIM_INFINITY else min(room, limit)
        return min(RING, max(LEAST, room // 8 & -HEADER))
    return asked


def create(folder: Path, store: bytes, ring: int) -> None:
    """Make the log of a new data file, on disk, and what processes share; the folder is flushed after it. OSError."""
    body = _FIELDS.pack(_MAGIC, VERSION, ring, store).ljust(HEADER - 8, b"\0")
    with open(folder / LOG, "wb", buffering=HEADER) as file:
        file.write(xxh3_64_intdigest(body).to_bytes(8, "little") + body)
        for _ in range(0, ring, HEADER):  # page by page: what is written at once lies in one large folio of the cache
            file.write(bytes(HEADER))
        file.flush()
        os.fsync(file.fileno())
    (folder / STATE).write_bytes(bytes(2 * HEADER))


def ring_of(folder: Path, store: bytes) -> int:
    """The size of the ring of the log there, which is this store's. CorruptionError, UnsupportedFormat."""
    path = folder / LOG
    with open(path, "rb", buffering=0) as file:
        header, size = file.read(HEADER), os.fstat(file.fileno()).st_size
    if len(header) < HEADER or xxh3_64_intdigest(header[8:]) != int.from_bytes(header[:8], "little"):
        raise CorruptionError(f"the header of the log {path} fails its check")
    magic, version, ring, owner = _FIELDS.unpack_from(header, 8)
    if magic != _MAGIC or version > VERSION:
        raise UnsupportedFormat(
            f"{path} is a log of format {version}; this raxlog reads up to {VERSION}. Open it with a newer raxlog."
        )
    if owner != store:
        raise CorruptionError(f"{path} is the log of another store: not what this one has acknowledged is in it")
    if size != HEADER + ring:
        raise CorruptionError(f"the log {path} is cut off or lengthened: it has {size} bytes, and had {HEADER + ring}")
    return int(ring)
