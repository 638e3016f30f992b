"""The journal: what lets a durable commit flush once instead of twice.

LMDB flushes a commit's pages, then writes its meta page and flushes that. With the second
flush left out (``metasync=False``) a power cut can undo the last commit. The journal makes up
for it: before the commit, what the transaction put and deleted is written into a region of
LMDB's own data file, so that LMDB's one flush of that file covers it too.

    key 0 | 05 | 01    the region: one value of 65 pages, in an unbroken run of overflow pages
    key 0 | 05 | 02    where it lies: [file offset of its first slot, salt (16)]

    page of the value   0        1 … 16     17 … 32    33 … 48    49 … 64
                     +-------+----------+----------+----------+----------+
                     | magic |  slot 0  |  slot 1  |  slot 2  |  slot 3  |   64 KB each
                     +-------+----------+----------+----------+----------+

    slot        record | record | …       each on a page of its own
    record      xxh3_64 (8) | transaction (8) | length (4) | msgpack [key, value | nil, …]
                            |_________ covered by the checksum ___________________________|

Transaction n goes into slot n mod 4, and n is LMDB's own number of it: one more with each
commit, whoever makes it. Usually it has one record. Where a process runs ahead of the map
(ahead.py) the transaction grows: each commit of the process adds a record, flushed by itself,
and LMDB commits with the last. The first checksum of a slot is seeded by the salt, each other
by the one before it, so that nothing left over from another transaction can follow.

What the file says after a power cut, or a kill, and what is done about it:

    newest meta    slots hold             then
    n              not n + 1              nothing is missing
    n - 1          n                      n is put and deleted again
    n - 2          n - 1, n               both, in order

It is never more than two: commit n flushes the meta page of n - 1 with its own pages. LMDB
uses no page of the states n - 2 and n - 1 again while it writes n, so what the records are
applied to is whole. Four slots, where two would do, leave room for an error of ours.

A commit too large for what is left of a slot gets no record; it pays the second flush, as all of
them do where there is no journal. So does everything if the region cannot be made or found.

What must hold, and where it is seen to:
  - record n is in the file before commit n's flush (WriteTransaction.commit)
  - a number that has had records is used up by LMDB, also where these cancel out (replay(),
    WriteTransaction.commit): else the next commit's record would have old ones behind it
  - a record whose commit failed is struck out before the writer's lock is given back
    (settle()): else a power cut would bring back what was reported as failed
  - records are applied under the writer's lock and before the first read (replay())
  - the region's key is neither put nor deleted while it is in use: LMDB never moves a value
    that nobody touches. A copy of the file in which it lies elsewhere, or has been left out,
    has no slot where the second record says: then it is made anew, with another salt

A reader who opens the store with ``readonly=True``, before anybody has opened it for writing,
has them applied too, unless he may not write (StoreMap._visit): he sees them missing then.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import msgpack
from xxhash import xxh3_64_intdigest

from . import layout, records
from .errors import CorruptionError

SLOTS = 4
SLOT_BYTES = 1 << 16
LIMIT = SLOT_BYTES - 20 - 16  # of keys and values in a record; the rest is heads

_REGION = layout.family(0, layout.JOURNAL) + b"\x01"
_PLACE = layout.family(0, layout.JOURNAL) + b"\x02"
_MAGIC = b"raxlog journal\x00\x01"
_HEAD = 20
_PAGE = 4096
_PIECE = 1 << 20
_pack = msgpack.Packer().pack


class Record(NamedTuple):
    """A record of one transaction, made but not written yet."""

    transaction: int
    offset: int  # in its slot
    content: bytes
    end: int  # where the next one goes
    checksum: int  # and what that one's is seeded with


class Journal:
    """The region of one environment's data file, found and ready. Used under the writer's lock."""

    __slots__ = ("_direct", "_file", "_page", "_seed", "_slots", "written")

    def __init__(self, data: Path, slots: int, salt: bytes) -> None:
        self._file = os.open(data, os.O_RDWR | os.O_CLOEXEC)
        self._direct = _open_direct(data)
        self._page: mmap.mmap | None = None
        self._slots = slots
        self._seed = xxh3_64_intdigest(salt)
        self.written: Record | None = None  # the one whose commit has not come to its end

    def record(self, transaction: int, changes: dict[bytes, bytes | None], behind: Record | None) -> Record | None:
        """A record of these changes, behind another of the same transaction. None where it has no room in the slot."""
        row: list[bytes | None] = []
        for change in changes.items():
            row += change
        body = _pack(row)
        offset, seed = (0, self._seed) if behind is None else (behind.end, behind.checksum)
        end = offset + _aligned(_HEAD + len(body))
        if end > SLOT_BYTES:
            return None
        covered = transaction.to_bytes(8, "little") + len(body).to_bytes(4, "little") + body
        checksum = xxh3_64_intdigest(covered, seed)
        return Record(transaction, offset, checksum.to_bytes(8, "little") + covered, end, checksum)

    def write(self, record: Record) -> bool:
        """Write a record, for LMDB's flush to put on disk. False: it got none."""
        self.written = record
        # Whole pages: those that write_through() has written are not in memory, and would be read first.
        content = record.content.ljust(record.end - record.offset, b"\0")
        with contextlib.suppress(OSError):
            if os.pwrite(self._file, content, self._place(record)) == len(content):
                return True
        with contextlib.suppress(OSError):  # a broken disk: who ends the transaction tries it again
            self.strike_out()
        return False

    def write_through(self, record: Record) -> bool:
        """Write a record; when this returns True it is on disk, with nothing else of the file.

        Straight from a page of ours, where the system can: a tenth faster than by way of its own.
        """
        self.written = record
        length = record.end - record.offset
        try:
            if self._direct >= 0:
                if self._page is None:
                    self._page = mmap.mmap(-1, SLOT_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                self._page[:length] = record.content.ljust(length, b"\0")
                with memoryview(self._page)[:length] as content:
                    if os.pwrite(self._direct, content, self._place(record)) == length:
                        return True
        except OSError as error:
            if error.errno != errno.EINVAL:
                return False
            self._close_direct()  # not on this file system, or not in pages of this size
        if not self.write(record):
            return False
        try:
            os.fdatasync(self._file)
        except OSError:
            return False
        return True

    def strike_out(self) -> None:
        """Make the record last written void, on disk: its commit has failed."""
        if self.written is not None:
            os.pwrite(self._file, bytes(_HEAD), self._place(self.written))
            os.fdatasync(self._file)
            self.written = None

    def read(self, transaction: int) -> list[Any] | None:
        """The changes recorded for a transaction, in order; None where there is no whole record of it."""
        changes: list[Any] = []
        offset, seed = 0, self._seed
        while (found := self._read_at(transaction, offset, seed)) is not None:
            offset, seed, row = found
            changes += row
        return changes if offset else None

    def _read_at(self, transaction: int, offset: int, seed: int) -> tuple[int, int, list[Any]] | None:
        """Where the record there ends, its checksum, its changes."""
        place = self._slot(transaction) + offset
        head = os.pread(self._file, _HEAD, place)
        if offset >= SLOT_BYTES or len(head) < _HEAD or int.from_bytes(head[8:16], "little") != transaction:
            return None
        length = int.from_bytes(head[16:], "little")
        if offset + _HEAD + length > SLOT_BYTES:
            return None
        covered = head[8:] + os.pread(self._file, length, place + _HEAD)
        checksum = xxh3_64_intdigest(covered, seed)
        if checksum != int.from_bytes(head[:8], "little"):
            return None
        return offset + _aligned(_HEAD + length), checksum, msgpack.unpackb(covered[12:])

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
        self._close_direct()

    def _close_direct(self) -> None:
        if self._direct >= 0:
            os.close(self._direct)
            self._direct = -1

    def _place(self, record: Record) -> int:
        return self._slot(record.transaction) + record.offset

    def _slot(self, transaction: int) -> int:
        return self._slots + transaction % SLOTS * SLOT_BYTES


def _aligned(length: int) -> int:
    """The next record begins on a page of its own: writing it must not put those before it at risk."""
    return -(-length // _PAGE) * _PAGE


def _open_direct(data: Path) -> int:
    if not hasattr(os, "O_DIRECT"):
        return -1
    try:
        return os.open(data, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT | os.O_DSYNC)
    except OSError:
        return -1


def find(environment: lmdb.Environment, data: Path) -> Journal | None:
    """The journal of a data file that has one in its place; None where it has to be made."""
    with environment.begin() as txn:
        value = txn.get(_PLACE)
    if value is None:
        return None
    try:
        place, salt = records.unseal(_PLACE, value)
    except CorruptionError:
        return None
    page = int(environment.stat()["psize"])
    with data.open("rb") as file:
        file.seek(place - page)
        if salt not in file.read(page):
            return None
    return Journal(data, place, salt)


def is_supported() -> bool:
    """Whether this system's flush is known to cover what was written to the file by itself."""
    return sys.platform == "linux"


def make(environment: lmdb.Environment, data: Path) -> Journal | None:
    """Put a new region into the file, and find where LMDB laid it. None where there is no room.

    Under the writer's lock. Two commits, flushed before the region is used.
    """
    page = int(environment.stat()["psize"])
    salt = os.urandom(16)
    region = (_MAGIC + salt).ljust(page + SLOTS * SLOT_BYTES - 16, b"\0")
    with contextlib.suppress(lmdb.MapFullError):
        with environment.begin(write=True) as txn:
            txn.put(_PLACE, records.seal(_PLACE, [page, salt]))  # where it does not lie
            txn.put(_REGION, region)
        environment.sync(True)
        renew(environment, data)
        environment.sync(True)
        return find(environment, data)
    return None


def renew(environment: lmdb.Environment, data: Path) -> None:
    """Find where the region lies, in a copy of the file too, and give it another salt.

    Else the records of old transactions would be taken for those of new ones with their numbers.
    """
    with environment.begin(write=True) as txn:
        page, salt = int(environment.stat()["psize"]), os.urandom(16)
        at = _search(data, _MAGIC + records.unseal(_PLACE, txn.get(_PLACE) or b"")[1])
        if at is not None:  # else no slot is where the record says, and it is made anew
            with data.open("r+b") as file:
                file.seek(at + len(_MAGIC))
                file.write(salt)
            txn.put(_PLACE, records.seal(_PLACE, [at // page * page + page, salt]))


def replay(environment: lmdb.Environment, journal: Journal) -> int:
    """Put and delete again what a power cut has undone; how many transactions that were.

    Under the writer's lock, before the first read. MapFullError where the map must grow first.
    """
    done = 0
    while True:
        with environment.begin(write=True) as txn:
            # Read inside the transaction, while nobody can add to it.
            row = journal.read(txn.id())
            if row is None:
                break
            for key, value in zip(row[::2], row[1::2], strict=True):
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)
            # It must use its number up, also where its records cancel out: nothing may follow them in their slot.
            txn.put(layout.STORE_KEY, txn.get(layout.STORE_KEY) or b"")
        done += 1
    if done:
        environment.sync(True)
    return done


def apply_what_is_due(environment: lmdb.Environment, data: Path) -> None:
    """replay() what the journal of a data file holds, where it has one. Under the writer's lock."""
    kept = find(environment, data)
    if kept is not None:
        try:
            replay(environment, kept)
        finally:
            kept.close()


def is_due(environment: lmdb.Environment, journal: Journal) -> bool:
    """Whether there seems to be something to replay. To be asked again under the writer's lock."""
    return journal.read(_last(environment) + 1) is not None


def leave_out(environment: lmdb.Environment) -> None:
    """Take the region out of a copy of the file, where it is of no use."""
    with environment.begin(write=True) as txn:
        txn.delete(_PLACE)
        txn.delete(_REGION)


def _last(environment: lmdb.Environment) -> int:
    return int(environment.info()["last_txnid"])


def _search(data: Path, wanted: bytes) -> int | None:
    """The offset of the bytes, searched from the end, where new pages are."""
    with data.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _PIECE)
            file.seek(start)
            piece = file.read(end - start + len(wanted))
            at = piece.rfind(wanted)
            if at >= 0:
                return int(start + at)
            end = start
    return None
