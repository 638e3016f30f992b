"""The tree: LMDB's file of one generation, open in this process. All that raxlog asks of LMDB, it asks here.

    begin() ─ a read: one state, held until it ends         a slot in LMDB's table of readers (lock_file.py)
    write() ─ the next state, in force once it commits      LMDB's own lock, which the log's checkpoints take

The keys and values of a transaction are bytes; it has get, put, delete, cursor, id, stat, commit and abort, as LMDB's
binding gives them, and so a view of the log has (log/transaction.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import lmdb

from .. import disk
from ..errors import StoreError
from ..locks import ofd_lock
from ..notices import note
from .lmdb_file import DATA
from .lock_file import LOCK, ReaderSlots, open_in_place

if TYPE_CHECKING:
    from types import TracebackType

MAX_DATABASES = 16
MOST_READERS = 126  # LMDB's default


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


class Tree:
    """LMDB's environment. With ``locks`` "ours" other processes may have it open, and LMDB's locks are kept in force
    by ours (lock_file.py); with "lmdb" a program reads that writes nothing to the folder; with "none" nothing else has
    it open for writing. Without ``sync`` it is flushed once, where a ``with`` block over it ends.

    The errors are LMDB's, by their names in lmdb_errors; StoreError where the lock file was deleted in use.
    """

    def __init__(self, generation: Path, size: int | None = None, *, locks: str = "none", readonly: bool = False,
                 create: bool = False, sync: bool = True, max_readers: int = MOST_READERS) -> None:
        self._generation = generation
        self._sync = sync
        self.locks = locks
        self._lock: FileIO | None = None  # with our locks on LMDB's file, to be closed after LMDB
        self.lock_inode: int = 0  # of LMDB's lock file, where it is ours, too
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
                self.lock_inode = os.fstat(file.fileno()).st_ino
            except BaseException:
                opened.close()
                raise
        except BaseException as error:
            file.close()
            if disk.cause(error) == errno.EAGAIN:
                raise StoreError(
                    f"{generation.parent} is open in another process with the number {os.getpid()}, by which LMDB "
                    "knows a process: in a PID namespace (container) of its own. Run both in one, or with different "
                    "numbers."
                ) from error
            raise

    def begin(self, buffers: bool = False) -> TreeTransaction:
        """A read. ``buffers``: values are LMDB's memory, valid while it is open. LockTimeout as in lock_file.py."""
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

    def close(self) -> None:
        """Close it: the file, and then the locks."""
        self._opened.close()
        self._slots.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if not self._sync and kind is None:
                self._opened.sync(True)
        finally:
            self.close()


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
