"""The feed: what has been committed to a log, record after record, for one follower at a time.

    ring        after the last checkpoint, up to END
    segments    before it: while a feed is open, each checkpoint writes its part of the ring into a file of its own,
                named by the position it begins at, before LMDB has it and the ring can be used again

No writer ever waits for a follower. The follower holds a lock on a byte of ``log-state``, its lease, which ends with
its process: a checkpoint that finds none removes the segments and writes no more. It does so, too, where the disk is
nearly full. What cannot be given any more is Overwritten, and the follower has to take a new copy. Segments are not
flushed: a power cut ends every feed, and the first process to enter the log removes them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path

from xxhash import xxh3_64_intdigest

from .. import disk
from ..errors import LockTimeout
from ..folder import directory
from ..locks import ofd_lock
from .ring import (
    AFTER_LARGE,
    APPLIED,
    END,
    FED,
    HEAD,
    HEADER,
    LEASE,
    RECORD,
    WORDS,
    Ring,
    decode,
    put_change,
    ring_of,
    room_for,
    seal_record,
)

Changes = list[tuple[bytes, bytes | None]]

SEGMENTS = "segments"
LEAST_FREE = 16 << 20  # bytes that segments leave of the disk
_LARGE = b"\x03"  # in a segment: the record of a transaction that the ring has none of


class Overwritten(Exception):
    """The feed has lost what comes next: nothing kept it, or the disk had no room for it."""


def keep(ring: Ring, start: int, chain: int, upto: int, whole: Changes | None) -> None:
    """In a checkpoint of (start, upto], before LMDB has it: write a segment.

    ``whole``: what it puts there of a transaction that has no record.
    """
    place = ring.path.parent / SEGMENTS
    try:
        if whole is None:
            at, size = start % ring.size, upto - start
            first = ring.map[HEADER + at : HEADER + min(at + size, ring.size)]
            content = first + ring.map[HEADER : HEADER + size - len(first)]
        else:
            at = HEAD + len(_LARGE)
            record = bytearray(at + sum(room_for(key, value) for key, value in whole))
            record[HEAD:at] = _LARGE
            for key, value in whole:
                at = put_change(record, at, key, value, None)
            if at - HEAD >= 1 << 32:
                raise OverflowError(f"{at} bytes")
            del record[at:]
            seal_record(record, start, 0, 0, chain)
            content = bytes(record)
        disk_now = os.statvfs(place)
        if not ofd_lock.is_free(ring.locks, LEASE, 1) and (
                disk_now.f_bavail * disk_now.f_frsize > len(content) + LEAST_FREE):
            with open(place / f"{start:020}", "wb", buffering=0) as file:
                if file.write(content) == len(content):
                    return
    except (OSError, OverflowError) as error:
        if isinstance(error, TimeoutError):
            raise  # a signal's handler did
    ring.words[FED] = 0
    disk.remove_tree(place)


class Feed:
    """The committed records of one generation's log, from the opening on. close() it, whatever strikes open()."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lease: FileIO | None = None
        self.held: tuple[int, bytes] = (0, b"")  # the segment read last, and where it begins

    def open(self, store: bytes) -> None:
        """Take the lease. What a checkpoint that begins after this puts into LMDB is kept. LockTimeout: it is taken."""
        self.size: int = ring_of(self.folder, store)
        self.lease = disk.open_file(self.folder / directory.STATE, os.O_RDWR)
        try:
            ofd_lock.take(self.lease, LEASE, 1)
        except BlockingIOError:
            self.lease = None
            raise LockTimeout(f"another process copies or compacts {self.folder.parent}") from None
        disk.remove_tree(self.folder / SEGMENTS)
        (self.folder / SEGMENTS).mkdir()
        with open(self.folder / directory.LOG, "rb") as file:
            self.ring: mmap.mmap = mmap.mmap(file.fileno(), HEADER + self.size, access=mmap.ACCESS_READ)
        with disk.open_file(self.folder / directory.STATE, os.O_RDWR) as shared:  # without the lease, as in Log
            self.words: memoryview[int] = memoryview(mmap.mmap(shared.fileno(), 2 * WORDS))[WORDS:].cast("Q")
        self.words[FED] = 1

    def end(self) -> int:
        """Up to where the log goes now."""
        return self.words[END]

    def changes(self, after: int, chain: int, get: Callable[[bytes], bytes | None]
                ) -> Iterator[tuple[int, int, Changes]]:
        """What has been committed after a position, up to the end of now: position, checksum, changes of each record.

        ``after`` and ``chain`` are those of the follower's state, and of a record they are those of the state with it.
        Changes are keys with their whole values, None where deleted; each key once. ``get`` gives a key's value in the
        follower's state, with all records applied that were given before: a delta is relative to that. Overwritten.
        """
        end = self.end()
        with disk.ErrorsIgnored():
            for name in self.upto(after)[:-1]:  # not while it goes on: the follower may have to come back to ``after``
                (self.folder / SEGMENTS / name).unlink()
        while after < end:
            start, checksum, body = self.record(after, chain)
            large = body[20:21] == _LARGE
            after, chain = (start + 8, chain ^ AFTER_LARGE) if large else (start + 8 + len(body), checksum)
            if large:
                self.held = (0, b"")  # its segment has more bytes than positions
            yield after, chain, decode(body, 21 if large else 20, partial(_base, get))

    def record(self, after: int, chain: int) -> tuple[int, int, bytes]:
        """The record that follows: its position, its checksum, and what that covers."""
        while True:
            kept = after < self.words[APPLIED]
            begin, content = self.segment(after) if kept else (0, b"")
            for start in (after, after - after % self.size + self.size):
                source, at = (content, start - begin) if kept else (self.ring, HEADER + start % self.size)
                if at + HEAD <= len(source):
                    checksum, length, position, _, _ = RECORD.unpack_from(source, at)
                    body = bytes(source[at + 8 : at + HEAD + length])
                    if position == start and length and len(body) == 20 + length and (
                            xxh3_64_intdigest(body, chain) == checksum):
                        return start, checksum, body
            if kept or after >= self.words[APPLIED]:
                raise Overwritten(f"the log {self.folder / directory.LOG} has no record at position {after} any more")

    def segment(self, after: int) -> tuple[int, bytes]:
        """The segment that holds a position, and where it begins."""
        begin, content = self.held
        if not begin <= after < begin + len(content):
            try:
                name = self.upto(after)[-1]
                self.held = int(name), (self.folder / SEGMENTS / name).read_bytes()
            except (FileNotFoundError, IndexError):
                raise Overwritten(f"no segment of {self.folder} holds position {after}: was the disk full?") from None
        return self.held

    def upto(self, after: int) -> list[str]:
        """The segments that begin up to a position."""
        return sorted(name for name in os.listdir(self.folder / SEGMENTS) if int(name) <= after)

    def close(self) -> None:
        """Give the lease back, and remove the segments."""
        if self.lease is not None and not self.lease.closed:
            disk.remove_tree(self.folder / SEGMENTS)  # a checkpoint that finds no folder writes no more
            ofd_lock.close(self.lease)  # where the system fails the error that ended the copy is raised, not this one


def _base(get: Callable[[bytes], bytes | None], key: bytes) -> bytes:
    base = get(key)
    if base is None:
        raise Overwritten(f"a record is relative to a value of {key!r} that is not there")
    return base
