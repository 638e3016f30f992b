"""The ring: the log's file, the records in it, each chained to the one before, and the words that processes share.

    log          a header, and the ring, written with zeros once

    +----------+---------+-----------+----------+--------------+-------------+
    | xxh3_64  | magic   | version   | ring     | store's ID   | zeros …     |  ring …
    +----------+---------+-----------+----------+--------------+-------------+
      8          8         8           8 (bytes)  16             up to 4,096    integers little-endian

It lies beside the data file, of which the record APPLIED_KEY says up to where it holds what the log does. A data file
with that record is never used without its log.

    LSN ─ an ever-growing byte position; place = LSN mod ring size
    record    checksum (8), seeded by the one before │ length (4) │ LSN (8) │ pages freed (4) │ epoch (4) │ changes
              epoch: random per opening, two more in each lap; odd where every earlier record was on disk already.
              It keeps a stale record from being valid after a write that was torn, or that a power cut has taken

    change    0 delete │ 1 put │ 2 delta: the first 48 bytes, how many behind them to keep, new bytes
    delete    0 │ key length (2) │ key
    put       1 │ key length (2) │ value length (4) │ key │ value
    delta     2 │ key length (2) │ kept (4) │ new (4) │ key │ 48 bytes │ the new bytes

A delta is relative to the value before: a node that has grown is its old form up to the end mark.

    log-state    two pages: the words of the checkpoint's lock; then words of all processes. Byte 0 is locked by all
                 that are inside, byte 2 by the follower of a feed

    0 END        what counts                           5 GIVEN   pages that the last checkpoint may have given back
    1 APPLIED    up to where LMDB has it               6 OWNER   two words: the store's ID
    2 FLUSHED    up to where the disk has it           8 FED     whether a feed is open (feed.py)
    3 LARGE      a transaction without a record,       9 KEPT    where the record begins that ends at APPLIED
                 up to here, is under way             10 CLOCK   three words, of clocks.Watch
    4 AGED       empty commits of LMDB's, counted

What is behind END, and valid in the chain, is an orphan: of a call that was killed, or is under way.

Where no other process is inside, the end for one that enters is that of the valid chain, whatever the word END says.
Records were there behind it, and are damaged, where

    the words know     OWNER is this store, and FLUSHED lies further: what was on disk once is
    the tree knows     nothing follows the applied LSN, and the record that ends there is not in the ring
    a record knows     one behind the end says that all before it had been on disk

In all other cases what is behind the end was never durable: a torn write, or one that a power cut has taken.
"""


from __future__ import annotations

import array
import contextlib
import mmap
import os
import resource
import struct
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from raxlog.storage import disk
from raxlog.storage.errors import CorruptionError, UnsupportedFormat
from raxlog.storage.folder.directory import LOG, STATE
from raxlog.storage.format import keys, records
from raxlog.storage.format.binary import blank, put_checksum, put_delete, put_delta, put_put, put_record_head  # cimport
from raxlog.storage.locks import ofd_lock
from raxlog.storage.locks.shared_file import open_in_place
from raxlog.storage.tree import lmdb_errors
from xxhash import xxh3_64_intdigest

SOURCE_HASH = ""

INSIDE, LEASE = 0, 2  # bytes of log-state, locked: by all inside, by that of a feed
APPLIED_KEY = keys.family(0, keys.LOG) + b"\x09"
UNUSED = records.seal(APPLIED_KEY, [0, 0, 0, 0])  # the record of a log that holds nothing
HEADER = 4096
VERSION = 1
RING = 1 << 20  # bytes
LEAST = 1 << 16
_MAGIC = b"raxlog\x00\x01"
_FIELDS = struct.Struct("<8sQQ16s")
HEAD = 28
RECORD = struct.Struct("<QIQII")
DELTA_HEAD = 48
CHUNK = 256
END, APPLIED, FLUSHED, LARGE, AGED, GIVEN, OWNER, FED, KEPT, CLOCK = 0, 1, 2, 3, 4, 5, 6, 8, 9, 10
WORDS = 4096  # their place in log-state
AFTER_LARGE = 0x5DEECE66D  # into the checksum, by a transaction that has no record


