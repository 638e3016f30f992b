"""The tree: LMDB's file of one generation, open in this process. All that raxlog asks of LMDB, it asks here.

    begin() ─ a read: one state, held until it ends         a slot in LMDB's table of readers
    write() ─ the next state, in force once it commits      LMDB's own lock, which the log's checkpoints take

The keys and values of a transaction are bytes; it has get, put, delete, cursor, id, stat, commit and abort, as LMDB's
binding gives them, and so a view of the log has (log/transaction.py).

LMDB's lock file, whose locks are kept in force where a copy of the folder drops them, and the slots of its readers:

    byte 0        LMDB: a read lock of each process that maps the file. A process that opens and finds
                  none takes itself to be alone, and initialises the file
    byte <pid>    LMDB: a write lock of each process that reads. Where there is none the process counts
                  as dead, and the pages that its reads see may be used again
    byte 2^31     ours: held during an opening, with bytes before it that name the process (ofd_lock.py)

LMDB's are POSIX locks, which a program that opens, reads and closes this file loses. So both bytes bear a
lock of ours as well (ofd_lock.py), which LMDB takes for another process'. Its write lock suffers no other
beside it: it is made a read lock before, which shows the same to all others.

LMDB comes first, for it must find out whether it is alone. Byte 2^31 keeps others from opening until our
locks are there: a copy may be going on already. Where a process was stopped in there, with a lock on byte 0,
others pass it: what drops that lock is stopped too.

Each read takes a slot in it, and gives it back:

    magic │ format │ mutex: the thread that has it (4 bytes) … │ newest commit │ … │ slot │ slot │ …

To take a slot is to have LMDB's mutex for a microsecond. It is free again when its owner is killed, not where that is
stopped (SIGSTOP, a debugger): then LMDB has all others wait, in C, without an end, and with the interpreter's lock. So
a read looks first whether a thread has the mutex. Where one keeps it, the read sleeps, and in the end names it.

Between the look and LMDB's own lies a tenth of a microsecond, in which that thread would have to come and be stopped.
Where LMDB, or its mutex (of glibc), is not as it is known here, nothing is looked at.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import lmdb

from .. import clocks, disk
from ..errors import LockTimeout, StoreError
from ..locks import ofd_lock
from ..locks.shared_file import open_in_place
from ..notices import note
from .lmdb_file import DATA

if TYPE_CHECKING:
    from types import TracebackType

MAX_DATABASES = 16
MOST_READERS = 126  # LMDB's default
LOCK = "lock.mdb"
_FIXED = 0x10  # MAP_FIXED, from <linux/mman.h>
_HEAD = 16
_KNOWN_FORMAT = 1 << 16 | 1  # of LMDB 0.9, where processes show by locks that they live
_THREAD = (1 << 30) - 1  # the two bits above say that others wait, and that the owner has died
_HAS_WORD = "CS_GNU_LIBC_VERSION" in os.confstr_names
_PATIENCE = 30.0  # seconds for what takes a microsecond
_YIELDS, _LOOKS = 100, 0.001
_NO_HEAD = memoryview(bytes(_HEAD)).cast("I")


class TreeTransaction(Protocol):
    """A transaction of LMDB's, whose number is that of the state it sees, or makes."""

    def get(self, key: bytes, /) -> Any: ...
    def cursor(self) -> Any: ...
    def put(self, key: bytes, value: bytes, /, *, overwrite: bool = True) -> bool: ...
    def delete(self, key: bytes, /) -> bool: ...
    def id(self) -> int: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: Any) -> None: ...


class TreeState(NamedTuple):
    """How far the file goes: bytes mapped, pages that hold or have held something, the newest transaction."""

    map_size: int
    pages: int
    transaction: int


class TreePages(NamedTuple):
    """The pages of one state by kind, and its records."""

    depth: int
    branches: int
    leaves: int
    large: int
    records: int

    @property
    def occupied(self) -> int:
        """Pages of the tree in use: branches, leaves and overflow pages of large values."""
        return self.branches + self.leaves + self.large


class OpenRead(NamedTuple):
    """A read that is open now, in any process."""

    pid: int
    thread: int
    transaction: int


