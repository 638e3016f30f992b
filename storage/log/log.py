"""The log: a ring of chained records beside LMDB's file, what of it this process has followed, and checkpoints.

    LSN ─ an ever-growing byte position; place = LSN mod ring size
    record    checksum (8), seeded by the one before │ length (4) │ LSN (8) │ pages freed (4) │ opening (4) │ changes
              opening: at random, so that a record that is written again after a power cut has taken it brings
              nothing back of what came after the first
    change    0 delete │ 1 put │ 2 delta: the first 48 bytes, how many to keep, new bytes, how many of the end to keep

    log          the ring, written with zeros once
    log-state    words of all processes: END (what counts), APPLIED (the last checkpoint), FLUSHED, LARGE; two locks
    LMDB         [applied LSN, checksum there] with the state of exactly that
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import Any

import lmdb
from raxlog.storage.files import directory, ofd_lock
from raxlog.storage.format import records
from raxlog.storage.wake.stop import wake
from xxhash import xxh3_64_intdigest

from .overlay import Overlay, View

SOURCE_HASH = ""

END, APPLIED, FLUSHED, LARGE, AGED, GIVEN = 0, 1, 2, 3, 4, 5
APPLIED_KEY = b"\0\0\0\0\0\0\0\0\x05\x09"
RING = 1 << 22  # bytes; LEAST where the store may not become large
LEAST = 1 << 20
HEAD = 28
DELTA_HEAD = 48
CHUNK = 256
FLUSH_PERIOD = 0.1  # seconds
_RECORD = struct.Struct("<QIQII")
_PUT = struct.Struct("<BHI")
_DELTA = struct.Struct("<BHIII")
_DELETE = struct.Struct("<BH")


class Moved(Exception):
    """The ring has been used again, or a large transaction is beyond: take a new snapshot."""


def encode_change(parts: list[bytes], key: bytes, value: bytes | None, base: bytes | None) -> None:
    """Append a change to the record's parts."""
    if value is None:
        parts.append(_DELETE.pack(0, len(key)))
        parts.append(key)
        return
    size = len(value)
    if base is not None and size > 256 and len(base) > 256:
        front = common_front(value, base)
        back = common_back(value, base, front)
        middle = value[front : size - back]
        if len(middle) < size // 2:
            parts.append(_DELTA.pack(2, len(key), front - DELTA_HEAD, back, len(middle)))
            parts.append(key)
            parts.append(value[:DELTA_HEAD])
            parts.append(middle)
            return
    parts.append(_PUT.pack(1, len(key), size))
    parts.append(key)
    parts.append(value)


def common_front(value: bytes, base: bytes) -> int:
    """Up to where both are equal, behind the head; the head counts as equal."""
    most = min(len(value), len(base))
    at = DELTA_HEAD
    while at + CHUNK <= most and value[at : at + CHUNK] == base[at : at + CHUNK]:
        at += CHUNK
    left = value
    right = base
    while at < most and left[at] == right[at]:
        at += 1
    return at


def common_back(value: bytes, base: bytes, front: int) -> int:
    """How many bytes of the end are equal, of those behind ``front``: few."""
    most = min(len(value), len(base)) - front
    most = min(most, 64)
    size, other = len(value), len(base)
    left = value
    right = base
    at = 0
    while at < most and left[size - 1 - at] == right[other - 1 - at]:
        at += 1
    return at


def unseal(value: bytes | None) -> tuple[int, int]:
    """What LMDB has applied, and the checksum there."""
    if value is None:
        return 0, 0
    upto, chain = records.unseal(APPLIED_KEY, value)
    return upto, chain


class Needed(Exception):
    """LMDB is to be asked for what a delta is relative to: take the record in again with a snapshot."""


def number_at(body: bytes, at: int) -> int:
    """Four bytes, as the packers write them."""
    left = body
    return left[at] | left[at + 1] << 8 | left[at + 2] << 16 | left[at + 3] << 24