def create_log(folder: Path, store: bytes, room: int) -> None:
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


def unseal_applied(value: bytes | None) -> tuple[int, int, tuple[int, int]]:
    """What LMDB has applied, and the checksum there; where the record begins that ends there, and the one before it.

    Where the ring holds none, it begins where it ends.
    """
    if value is None:
        return 0, 0, (0, 0)
    upto, chain, start, seed = records.unseal(APPLIED_KEY, value)
    return upto, chain, (start, seed)


class LogError(lmdb_errors.Error):
    """The disk has failed under the log: to the layers above like an error of LMDB's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.errno: int | None = error.errno


class DiskErrors(contextlib.AbstractContextManager[None]):
    """A block in which an error of the disk is a LogError. TimeoutError passes: a signal's handler raised it."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            raise LogError(error) from error


class Ring:
    """The files of one log, open in this process.

    Not ``shares``: the store is at rest, and nothing in its folder may be written; then ``locks`` is None.
    """

    def __init__(self, folder: Path, owner: bytes, *, readonly: bool, shares: bool) -> None:
        self.path: Path = folder / LOG
        self.owner: tuple[int, int] = struct.unpack("<QQ", owner)
        self.size: int = ring_of(folder, owner)
        self.epoch: int = int.from_bytes(os.urandom(4), "little") & ~1
        self.locks: Any = None  # log-state, for its locks
        self.shared: mmap.mmap = mmap.mmap(-1, 2 * WORDS)
        self.words: memoryview[int] = memoryview(array.array("Q", bytes(128)))
        state = folder / STATE
        if shares:
            self.open_state(state)
        else:
            with contextlib.suppress(OSError):  # it says how far the log has to reach; nothing is written to it
                shown = bytearray(state.read_bytes()[WORDS : WORDS + 128])
                self.words = memoryview(shown.ljust(128, b"\0")).cast("Q")
        flags = os.O_CLOEXEC | (os.O_RDONLY if readonly else os.O_RDWR)
        self.files: list[FileIO] = [FileIO(os.open(self.path, flags | also), "rb") for also in (0, os.O_DSYNC)]
        self.file: int = self.files[0].fileno()
        self.synced: int = self.files[1].fileno()
        self.map: mmap.mmap = mmap.mmap(self.file, HEADER + self.size, access=mmap.ACCESS_READ)

    def open_state(self, path: Path) -> None:
        """Open what the processes share."""
        self.locks = open_in_place(path)
        if os.fstat(self.locks.fileno()).st_size < 2 * WORDS:
            disk.allocate(path, 0, 2 * WORDS)  # writes nothing: another process may have done so by now
        with disk.open_file(path, os.O_RDWR) as file:  # without locks: a map keeps it open, in a forked child too
            self.shared = mmap.mmap(file.fileno(), 2 * WORDS)
        self.words = memoryview(self.shared)[WORDS:].cast("Q")

    def close_files(self) -> None:
        """Close all, and leave the log to the others. May be run again."""
        self.file = self.synced = -1
        if self.locks is not None and not self.locks.closed:  # what is mapped would keep the locks with it
            with disk.ErrorsIgnored():
                ofd_lock.give_back(self.locks, INSIDE, 0)
        self.words = memoryview(array.array("Q", [self.words[at] for at in range(16)]))
        for mapped in (self.map, self.shared):
            with contextlib.suppress(BufferError):  # another thread looks into it at this moment: it goes with the ring
                mapped.close()
        for file in (self.locks, *self.files):
            if file is not None:
                file.close()

    # -- reading ------------------------------------------------------------------------

    def record_at(self, place: int, lsn: int, chain: int) -> bytes | None:
        """The record of this LSN there, if it is valid behind one with this checksum."""
        record = record_in(self.map, HEADER + place, self.size - place, lsn)
        if record is not None and xxh3_64_intdigest(cut(record, 8, len(record)), chain) != read_u64(record, 0):
            record = None
        return record

    def record_after(self, lsn: int, chain: int) -> bytes | None:
        """The record that follows, in this lap or at the beginning of the next; None where there is no valid one."""
        place = lsn % self.size
        return self.record_at(place, lsn, chain) or self.record_at(0, lsn + self.size - place, chain)

    def lsn_at(self, place: int) -> int:
        """The LSN of the record that begins there, if one does; 0 at the end of the ring."""
        return int(RECORD.unpack_from(self.map, HEADER + place)[2]) if place + HEAD <= self.size else 0

    def first_epoch(self, lsn: int, written: int) -> int:
        """The epoch of the opening that wrote a record: in the record it is two more for each lap."""
        return (written - 2 * (lsn // self.size)) & 0xFFFFFFFE

    # -- writing ------------------------------------------------------------------------

    def strike_out(self, place: int) -> None:
        """Make a record void, on disk. OSError."""
        os.pwrite(self.file, bytes(HEAD), HEADER + place)
        os.fdatasync(self.file)

    def strike_out_orphan(self, end: int, chain: int) -> None:
        """Make void what a killed call has left behind the end, where what comes next goes elsewhere. LogError.

        In the chain of those that follow it would come first.
        """
        place = end % self.size
        with DiskErrors():
            for at, lsn in ((place, end), (0, end + self.size - place)):
                if self.record_at(at, lsn, chain) is not None:
                    self.strike_out(at)

    def flush(self) -> None:
        """fdatasync: every record that counts as this begins is on disk when it returns. LogError."""
        end, file = self.words[END], self.file
        if file < 0:
            return  # closed, which an exception has broken off
        with DiskErrors():
            os.fdatasync(file)
        self.words[FLUSHED] = max(end, self.words[FLUSHED])


# -- what is damage, and what is only behind the end ------------------------------------


def find_damage(ring: Ring, end: int, last_epoch: int, is_short: bool) -> CorruptionError | None:
    """What is wrong where the chain ``is_short``, or a record behind its end shows that it is.

    ``last_epoch``: that of the opening that wrote the last record of the chain.

    A sector of a torn write beside one of the lap before can look like a record's head, with that one's epoch. So
    what shows more must be valid behind what can be a record's head, or of an epoch that is known, in this lap.
    """
    size, lap = ring.size, end - end % ring.size
    missing, _, lsn, _, epoch = RECORD.unpack(ring.map[HEADER + end - lap :][:HEAD].ljust(HEAD, b"\0"))
    # The head at the end itself may be whole where what follows it is torn: then its epoch is known, too.
    known = {last_epoch, ring.first_epoch(end, epoch) if lsn == end else last_epoch}

    def shows_more(first: int, place: int, can_be_known: bool) -> bool:
        """Whether the record there, or what is valid behind it or in its place, says that all before was on disk."""
        checksum, length, _, _, epoch = RECORD.unpack_from(ring.map, HEADER + place)
        after = place + HEAD + length
        return (
            (can_be_known and epoch & 1 and ring.first_epoch(first, epoch) in known)
            or says_all_before(ring, place, first, missing)  # it follows the one that is damaged
            or says_all_before(ring, after, first + HEAD + length, checksum)
        )

    # This lap, behind the chain's end: wherever one begins, for what is damaged may have had any length.
    for lsn in heads_behind(ring, end):
        length = RECORD.unpack_from(ring.map, HEADER + lsn - lap)[1]
        is_short = is_short or (0 < length <= size - (lsn - lap) - HEAD and shows_more(lsn, lsn - lap, True))
    # A later lap, from its beginning on, one behind the other: the first may be the chain's next, and torn.
    place, first = 0, ring.lsn_at(0)
    while not is_short and first % size == 0 and first > end and ring.lsn_at(place) == first + place:
        length = RECORD.unpack_from(ring.map, HEADER + place)[1]
        if not 0 < length <= size - place - HEAD:
            break
        is_short = shows_more(first + place, place, place > 0 or first != lap + size)
        place += HEAD + length
    return None if not is_short else CorruptionError(
        f"the log {ring.path} is damaged at byte {HEADER + end - lap}: what has been acknowledged there, or behind "
        "it, cannot be read"
    )


def heads_behind(ring: Ring, end: int) -> Iterator[int]:
    """The LSNs of this lap, behind ``end``, where the ring has bytes like those of a record's head."""
    lap = end - end % ring.size
    behind = lap + ring.size
    for first in range(end & ~0xFFFF, behind, 1 << 16):  # the LSNs of one round share six bytes
        begin = max(first, end + 1)
        piece = ring.map[HEADER + begin - lap : HEADER + min(first + (1 << 16), behind) - lap + HEAD]
        used = len(piece) if first else len(piece.rstrip(b"\0")) + HEAD  # zeros, where none has been written yet
        upper = (first >> 16).to_bytes(6, "little")
        found = piece.find(upper, HEAD - 14, used)
        while found >= 0:
            start = found - HEAD + 14
            if start + HEAD <= len(piece) and RECORD.unpack_from(piece, start)[2] == begin + start:
                yield begin + start
            found = piece.find(upper, found + 1, used)


def says_all_before(ring: Ring, place: int, lsn: int, chain: int) -> bool:
    """Whether there is a valid record behind one with this checksum, and all before it had been on disk."""
    record = ring.record_at(place, lsn, chain)
    return record is not None and bool(record[24] & 1)


def holds(ring: Ring, upto: int, chain: int, begun: tuple[int, int]) -> bool:
    """Whether the record that ends where LMDB's state does is in the ring, if there is one."""
    start, seed = begun
    if start == upto:
        return True
    record = ring.record_at(start % ring.size, start, seed)
    return record is not None and int.from_bytes(record[:8], "little") in (chain, chain ^ AFTER_LARGE)


# -- a record's changes -----------------------------------------------------------------


def put_change(record: bytearray, at: int, key: bytes, value: bytes | None, base: bytes | None) -> int:
    """Write a change into a record, from ``at`` on; where it ends. It takes room_for() bytes at most."""
    klen = len(key)
    if value is None:
        put_delete(record, at, 0, klen)
        return put_part(record, at + 3, key, 0, klen)
    size = len(value)
    if base is not None and size > 256 and len(base) > 256:
        front = common_front(value, base)
        if size - front < size // 2:
            put_delta(record, at, 2, klen, front - DELTA_HEAD, size - front)
            at = put_part(record, at + 11, key, 0, klen)
            return put_part(record, put_part(record, at, value, 0, DELTA_HEAD), value, front, size)
    put_put(record, at, 1, klen, size)
    return put_part(record, put_part(record, at + 7, key, 0, klen), value, 0, size)


def put_part(record: bytearray, at: int, whole: bytes, start: int, stop: int) -> int:  # cimport
    """Copy a part of ``whole`` to there; where it ends."""
    end = at + stop - start
    record[at:end] = whole[start:stop]
    return end


def part_of(record: bytearray, start: int, stop: int) -> bytes | bytearray:  # cimport
    """A copy of a part."""
    return record[start:stop]


def room_for(key: bytes, value: bytes | None) -> int:
    """The most bytes that the change takes."""
    return 11 + len(key) + (0 if value is None else len(value))


def record_in(ring: mmap.mmap, at: int, room: int, lsn: int) -> bytes | None:  # cimport
    """The record of this LSN there, if it has one and is no longer than ``room``. Its checksum is not looked at."""
    if room < HEAD:
        return None
    _, length, found, _, _ = RECORD.unpack_from(ring, at)
    return ring[at : at + HEAD + length] if found == lsn and 0 < length <= room - HEAD else None


def cut(whole: bytes, start: int, stop: int) -> bytes:  # cimport
    """A copy of a part; less where there is less."""
    return whole[start:stop]


def grown(base: bytes, front: int, record: bytes, at: int, middle: int) -> bytes:  # cimport
    """What a delta makes of a value: the new head, as much of the old behind it, and the new bytes."""
    return b"".join((record[at : at + DELTA_HEAD], base[DELTA_HEAD : DELTA_HEAD + front],
                     record[at + DELTA_HEAD : at + DELTA_HEAD + middle]))


def encode_record(touched: dict[bytes, Any], rows: dict[bytes, Any], most: int) -> bytearray | None:
    """The record of a transaction's changes, but for its head. None where it might take more than ``most`` bytes.

    ``touched``: the keys, with the versions before; ``rows``: with those that it has made (transaction.py).
    """
    size = HEAD
    for key in touched:
        version = rows[key]
        size += room_for(key, version.value)
    if size > most:
        return None
    record = blank(size)
    size = HEAD
    for key, before in touched.items():
        version = rows[key]
        size = put_change(record, size, key, version.value, None if before is None else before.value)
    del record[size:]
    return record


def seal_record(record: bytearray, lsn: int, freed: int, number: int, chain: int) -> int:
    """Fill in the head of a record, behind one with the checksum ``chain``; its own checksum."""
    put_record_head(record, 0, 0, len(record) - HEAD, lsn, freed, number)
    checksum: int = xxh3_64_intdigest(part_of(record, 8, len(record)), chain)
    put_checksum(record, 0, checksum)
    return checksum


def is_same(left: bytes, right: bytes, at: int, size: int) -> bool:  # cimport
    """Whether both have the same bytes there."""
    return left[at : at + size] == right[at : at + size]


def common_front(value: bytes, base: bytes) -> int:
    """Up to where both are equal, behind the head; the head counts as equal."""
    left = value
    right = base
    at = len(base) - 1  # a node that has grown is its old form up to the end mark
    if len(value) > at and is_same(left, right, DELTA_HEAD, at - DELTA_HEAD):
        return at
    limit = min(len(value), len(base))
    at = DELTA_HEAD
    while at + CHUNK <= limit and is_same(left, right, at, CHUNK):
        at += CHUNK
    while at < limit and left[at] == right[at]:
        at += 1
    return at


def decode(record: bytes, at: int, base_of: Callable[[bytes], bytes]) -> list[tuple[bytes, bytes | None]]:
    """The changes of a record from there on: keys, with whole values, None where deleted.

    ``base_of`` gives the value that a delta is relative to; an empty one, of a damaged store, is all that is left.
    """
    found: list[tuple[bytes, bytes | None]] = []
    size = len(record)
    raw = record
    while at < size:
        kind = raw[at]
        klen = raw[at + 1] | raw[at + 2] << 8
        value: bytes | None = None
        if kind == 0:
            at += 3
            key = cut(record, at, at + klen)
            at += klen
        elif kind == 1:
            vlen = read_u32(record, at + 3)
            at += 7
            key = cut(record, at, at + klen)
            at += klen
            value = cut(record, at, at + vlen)
            at += vlen
        else:
            front = read_u32(record, at + 3)
            middle = read_u32(record, at + 7)
            at += 11
            key = cut(record, at, at + klen)
            at += klen
            base = base_of(key)
            value = grown(base, front, record, at, middle) if base else base
            at += DELTA_HEAD + middle
        found.append((key, value))
    return found


def read_u32(body: bytes, at: int) -> int:
    """The little-endian uint32 at ``at``."""
    left = body
    high = left[at + 3]  # of a C type of its own: 24 places up, its highest bit would be the sign of an int
    return left[at] | left[at + 1] << 8 | left[at + 2] << 16 | high << 24


def read_u64(body: bytes, at: int) -> int:  # cimport
    """The little-endian uint64 at ``at``."""
    return int.from_bytes(body[at : at + 8], "little")
