"""The journal: what lets a durable commit flush once instead of twice.

LMDB flushes a commit's pages, then writes its meta page and flushes that. With the second
flush left out (``metasync=False``) a power cut can undo the last commit. The journal makes up
for it: before the commit, what the transaction put and deleted is written into a region of
LMDB's own data file, so that LMDB's one flush of that file covers it too.

    key 0 | 05 | 01    the region: one value of 65 pages, in an unbroken run of overflow pages
    key 0 | 05 | 02    its place: [file offset of its first slot, salt (16)]

    page of the value   0        1 … 16     17 … 32    33 … 48    49 … 64
                     +-------+----------+----------+----------+----------+
                     | magic |  slot 0  |  slot 1  |  slot 2  |  slot 3  |   64 KB each
                     +-------+----------+----------+----------+----------+

    slot        record | zeros, or what is left of older ones
    record      xxh3_64 (8) | transaction (8) | length (4) | msgpack [key, value | nil, …]
                            |_________ covered by the checksum ___________________________|

Transaction n goes into slot n mod 4, and n is LMDB's own number of it: one more with each
commit, in whatever process. The checksum is seeded by the salt.

What the file says after a power cut, or a kill, and what is done about it:

    newest meta    slots hold             then
    n              not n + 1              nothing is missing
    n - 1          n                      n is put and deleted again
    n - 2          n - 1, n               both, in order

It is never more than two: commit n flushes the meta page of n - 1 with its own pages. LMDB
uses no page of the states n - 2 and n - 1 again while it writes n, so what the records are
applied to is whole. A commit too large for a slot gets no record; it pays for the second flush,
as all of them do where the region cannot be made or found.

What must hold, and where it is seen to:
  - record n is in the file before commit n's flush (WriteTransaction.commit)
  - a number that has had a record is used up by LMDB, also where its changes cancel out (replay()):
    else the record would be due again
  - a record whose commit failed is struck out before the writer's lock is released
    (settle()): else a power cut would bring back what was reported as failed
  - records are applied under the writer's lock and before the first read (replay())
  - the region's key is neither put nor deleted while it is in use: LMDB never moves a value
    that is not touched. A copy of the file that holds it elsewhere, or not at all,
    has no slot where the second record says: then another is made, with another salt
  - a reader that opens first after a power cut has them applied too, where it may write (show_journal())
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from bisect import bisect_right
from pathlib import Path
from typing import Any

import lmdb
import msgpack
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from ..errors import CorruptionError
from ..files import disk, lmdb_file, log_file
from ..files.lmdb_file import PageFault, PageFile
from ..format import keys, records

SOURCE_HASH = ""

SLOTS = 4
SLOT_BYTES = 1 << 16
LIMIT = SLOT_BYTES - 20 - 16  # of keys and values in a record; the rest is heads

_REGION = keys.family(0, keys.JOURNAL) + b"\x01"
_PLACE = keys.family(0, keys.JOURNAL) + b"\x02"
_MAGIC = b"raxlog journal\x00\x01"
_HEAD = 20
_COVERED = struct.Struct("<QI")
_DEEPEST = 32
_pack = msgpack.Packer().pack


class Journal:
    """The region of one environment's data file, found and ready. Used under the writer's lock."""

    __slots__ = ("_file", "_seed", "_slots", "data", "written")

    def __init__(self, data: Path, slots: int, salt: bytes) -> None:
        self.data = data
        self._file = disk.open_file(data, os.O_RDWR)
        self._slots = slots
        self._seed = xxh3_64_intdigest(salt)
        self.written: int | None = None  # the transaction with a record and a commit that has not ended

    def write(self, transaction: int, changes: dict[bytes, bytes | None]) -> bool:
        """Write a transaction's record, for LMDB's flush to put on disk. False: it got none."""
        body = _pack([one for change in changes.items() for one in change])
        if _HEAD + len(body) > SLOT_BYTES:
            return False
        covered = _COVERED.pack(transaction, len(body)) + body
        # xxhash gives digests big-endian; the bytes are reversed to lie little-endian on disk.
        content = xxh3_64_digest(covered, self._seed)[::-1] + covered
        self.written = transaction
        try:
            if os.pwrite(self._file.fileno(), content, self._slots + transaction % SLOTS * SLOT_BYTES) == len(content):
                return True
        except TimeoutError:
            raise  # a signal's handler did
        except OSError:
            pass
        with disk.ErrorsIgnored():  # a broken disk: it is tried again when the transaction ends
            self.strike_out()
        return False

    def strike_out(self) -> None:
        """Make the record last written void, on disk: its commit has failed."""
        if self.written is not None:
            os.pwrite(self._file.fileno(), bytes(_HEAD), self._slot(self.written))
            os.fdatasync(self._file.fileno())
            self.written = None

    def read(self, transaction: int) -> list[Any] | None:
        """The changes recorded for a transaction, in order; None where there is no whole record of it."""
        slot = self._slot(transaction)
        head = os.pread(self._file.fileno(), _HEAD, slot)
        if len(head) < _HEAD or int.from_bytes(head[8:16], "little") != transaction:
            return None
        length = int.from_bytes(head[16:], "little")
        if _HEAD + length > SLOT_BYTES:
            return None
        covered = head[8:] + os.pread(self._file.fileno(), length, slot + _HEAD)
        if xxh3_64_intdigest(covered, self._seed) != int.from_bytes(head[:8], "little"):
            return None
        changes: list[Any] = msgpack.unpackb(covered[12:])
        return changes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _slot(self, transaction: int) -> int:
        return self._slots + transaction % SLOTS * SLOT_BYTES


def find(opened: lmdb.Environment, data: Path) -> Journal | None:
    """The journal of a data file that has one in its place; None where it has to be made."""
    with opened.begin() as txn:
        value = txn.get(_PLACE)
    if value is None:
        return None
    try:
        place, salt = records.unseal(_PLACE, value)
    except CorruptionError:
        return None
    page = int(opened.stat()["psize"])
    with data.open("rb") as file:
        file.seek(place - page)
        if salt not in file.read(page):
            return None
    return Journal(data, place, salt)


def is_supported() -> bool:
    """Whether this system's flush is known to cover what was written to the file by itself."""
    return sys.platform == "linux"