def create(folder: Path, ring: int) -> None:
    """Make the ring, on disk with its name."""
    file = os.open(folder / "log.tmp", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    for place in range(0, ring, 4096):  # page by page: what is written at once lies in one large folio of the cache
        os.pwrite(file, bytes(4096), place)
    os.fsync(file)
    os.close(file)
    os.rename(folder / "log.tmp", folder / "log")
    directory.sync_folder(folder)


class Log:
    """One process' end of the log of one store."""

    def __init__(self, folder: Path, real: Any, durable: bool, ring: int = RING) -> None:
        self.pid = os.getpid()
        self.opening = int.from_bytes(os.urandom(4), "little")
        self.readonly = bool(real.flags().get("readonly"))
        self.real = real
        self.begin = real.begin
        self.durable = durable
        self.state = ofd_lock.open_file(folder / "log-state")
        if not (folder / "log").exists():
            ofd_lock.take(self.state, 2, 1, waits=True)
            if not (folder / "log").exists():
                create(folder, ring)
            ofd_lock.give_back(self.state, 2, 1)
        self.file = os.open(folder / "log", os.O_RDWR | os.O_CLOEXEC)
        self.size = os.fstat(self.file).st_size
        if os.fstat(self.state.fileno()).st_size < 4096:
            os.pwrite(self.state.fileno(), bytes(4096), 0)
        self.synced = os.open(folder / "log", os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC)
        self.map = mmap.mmap(self.state.fileno(), 4096)
        self.words = memoryview(self.map).cast("Q")
        self.ring = mmap.mmap(self.file, self.size, access=mmap.ACCESS_READ)
        self.checkpointing = threading.Lock()  # the lock in the file does not keep threads apart
        self.mutex = threading.RLock()  # while it follows, or is rebased
        self.writing = False  # a write transaction is open
        self.tid = -1  # LMDB's snapshot last seen, with its applied LSN and checksum
        self.applied = 0
        self.applied_chain = 0
        self.pos = self.chain = 0
        self.overlay = Overlay(0)
        self.rejoins = self.checkpoints = self.waits = 0
        self.every = self.size // 4
        self.bell = threading.Lock()
        self.bell.acquire()
        self.thread: threading.Thread | None = None
        self.closed = False
        self.failure: BaseException | None = None
        self.touched_numbers: set[bytes] | None = None
        self.room: Any = None
        self.last_bound = 1
        self.growth: list[Any] = []  # of checkpoints: the bound, pages the file grew by, pages beyond what was had
        self.join()

    # -- joining ------------------------------------------------------------------------

    def join(self) -> None:
        """Enter. Where no other process is inside, the end is that of the valid chain, whatever the file says."""
        try:
            ofd_lock.take(self.state, 0, 1)
        except BlockingIOError:
            ofd_lock.take(self.state, 0, 1, shared=True, waits=True)
        else:
            with self.real.begin() as raw:
                self.look(raw)
            self.pos, self.chain = self.applied, self.applied_chain
            overlay = self.overlay = Overlay(self.applied)
            with self.real.begin() as raw:
                while self.step(raw, overlay, 1 << 62):
                    pass
            self.words[END] = self.pos
            self.words[APPLIED] = self.words[FLUSHED] = self.applied
            self.words[LARGE] = 0
            self.words[GIVEN] = 1 << 40
            ofd_lock.take(self.state, 0, 1, shared=True)

    def look(self, raw: Any) -> None:
        """Learn what LMDB's snapshot has applied."""
        value = raw.get(APPLIED_KEY)
        self.tid = raw.id()
        self.applied, self.applied_chain = unseal(value)

    # -- following ----------------------------------------------------------------------

    def read(self) -> View:
        """A view for reading, of all that is acknowledged."""
        while True:
            raw = self.begin()
            try:
                if raw.id() != self.tid:
                    with self.mutex:
                        self.look(raw)
                applied = self.applied
                end = self.words[END]
                if end != self.pos or applied > self.pos:
                    with self.mutex:
                        self.follow(raw, max(end, applied))
                elif applied > self.overlay.floor and not self.writing and self.mutex.acquire(blocking=False):
                    try:
                        self.rebase(applied)
                    finally:
                        self.mutex.release()
                overlay = self.overlay
                if applied >= overlay.floor and applied <= self.pos:
                    return View(self, raw, overlay, self.pos, False)
            except Moved:
                pass
            raw.abort()

    def write(self) -> View:
        """A view for writing, under the writer's lock. LMDB is asked only where that is needed."""
        words = self.words
        if words[LARGE]:
            self.after_large()
        end = words[END]
        if end != self.pos:
            self.catch_up(end)
        applied = words[APPLIED]
        if applied > self.overlay.floor:
            with self.mutex:
                self.rebase(applied)
        self.writing = True
        return View(self, None, self.overlay, self.pos + 1, True)

    def catch_up(self, end: int) -> None:
        """Take in what other processes have written, under the writer's lock."""
        raw = None
        while True:
            try:
                with self.mutex:
                    if raw is not None and raw.id() != self.tid:
                        self.look(raw)
                    if raw is not None or self.words[APPLIED] <= self.pos:
                        self.follow(raw, end)
                        return
            except (Moved, Needed):
                self.waits += 1
            finally:
                if raw is not None:
                    raw.abort()
                    raw = None
            raw = self.begin()

    def rebase(self, floor: int) -> None:
        """Forget what LMDB holds."""
        if not self.writing and self.overlay.floor < floor <= self.pos:
            self.overlay = self.overlay.pruned(floor)

    def follow(self, raw: Any, end: int) -> None:
        """Take in the records up to ``end``. Moved."""
        if raw is not None and self.applied > self.pos:
            self.pos, self.chain = self.applied, self.applied_chain
            self.overlay = Overlay(self.applied)
            self.rejoins += 1
        overlay = self.overlay
        while self.pos < end:
            if not self.step(raw, overlay, end):
                raise Moved

    def step(self, raw: Any, overlay: Overlay, end: int) -> bool:
        """Take in one record. False: there is no valid one."""
        pos = self.pos
        place = pos % self.size
        body = self.record_at(place, pos)
        if body is None:
            pos += self.size - place
            body = self.record_at(0, pos)
            if body is None:
                return False
        checksum = xxh3_64_intdigest(body, self.chain)
        after = pos + 8 + len(body)
        touched: dict[bytes, Any] = {}
        rows = overlay.rows
        raw_bytes = body
        freed = number_at(body, 12)
        if freed:
            overlay.freed.append((after, freed))
        at = HEAD - 8
        size = len(body)
        while at < size:
            kind = raw_bytes[at]
            klen = raw_bytes[at + 1] | raw_bytes[at + 2] << 8
            if kind == 0:
                at += 3
                key = raw_bytes[at : at + klen]
                at += klen
                value = None
            elif kind == 1:
                vlen = number_at(body, at + 3)
                at += 7
                key = raw_bytes[at : at + klen]
                at += klen
                value = raw_bytes[at : at + vlen]
                at += vlen
            else:
                front = number_at(body, at + 3)
                back = number_at(body, at + 7)
                middle = number_at(body, at + 11)
                at += 15
                key = raw_bytes[at : at + klen]
                at += klen
                before = rows.get(key)
                if before is None and raw is None:
                    overlay.undo(touched, after)
                    raise Needed
                base = raw.get(key) if before is None else before.value
                if base is None:  # cannot be
                    raise Moved
                value = b"".join((raw_bytes[at : at + DELTA_HEAD], base[DELTA_HEAD : DELTA_HEAD + front],
                                  raw_bytes[at + DELTA_HEAD : at + DELTA_HEAD + middle], base[len(base) - back :]))
                at += DELTA_HEAD + middle
            touched[key] = None
            overlay.write(key, value, after)
        overlay.settle(touched)
        self.chain = checksum
        self.pos = after
        return True

    def record_at(self, place: int, pos: int) -> bytes | None:
        """What the checksum covers of the record there, if it is valid as the next one."""
        if place + HEAD > self.size:
            return None
        checksum, length, lsn, _, _ = _RECORD.unpack_from(self.ring, place)
        if lsn != pos or length < 1 or place + HEAD + length > self.size:
            return None
        body: bytes = self.ring[place + 8 : place + HEAD + length]
        return body if xxh3_64_intdigest(body, self.chain) == checksum else None

    # -- committing ---------------------------------------------------------------------

    def append(self, touched: dict[bytes, Any], view: View, freed: int) -> None:
        """Write a transaction's record: it counts when this returns. Under the writer's lock."""
        overlay = view.overlay
        rows = overlay.rows
        parts: list[bytes] = [b""]
        size = 0
        for key in touched:
            version = rows[key]
            if version.value is not None:
                size += len(version.value)
        if size > self.size:
            self.append_directly(view)
            return
        for key, before in touched.items():
            encode_change(parts, key, rows[key].value, None if before is None else before.value)
        start = self.pos
        changes = b"".join(parts)
        size = HEAD + len(changes)
        if size > self.size // 2:
            self.append_directly(view)
            return
        pos = start
        place = pos % self.size
        if place + size > self.size:
            pos += self.size - place
            place = 0
        words = self.words
        if pos + size - words[APPLIED] > self.size:
            self.waits += 1
            self.make_ring_room(pos + size)
        covered = _RECORD.pack(0, len(changes), pos, freed, self.opening)[8:] + changes
        checksum = xxh3_64_intdigest(covered, self.chain)
        record = checksum.to_bytes(8, "little") + covered
        if self.durable:
            if words[FLUSHED] >= start:
                os.pwrite(self.synced, record, place)
            else:
                os.pwrite(self.file, record, place)
                os.fdatasync(self.file)
            words[FLUSHED] = pos + size
        else:
            os.pwrite(self.file, record, place)
        words[END] = self.pos = pos + size
        self.chain = checksum
        overlay.settle(touched)
        if self.thread is None:
            self.start()
        if pos + size - words[APPLIED] > self.every:
            wake(self.bell)

    def start(self) -> None:
        """Start the thread."""
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """The thread: checkpoints, and flushes at least every 100 ms."""
        flushed = time.monotonic()
        while True:
            came = self.bell.acquire(timeout=-1 if self.durable else FLUSH_PERIOD)
            if self.closed:
                return
            if came and self.words[END] - self.words[APPLIED] > self.every:
                try:
                    self.read().abort()
                    self.checkpoint(False)
                except BaseException as error:  # shown by the next that needs room
                    self.failure = error
            if not self.durable and time.monotonic() - flushed >= FLUSH_PERIOD:
                flushed = time.monotonic()
                if self.words[FLUSHED] < self.words[END]:
                    self.flush()

    def flush(self) -> None:
        """Have the disk hold all that counts."""
        end = self.words[END]
        os.fdatasync(self.file)
        self.words[FLUSHED] = max(end, self.words[FLUSHED])

    # -- checkpoints --------------------------------------------------------------------

    def make_ring_room(self, end: int) -> None:
        """Checkpoints until the record fits."""
        while end - self.words[APPLIED] > self.size:
            self.checkpoint(True)

    def checkpoint(self, waits: bool) -> None:
        """Put into LMDB what it has not. Where another process does: nothing, or wait for it."""
        if not self.checkpointing.acquire(blocking=waits):
            return
        try:
            ofd_lock.take(self.state, 1, 1, waits=waits)
            try:
                self.apply(None)
            finally:
                ofd_lock.give_back(self.state, 1, 1)
        except BlockingIOError:
            return
        finally:
            self.checkpointing.release()

    def apply(self, view: View | None) -> None:
        """One transaction of LMDB, with all up to the end; with an open one's changes: then that counts."""
        if self.room is None:
            self.put_all(view)
            return
        self.room.look()
        self.words[GIVEN] = self.room.gives(self.overlay)
        if view is not None:
            self.put_all(view)
            return
        used = self.room.used
        try:
            self.put_all(None)
        except BaseException as error:
            self.failure = error
            raise
        self.room.look()
        self.growth.append((self.last_bound, self.room.used - used, self.room.used - max(used, self.room.have)))

    def begin_write(self) -> Any:
        """LMDB's write transaction, in the map as large as other processes have made it."""
        while True:
            try:
                return self.real.begin(write=True)
            except lmdb.MapResizedError:
                self.room.map.adopt_size()

    def put_all(self, view: View | None) -> None:
        """The same."""
        with self.begin_write() as txn:
            with self.mutex:
                value = txn.get(APPLIED_KEY)
                applied, chain = unseal(value)
                if applied > self.pos:
                    if view is not None:
                        raise AssertionError("a checkpoint beyond the end")
                    return
                if view is None:
                    self.words[APPLIED] = max(self.words[APPLIED], applied)
                    upto, chain = self.pos, self.chain
                    if upto == applied:
                        return
                    changes = self.overlay.changes(applied, upto)
                    if self.room is not None:
                        self.last_bound = self.room.bound(self.overlay)
                else:
                    upto, chain = self.pos + 8, self.chain ^ 0x5DEECE66D
                    changes = self.overlay.changes(applied, view.upto)
            put, delete = txn.put, txn.delete
            for key, value in changes:
                if value is None:
                    delete(key)
                else:
                    put(key, value)
            put(APPLIED_KEY, records.seal(APPLIED_KEY, [upto, chain]))
            if view is not None and self.room is not None:
                self.room.require(txn)
            if view is not None:
                self.words[LARGE] = upto
        self.words[APPLIED] = upto
        self.checkpoints += 1
        if view is not None:
            self.words[END] = self.pos = upto
            self.words[FLUSHED] = upto
            self.chain = chain
            self.words[LARGE] = 0

    def append_directly(self, view: View) -> None:
        """A transaction too large for the ring, or that may not fit, goes to LMDB at once, behind all others."""
        self.checkpoint(True)
        with self.checkpointing:
            ofd_lock.take(self.state, 1, 1, waits=True)
            try:
                self.apply(view)
            finally:
                ofd_lock.give_back(self.state, 1, 1)

    def age(self) -> None:
        """Two commits of nothing: then LMDB uses again what the last ones have freed."""
        with self.checkpointing:
            ofd_lock.take(self.state, 1, 1, waits=True)
            try:
                for _ in range(2):
                    with self.real.begin(write=True) as txn:
                        value = txn.get(APPLIED_KEY)
                        if value is not None:
                            txn.put(APPLIED_KEY, value)
            finally:
                self.words[AGED] += 1
                self.words[GIVEN] = 64
                ofd_lock.give_back(self.state, 1, 1)

    def after_large(self) -> None:
        """A writer died in the middle of such a one: it counts if LMDB has it."""
        with self.checkpointing:
            ofd_lock.take(self.state, 1, 1, waits=True)
            try:
                with self.real.begin(write=True) as txn:
                    value = txn.get(APPLIED_KEY)
                    applied = unseal(value)[0]
                if applied > self.words[END]:
                    self.words[END] = self.words[FLUSHED] = self.words[APPLIED] = applied
                self.words[LARGE] = 0
            finally:
                ofd_lock.give_back(self.state, 1, 1)

    def end(self) -> int:
        """Up to where the log counts."""
        return self.words[END]

    def close(self, clean: bool = True) -> None:
        """Leave: with a last checkpoint."""
        self.closed = True
        if self.pid != os.getpid():
            self.state.close()
            os.close(self.file)
            os.close(self.synced)
            return
        if self.thread is not None:
            wake(self.bell)
            self.thread.join()
        try:
            if clean:
                self.flush()
                self.read().abort()
                if not self.readonly:
                    self.checkpoint(False)
        finally:
            self.state.close()
            os.close(self.file)
            os.close(self.synced)
