"""The journal of a store that an earlier raxlog has written: what its data file lacks after a kill or a power cut.

    key 0 | 05 | 01    the region: one value of 65 pages, in an unbroken run of overflow pages
    key 0 | 05 | 02    its place: [file offset of its first slot, salt (16)]

    page of the value   0        1 … 16     17 … 32    33 … 48    49 … 64
                     +-------+----------+----------+----------+----------+
                     | magic |  slot 0  |  slot 1  |  slot 2  |  slot 3  |   64 KB each
                     +-------+----------+----------+----------+----------+

    slot        record | zeros, or what is left of older ones
    record      xxh3_64 (8) | transaction (8) | length (4) | msgpack [key, value | nil, …]
                            |_________ covered by the checksum ___________________________|

The record of transaction n is in slot n mod 4, and n is LMDB's own number of it. The checksum is seeded by the salt.
Where the newest meta page is of transaction m, the records of m + 1 and m + 2 belong to the store: each is put and
deleted again, in one transaction, which gets its number by itself. What else holds of it: docs/format-journal.md.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import lmdb
import msgpack
from xxhash import xxh3_64_intdigest

from ..errors import CorruptionError
from ..files import log_file
from ..format import keys, records

SLOTS = 4
SLOT_BYTES = 1 << 16

_REGION = keys.family(0, keys.JOURNAL) + b"\x01"
_PLACE = keys.family(0, keys.JOURNAL) + b"\x02"
_HEAD = 20


class Journal:
    """The region of one data file, found and ready."""

    def __init__(self, data: Path, slots: int, salt: bytes) -> None:
        self._file = data.open("rb", buffering=0)
        self._slots = slots
        self._seed = xxh3_64_intdigest(salt)

    def read(self, transaction: int) -> list[Any] | None:
        """The changes recorded for a transaction, in order; None where there is no whole record of it."""
        self._file.seek(self._slots + transaction % SLOTS * SLOT_BYTES)
        slot = self._file.read(SLOT_BYTES)
        end = _HEAD + int.from_bytes(slot[16:20], "little")
        if len(slot) < end or int.from_bytes(slot[8:16], "little") != transaction:
            return None
        if xxh3_64_intdigest(slot[8:end], self._seed) != int.from_bytes(slot[:8], "little"):
            return None
        changes: list[Any] = msgpack.unpackb(slot[_HEAD:end])
        return changes

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def find(opened: lmdb.Environment, data: Path) -> Journal | None:
    """The journal of a data file that has one in its place."""
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


def apply_what_is_due(opened: lmdb.Environment, data: Path) -> int:
    """replay() what the journal of a data file holds, where it has one. Under the writer's lock."""
    kept = find(opened, data)
    if kept is None:
        return 0
    with contextlib.closing(kept):
        return replay(opened, kept)


def is_due(opened: lmdb.Environment, journal: Journal) -> bool:
    """Whether there seems to be something to replay. To be asked again under the writer's lock."""
    return journal.read(int(opened.info()["last_txnid"]) + 1) is not None


def leave_out(txn: lmdb.Transaction) -> None:
    """Take the journal out, which is of no use any more, and what says how far LMDB has the log."""
    for key in (_PLACE, _REGION, log_file.APPLIED):
        txn.delete(key)