def make(opened: lmdb.Environment, data: Path) -> Journal | None:
    """Put a new region into the file, and find where LMDB laid it. None where there is no room.

    Under the writer's lock. Two commits, flushed before the region is used.
    """
    page = int(opened.stat()["psize"])
    salt = os.urandom(16)
    region = (_MAGIC + salt).ljust(page + SLOTS * SLOT_BYTES - 16, b"\0")
    with contextlib.suppress(lmdb.MapFullError):
        with opened.begin(write=True) as txn:
            txn.put(_PLACE, records.seal(_PLACE, [page, salt]))  # where it does not lie
            txn.put(_REGION, region)
        opened.sync(True)
        renew(opened, data)
        opened.sync(True)
        return find(opened, data)
    return None


def renew(opened: lmdb.Environment, data: Path) -> None:
    """Find the region's place, in a copy of the file too, and put another salt there.

    Else the records of old transactions would be taken for those of new ones with their numbers.
    """
    with opened.begin(write=True) as txn:
        page, salt = int(opened.stat()["psize"]), os.urandom(16)
        at = _find_region(data)
        if at is not None:  # else no slot is where the record says, and another region is made
            with data.open("r+b") as file:
                file.seek(at + len(_MAGIC))
                file.write(salt)
            txn.put(_PLACE, records.seal(_PLACE, [at // page * page + page, salt]))


def replay(opened: lmdb.Environment, journal: Journal) -> int:
    """Put and delete again what a power cut has undone; how many transactions that were.

    Under the writer's lock, before the first read. MapFullError where the map must grow first.
    """
    done = 0
    while True:
        with opened.begin(write=True) as txn:
            # Read inside the transaction: no writer can add to it.
            row = journal.read(txn.id())
            if row is None:
                break
            for key, value in zip(row[::2], row[1::2], strict=True):
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)
            # It must use its number up, also where its records cancel out: nothing may follow them in their slot.
            txn.put(keys.STORE_KEY, txn.get(keys.STORE_KEY) or b"")
        done += 1
    if done:
        opened.sync(True)
    return done


def renew_metas(opened: lmdb.Environment) -> None:
    """Write both meta pages again, and flush each: after a failed flush the system may keep one in
    memory that is not on disk. Under the writer's lock."""
    for _ in range(2):
        with opened.begin(write=True) as txn:
            txn.put(keys.STORE_KEY, txn.get(keys.STORE_KEY) or b"")
        opened.sync(True)


def apply_what_is_due(opened: lmdb.Environment, data: Path) -> None:
    """replay() what the journal of a data file holds, where it has one. Under the writer's lock."""
    kept = find(opened, data)
    if kept is not None:
        with contextlib.closing(kept):
            replay(opened, kept)


def is_due(opened: lmdb.Environment, journal: Journal) -> bool:
    """Whether there seems to be something to replay. To be asked again under the writer's lock."""
    return journal.read(int(opened.info()["last_txnid"]) + 1) is not None


def leave_out(opened: lmdb.Environment) -> None:
    """Take the region out of a copy of the file, where it is of no use, or what says how far it has the log."""
    with opened.begin(write=True) as txn:
        for key in (_PLACE, _REGION, log_file.APPLIED):
            txn.delete(key)


def _find_region(data: Path) -> int | None:
    """The offset of the region's value, by LMDB's tree: a search for its bytes would read the whole file."""
    with contextlib.suppress(PageFault, IndexError, StopIteration), PageFile(data) as file:
        number = file.metas()[0].root
        for _ in range(_DEEPEST):
            page = file.page(number)
            if not lmdb_file.flags_of(page) & lmdb_file.BRANCH:
                found = next(one for one in lmdb_file.leaf(number, page) if one.key == _REGION)
                if not file.value(found).startswith(_MAGIC):
                    return None
                return found.overflow * file.page_size + lmdb_file.HEADER
            branch = lmdb_file.branch(number, page)
            number = branch.pages[bisect_right(branch.keys, _REGION) - 1]
    return None