class ReaderSlots:
    """The mutex over the slots of one generation. ``owner[0]``: 0 where no thread has it."""

    __slots__ = ("_format", "_store", "owner")

    def __init__(self, path: Path | None) -> None:
        """Of the lock file, which is there and which LMDB has not opened: to close a descriptor drops its locks.

        None: the generation is mapped without.
        """
        self._store = path and path.parent.parent
        head = _NO_HEAD
        if path is not None and _HAS_WORD:
            with disk.open_file(path, os.O_RDWR) as file:  # without locks: in a forked child it stays open
                if os.fstat(file.fileno()).st_size < _HEAD:
                    os.ftruncate(file.fileno(), _HEAD)  # LMDB makes it larger
                head = memoryview(mmap.mmap(file.fileno(), _HEAD, access=mmap.ACCESS_READ)).cast("I")
        self._format, self.owner = head[1:2], head[2:3]

    def close(self) -> None:
        """Close the map of the lock file."""
        self._format = self.owner = _NO_HEAD

    def wait(self) -> None:
        """Wait until no thread has the mutex. LockTimeout."""
        began, yields = clocks.elapsed(), _YIELDS
        while self._format[0] == _KNOWN_FORMAT and (owner := self.owner[0] & _THREAD):
            if clocks.elapsed() > began + _PATIENCE:
                raise LockTimeout(
                    f"waited {_PATIENCE:g} s for the readers of {self._store}: process or thread {owner} has their "
                    "lock, and may have been stopped (SIGSTOP, a debugger). Let it go on, or end it."
                )
            clocks.sleep(0 if yields > 0 else _LOOKS)
            yields -= 1


