"""The ring: the records of the log, each chained to the one before, and the words that processes share about them.

    LSN ─ an ever-growing byte position; place = LSN mod ring size
    record    checksum, length, LSN, pages freed, epoch, changes (record.py)
              epoch: random per opening, two more in each lap; odd where every earlier record was on disk already.
              It keeps a stale record from being valid after a write that was torn, or that a power cut has taken

    log          a header, and the ring, written with zeros once (log_file.py)
    log-state    two pages: the words of the checkpoint's lock; then words of all processes. Byte 0 is locked by all
                 that are inside

    0 END        what counts                           5 GIVEN   pages that the last checkpoint may have given back
    1 APPLIED    up to where LMDB has it               6 OWNER   two words: the store's ID
    2 FLUSHED    up to where the disk has it           8 FED     whether a feed is open (feed.py)
    3 LARGE      a transaction without a record,       9 KEPT    where the record begins that ends at APPLIED
                 up to here, is under way             10 CLOCK   three words, of clocks.Watch
    4 AGED       empty commits of LMDB's, counted

What is behind END, and valid in the chain, is an orphan: of a call that was killed, or is under way.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import struct
from io import FileIO
from pathlib import Path
from typing import Any

from raxlog.storage import disk
from raxlog.storage.folder import log_file
from raxlog.storage.folder.log_file import HEADER
from raxlog.storage.locks import ofd_lock
from raxlog.storage.tree import lmdb_errors, lock_file
from xxhash import xxh3_64_intdigest

from .record import HEAD, RECORD

SOURCE_HASH = ""

END, APPLIED, FLUSHED, LARGE, AGED, GIVEN, OWNER, FED, KEPT, CLOCK = 0, 1, 2, 3, 4, 5, 6, 8, 9, 10
WORDS = 4096  # their place in log-state


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
        self.path: Path = folder / log_file.LOG
        self.owner: tuple[int, int] = struct.unpack("<QQ", owner)
        self.size: int = log_file.ring_of(folder, owner)
        self.epoch: int = int.from_bytes(os.urandom(4), "little") & ~1
        self.locks: Any = None  # log-state, for its locks
        self.shared: mmap.mmap = mmap.mmap(-1, 2 * WORDS)
        self.words: memoryview[int] = memoryview(array.array("Q", bytes(128)))
        state = folder / log_file.STATE
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
        self.locks = lock_file.open_in_place(path)
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
                ofd_lock.give_back(self.locks, log_file.INSIDE, 0)
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
        if place + HEAD > self.size:
            return None
        checksum, length, found, _, _ = RECORD.unpack_from(self.map, HEADER + place)
        if found != lsn or length < 1 or place + HEAD + length > self.size:
            return None
        record: bytes = self.map[HEADER + place : HEADER + place + HEAD + length]
        return record if xxh3_64_intdigest(memoryview(record)[8:], chain) == checksum else None

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
