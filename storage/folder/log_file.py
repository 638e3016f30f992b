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
from ..format import keys, records

LOG, STATE = "log", "log-state"
INSIDE, LEASE = 0, 2  # bytes of the second, locked: by all inside, by that of a feed
APPLIED = keys.family(0, keys.LOG) + b"\x09"
UNUSED = records.seal(APPLIED, [0, 0, 0, 0])  # the record of a log that holds nothing
HEADER = 4096
VERSION = 1
RING = 1 << 20  # bytes
LEAST = 1 << 16
_MAGIC = b"raxlog\x00\x01"
_FIELDS = struct.Struct("<8sQQ16s")


def create(folder: Path, store: bytes, room: int) -> None:
    """Make the log of a data file that may take ``room`` bytes, on disk, and what processes share. OSError.

    The folder is flushed after it.
    """
    free = os.statvfs(folder)
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = min(room, free.f_bavail * free.f_frsize, RING * 8 if limit == resource.RLIM_INFINITY else limit)
    ring = min(RING, max(LEAST, room // 8 & -HEADER))
    body = _FIELDS.pack(_MAGIC, VERSION, ring, store).ljust(HEADER - 8, b"\0")
    with open(folder / LOG, "wb", buffering=LEAST) as file:
        file.write(xxh3_64_intdigest(body).to_bytes(8, "little") + body)
        for start in range(0, ring, LEAST):
            file.write(bytes(min(LEAST, ring - start)))
        file.flush()
        os.fsync(file.fileno())
    (folder / STATE).write_bytes(bytes(2 * HEADER))


def ring_of(folder: Path, store: bytes) -> int:
    """The size of the ring of the log there, which is this store's. CorruptionError, UnsupportedFormat."""
    path = folder / LOG
    try:
        with open(path, "rb", buffering=0) as file:
            header, size = file.read(HEADER), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise CorruptionError(
            f"the log {path} is missing: without it what has been acknowledged last may be lost"
        ) from None
    if len(header) < HEADER or xxh3_64_intdigest(header[8:]) != int.from_bytes(header[:8], "little"):
        raise CorruptionError(f"the header of the log {path} fails its check")
    magic, version, ring, owner = _FIELDS.unpack_from(header, 8)
    if magic != _MAGIC or version > VERSION:
        raise UnsupportedFormat(
            f"{path} is a log of format {version}; this raxlog reads up to {VERSION}. Open it with a newer raxlog."
        )
    if owner != store:
        raise CorruptionError(f"{path} is the log of another store: not what this one has acknowledged is in it")
    if ring < 4 * HEADER or ring % HEADER:
        raise CorruptionError(f"the log {path} states a ring of {ring} bytes, which no log has")
    if size != HEADER + ring:
        raise CorruptionError(f"the log {path} is cut off or lengthened: it has {size} bytes, and had {HEADER + ring}")
    return int(ring)