class Tree:
    """LMDB's environment. With ``locks`` "ours" other processes may have it open, and LMDB's locks are kept in force
    by ours; with "lmdb" a program reads that writes nothing to the folder; with "none" nothing else has
    it open for writing. Without ``sync`` it is flushed once, where a ``with`` block over it ends.

    The errors are LMDB's, by their names in lmdb_errors; StoreError where the lock file was deleted in use.
    """

    def __init__(self, generation: Path, size: int | None = None, *, locks: str = "none", readonly: bool = False,
                 create: bool = False, sync: bool = True, max_readers: int = MOST_READERS) -> None:
        self._generation = generation
        self._sync = sync
        self.locks = locks
        self._lock: FileIO | None = None  # with our locks on LMDB's file, to be closed after LMDB
        self._lock_inode = 0  # of LMDB's lock file, where it is ours, too
        # No spare transactions: a fork would leave their reader slots in doubt.
        options: dict[str, Any] = {
            "map_size": (generation / DATA).stat().st_size if size is None else size, "readonly": readonly,
            "create": create, "sync": sync, "max_readers": max_readers, "max_dbs": MAX_DATABASES, "max_spare_txns": 0,
        }
        if locks == "ours":
            self._open_beside_others(generation, options)
        else:
            self._slots = ReaderSlots(None)
            self._opened: Any = lmdb.open(str(generation), lock=locks == "lmdb", **options)
        self.page: int = int(self._opened.stat()["psize"])

    def _open_beside_others(self, generation: Path, options: dict[str, Any]) -> None:
        """Map a generation with LMDB's locks and ours.

        The slots of readers that have died are freed before anything is read: they may be all that there are.
        LockTimeout where another process was stopped in its opening.
        """
        file = self._lock = open_in_place(generation / LOCK)
        try:
            ofd_lock.enter(file, generation.parent, lambda: ofd_lock.is_shared(file, 0))
            slots = self._slots = ReaderSlots(generation / LOCK)
            if not ofd_lock.is_free(file, 0, 1):  # else LMDB makes the mutex anew
                slots.wait()  # to open is to read
            self._opened = opened = lmdb.open(str(generation), **options)
            try:
                self.clear_readers()
                with self.begin():  # with its first read LMDB takes the lock on the process' byte
                    pid = os.getpid()
                    ofd_lock.take(file, 0, 1, shared=True, waits=True)
                    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, pid)
                    ofd_lock.take(file, pid, 1, shared=True)
                ofd_lock.leave(file)
                self._lock_inode = os.fstat(file.fileno()).st_ino
            except BaseException:
                opened.close()
                raise
        except BaseException as error:
            ofd_lock.close(file)
            if disk.cause(error) == errno.EAGAIN:
                raise StoreError(
                    f"{generation.parent} is open in another process with the number {os.getpid()}, by which LMDB "
                    "knows a process: in a PID namespace (container) of its own. Run both in one, or with different "
                    "numbers."
                ) from error
            raise

    def begin(self, buffers: bool = False) -> TreeTransaction:
        """A read. ``buffers``: values are LMDB's memory, valid while it is open. LockTimeout, of ReaderSlots.wait()."""
        slots = self._slots
        if slots.owner[0]:
            slots.wait()
        return self._opened.begin(buffers=buffers)  # type: ignore[no-any-return]

    def write(self) -> TreeTransaction:
        """The write transaction: commit() or abort() it, or use it in a ``with`` block. Waits for another's."""
        return self._opened.begin(write=True)  # type: ignore[no-any-return]

    def state(self) -> TreeState:
        """How far the file goes now."""
        info = self._opened.info()
        return TreeState(info["map_size"], info["last_pgno"] + 1, info["last_txnid"])

    def pages(self, txn: Any = None) -> TreePages:
        """The pages of the newest state, or of the one that a transaction sees."""
        stat = self._opened.stat() if txn is None else txn.stat(self._opened.open_db(None, txn=txn))
        return TreePages(max(1, stat["depth"]), stat["branch_pages"], stat["leaf_pages"], stat["overflow_pages"],
                         stat["entries"])

    def set_size(self, size: int) -> None:
        """Remap to ``size`` bytes, or with 0 to the size that another process has set. No transaction is open then."""
        self._opened.set_mapsize(size)

    def copy(self, place: str, txn: Any = None) -> None:
        """A compact copy of a state in another folder."""
        self._opened.copy(place, compact=True, txn=txn)

    def readers(self) -> list[OpenRead]:
        """The reads that are open in all processes."""
        rows = [line.split() for line in self._opened.readers().splitlines()[1:]]
        return [OpenRead(int(row[0]), int(row[1], 16), int(row[2])) for row in rows
                if len(row) == 3 and row[2].isdigit()]  # "-": a slot kept, without a read

    def clear_readers(self) -> int:
        """Free the slots of readers that have died; how many there were."""
        self._slots.wait()
        cleared = int(self._opened.reader_check())
        if cleared:
            note("info", "%s: %d readers cleared, whose processes have died", self._generation.parent, cleared)
        return cleared

    def part_from_parent(self) -> None:
        """In a forked child, before it closes its copy of LMDB: let that write nothing into the lock file's memory.

        A read transaction keeps its slot in LMDB's table of readers until its object is dropped, and LMDB gives back
        the slots of all that it knows when it closes. A copy of such an object would give back a slot that is the
        parent's, in a new read by then: its pages would be used again. So zeros are mapped over the copy.
        """
        with disk.ErrorsIgnored(), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps.readlines():
                span, access, _, _, number = line.split(maxsplit=5)[:5]
                if self._lock_inode and access.endswith("s") and int(number) == self._lock_inode:
                    import ctypes  # noqa: PLC0415 - it is imported before the fork

                    start, end = (int(address, 16) for address in span.split("-"))
                    call = ctypes.CDLL(None).mmap
                    call.restype = ctypes.c_void_p
                    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
                    call(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE,
                         mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED, -1, 0)

    def close(self) -> None:
        """Close it: the file, and then the locks."""
        self._opened.close()
        self._slots.close()
        if self._lock is not None:
            ofd_lock.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if not self._sync and kind is None:
                self._opened.sync(True)
        finally:
            self.close()


def find_holder(generation: Path) -> int | None:
    """The number of a process that has the generation mapped; None if none has, or it cannot be asked."""
    try:
        file = disk.open_file(generation / LOCK, os.O_RDONLY)
    except OSError:
        return None
    with file:
        if ofd_lock.is_free(file, 0, 1):
            return None
        reader = ofd_lock.find(file, 1, ofd_lock.BEFORE_GATE - 1)
        return 0 if reader is None else reader[0]  # 0: it is just opening, or is none of raxlog's


def verify(generation: Path) -> list[str]:
    """What LMDB's own verifier says against a file, read page by page; it raises nothing on damaged ones."""
    from lmdb.verify import VerifyError  # noqa: PLC0415 - hardly any process needs it
    from lmdb.verify import verify as problems_of  # noqa: PLC0415

    try:
        return [str(problem) for problem in problems_of(str(generation))]  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [str(error)]
    except Exception as error:  # its own bugs on damaged pages
        return [f"the verifier failed: {type(error).__name__}: {error}"]


def lmdb_version() -> str:
    """The version of the LMDB that is loaded."""
    return ".".join(map(str, lmdb.version()))
