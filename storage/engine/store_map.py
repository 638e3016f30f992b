"""The map: the data file of the generation in force, as LMDB maps it, with its log; its size, and the gate before it.

    open()    CURRENT ─ the generation in force, also where its mark leads on ─ LMDB's map ─ the log
    remap()   the same again: another size, a newer generation, an environment that LMDB has given up

The map is large and sparse from the start (64 GiB cost nothing until used), so it rarely grows. Growth with
a read open would end that read, and memory kept from it is a SIGBUS: so growth waits behind the gate until
this process reads no more, and nothing that LMDB lends (its buffers) outlives a transaction here. Another
process may grow the map too; LMDB then raises MapResized at the next begin, and the new size is adopted.

Reads pass the gate without a lock; resize, close and fork wait until none is open.

    reader   inside.add ─ barred? ─ no ─ begin … end ─ inside.discard
                             └ yes: step back, wait, try again
    shut()   its turn ─ take the bar ─ wait until no read is inside ─ resize, close, fork ─ give both back

A reader that steps back waits for the turn, and not for the bar: the turn knows its thread, so a call that
has interrupted its holder is refused, where it would wait for itself.

A reader registers before it looks at the bar, and shut() looks for readers once it has the bar, so
one of the two sees the other; under the interpreter's lock that needs no lock of its own, and
passing costs 0.1 µs.

A read that copies the whole file holds ``copying`` besides: shut() waits for that however long it takes.

An exception can strike between a read and its leaving. What is inside is therefore a weak reference, which
is dead once the read is dropped; shut() takes those away. A read of the thread that shuts has been interrupted
(by a signal's handler, or a finalizer): what would change the map under it is refused. shut() waits ten
seconds at most, which no read here takes, and then goes on: LMDB's binding ends a read transaction that is
still open, and its thread gets an error, never wrong data.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from weakref import ref

from .. import clocks, disk
from ..errors import RaxlogError, ReadOnlyStore, StoreError, interrupted
from ..folder import directory
from ..folder.store_files import StoreFiles
from ..format import records
from ..format.keys import STORE_KEY
from ..known import alive
from ..log.checkpoint import Rest
from ..log.log import Log
from ..log.ring import END
from ..threads import is_owned, outside
from ..tree import lmdb_errors, lmdb_file
from ..tree.lmdb_file import RESERVE
from ..tree.tree import Tree
from .open_options import OpenOptions

DEFAULT_MAP_SIZE = 64 << 30
_LEAST_MAP = 1 << 24
_MOST_MOVES = 20  # generations that may be removed during one opening
_NAP = 0.0002  # seconds between two looks whether a read is inside
_LONGEST = 10.0


class Read(Protocol):
    """A read that passes."""

    thread: int


class ReaderGate:
    """One environment's gate. ``inside`` and ``bar`` are open to readers, for speed."""

    __slots__ = ("bar", "copying", "fork_locks", "forking", "inside", "path", "turn")

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.reset()

    def reset(self) -> None:
        """Be open, with no read inside: also in a forked child."""
        self.inside: set[ref[Read]] = set()
        self.turn: threading.RLock = threading.RLock()  # of those who shut it; no thread enters it twice
        self.bar: threading.Lock = threading.Lock()  # held while it is shut
        self.copying: threading.RLock = threading.RLock()  # taken inside
        self.fork_locks: list[threading.Lock] = []  # held over a fork, by the thread that forks
        self.forking: int = 0

    def wait(self) -> bool:
        """Wait outside until the gate is open again. False: this thread itself shuts it, and was interrupted."""
        if is_owned(self.turn):
            return False
        with self.turn:
            return True

    def shut(self, action: Callable[[], None], is_end: bool = False) -> None:
        """Run ``action`` while no read is inside. TransactionError where this thread reads, and has been interrupted.

        ``is_end``: not then, and that read gets StoreClosed.

        The garbage collector may end a dropped transaction between the hooks of a fork: the bar is this thread's then.
        """
        if self._is_forking():
            action()
            return
        with outside(self.turn, self.path), self.bar:
            if not is_end:
                self.require_no_read()
            self.drain(_LONGEST)
            with self.copying:
                action()

    def _is_forking(self) -> bool:
        return self.forking == threading.get_ident() and self.bar in self.fork_locks

    def is_inside(self) -> bool:
        """Whether this thread shuts it, or copies the file, and has been interrupted."""
        return (is_owned(self.turn) and not self._is_forking()) or is_owned(self.copying)

    def require_no_read(self) -> None:
        """TransactionError where this thread reads, and has been interrupted."""
        here = threading.get_ident()
        if any(read.thread == here for read in alive(self.inside)):
            raise interrupted(self.path)

    def drain(self, seconds: float) -> bool:
        """Wait until no read is inside; False, and those there forgotten, if that takes too long."""
        inside = self.inside
        if inside:
            deadline = clocks.elapsed() + seconds
            here = threading.get_ident()
            while any(read.thread != here for read in alive(inside)):
                if clocks.elapsed() > deadline:
                    inside.clear()
                    return False
                clocks.sleep(_NAP)
            for mark in list(inside):
                if mark() is None:
                    inside.discard(mark)
        return True


class StoreMap:
    """The map of one store. Its environment makes and closes it, commits ask it for room."""

    def __init__(self, path: Path, options: OpenOptions, files: StoreFiles, gate: ReaderGate,
                 forget_last_commit: Callable[[], None]) -> None:
        self._path = path
        self.options = options
        self._files = files
        self.gate = gate
        self._forget_last_commit = forget_last_commit
        self.opening: threading.RLock = threading.RLock()  # held while the file is mapped; another in a forked child
        self.generation: Path = path  # the folder of the generation that is mapped
        self.tree: Tree | None = None
        self.log: Log | None = None  # in front of it; None in snapshots
        self.mapped: Log | Tree | None = None  # what reads begin on, once it is open
        self.row: list[Any] = []  # the store's own record
        self.failed_flush: lmdb_errors.Error | None = None

    def is_inside(self) -> bool:
        """Whether this thread maps the file, keeps others from it, or is at its log, and has been interrupted."""
        log = self.log
        return is_owned(self.opening) or self.gate.is_inside() or (log is not None and log.is_inside())

    def _live(self) -> Tree:
        """The tree, which is open."""
        assert self.tree is not None
        return self.tree

    # -- opening ------------------------------------------------------------------------

    def open(self) -> None:
        """Map the generation in force: what CURRENT names, or what its mark leads to."""
        self._open(self._first_size())

    def _first_size(self) -> int:
        if self.options.map_size:
            return self.options.map_size
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return DEFAULT_MAP_SIZE
        size = max(_LEAST_MAP, min(DEFAULT_MAP_SIZE, limit // 4 & ~0xFFFF))
        while size > _LEAST_MAP and not _has_address_space(2 * size):
            size //= 2  # the log's files, and the process, need some too
        return size

    def _open(self, size: int) -> None:
        wanted = directory.generation(self._path)
        attempts = _MOST_MOVES
        while True:
            try:
                self._map(wanted, size)
            except lmdb_errors.MapResizedError:
                self._unmap()
                continue  # another process grew the file between two steps of the opening
            except (lmdb_errors.Error, RaxlogError, OSError):
                self._unmap()
                missed, wanted = wanted, directory.generation(self._path)
                attempts -= 1
                if missed == wanted or not attempts:
                    raise
                continue  # it was removed in this moment, since a newer one is in force
            self.generation = wanted
            with self.begin_read() as txn:
                self.row = records.store_row(txn.get(STORE_KEY), self._path)
                newer = directory.successor(txn.get)
            if newer is None:
                return
            self._unmap()
            wanted = self._path / newer
            if not (wanted / directory.DATA).exists() and directory.generation(self._path) == self.generation:
                raise StoreError(directory.missing_successor(wanted))

    def _map(self, folder: Path, size: int) -> None:
        options = self.options
        self._files.require_same_folder()
        lmdb_file.require_sound(folder, options.readonly)
        if options.max_map_size is not None:
            size = min(size, options.max_map_size)
        at_rest = directory.is_snapshot(self._path)
        if at_rest and not options.readonly:
            raise ReadOnlyStore(
                f"{self._path} is a snapshot, which is never changed. Open it with readonly=True, or make a "
                "store of it with 'raxlog restore'."
            )
        lockless = options.readonly and (at_rest or not directory.can_register(folder))
        names = [directory.LOCK, directory.DATA]
        rest = Rest(folder) if lockless and not at_rest else None
        with contextlib.nullcontext() if rest is None else rest.read():
            while True:
                try:
                    self.tree = Tree(folder, size, locks="none" if lockless else "ours", readonly=options.readonly,
                                     max_readers=options.max_readers)
                    break
                except lmdb_errors.MapResizedError:
                    continue  # another process grew the file between two steps of the opening: again
                except lmdb_errors.MapMemoryError:
                    if size <= _LEAST_MAP:
                        raise
                    size //= 2  # the address space is limited (ulimit -v, 32 bits): reserve less
            if not at_rest:
                self.log = Log(folder, self.tree, readonly=options.readonly, durable=options.durability != "relaxed",
                               shares=not lockless, store_map=self, ceiling=options.max_map_size, rest=rest)
                names += [directory.LOG, directory.STATE]
        self._files.follow(folder, names, None if self.log is None else self.log.ring.owner)
        self.mapped = self.log or self.tree

    def begin_read(self) -> Any:
        """A read transaction of the opening, before any other can begin."""
        while True:
            try:
                return self.mapped.begin()  # type: ignore[union-attr]  # it is open
            except lmdb_errors.MapResizedError:
                self._adopt()

    def remap(self, size: int | None = None) -> None:
        """Map the generation in force, with no read open."""
        with self.opening:
            try:
                self._unmap()
                self._open(size or self._first_size())
                self._forget_last_commit()
            except BaseException:
                self._unmap()  # the map and its log are open together or not at all; live() tries again
                raise

    def reopen(self) -> None:
        """Map the file again, for an environment LMDB has declared unusable (MDB_PANIC)."""
        self.gate.shut(self.remap)

    def go_over(self) -> None:
        """Map the generation that has superseded this one. The caller holds ``writing``."""
        try:
            self.gate.shut(lambda: self.remap(self._size()))
        except RaxlogError:
            raise
        except (OSError, lmdb_errors.Error) as error:
            raise lmdb_errors.cannot_open(self._path, error, self.options.readonly) from error

    def _unmap(self) -> None:
        if self.log is not None:
            self.log.close()  # where an exception strikes it, it is run again
        if self.tree is not None:
            self.tree.close()
        self.tree = self.log = self.mapped = None

    def close(self) -> None:
        """Close the map and the log."""
        self._unmap()

    def part_from_parent(self, unclean: bool) -> None:
        """In a forked child: what is closed next is a copy, which must leave the parent's readers alone.

        With ``unclean`` it is kept, and not closed: that would wait, even at exit, for a thread that is not here.
        """
        self.opening = threading.RLock()
        if self.tree is None:
            return
        self.tree.part_from_parent()
        if unclean:
            import ctypes  # noqa: PLC0415 - hardly any process comes here

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.tree))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.log))
            self.tree = self.log = self.mapped = None

    def clear_readers(self) -> int:
        """Free the places of readers that have died; how many there were."""
        return 0 if self.tree is None else self.tree.clear_readers()

    def note_failure(self, error: lmdb_errors.Error) -> None:
        """After an error in a commit or a flush. Where the disk has failed, nothing more is written.

        What the system could not flush it takes for flushed from then on. A later commit with
        a flush that succeeds would be on disk beside a meta page that never came there.
        """
        is_failure = disk.cause(error) == errno.EIO and lmdb_errors.why_full(self._path, error) is None
        if is_failure and self.failed_flush is None:
            self.failed_flush = error
            if self._files.presence is not None:
                self._files.presence.doubt()

    def last_transaction_id(self) -> int:
        """The number of the newest commit; -1 where none is mapped."""
        if self.log is not None:
            return int(self.log.ring.words[END])
        return -1 if self.tree is None else self.tree.state().transaction

    # -- its size -----------------------------------------------------------------------

    def pages_used(self) -> int:
        """The pages of the file that hold something or have held something."""
        return self._live().state().pages

    def records(self) -> int:
        """How many records the tree holds, about: what the log holds besides is not counted."""
        return self._live().pages().records

    def _size(self) -> int:
        return self._live().state().map_size

    def set_size(self, size: int) -> None:
        """Remap to ``size`` bytes; the caller holds the gate shut. After an lmdb_errors.Error the old size stays."""
        before = self._size()
        try:
            (self.log or self._live()).set_size(size)
        except lmdb_errors.Error:
            self.remap(before)  # the old map is gone: without it the next access is a SIGSEGV
            raise

    def adopt_size(self) -> None:
        """Adopt the growth of another process: twice what is used, up to the ceiling."""
        try:
            self.gate.shut(self._adopt)
        except lmdb_errors.Error as error:
            raise lmdb_errors.translate_error(self._path, error) from error

    def _adopt(self) -> None:
        needed = self.pages_used() * self._live().page
        try:
            self.set_size(max(needed, min(needed * 2, self._largest())))
        except lmdb_errors.MapMemoryError:
            self.set_size(needed)

    def grow(self, lent: int = 0) -> bool:
        """Double the map, up to the ceiling; or lend so many pages beyond all that is used. False: nothing larger."""
        self.clear_readers()  # pages held back by dead readers may be all that is missing
        size = self._size()
        doubled = [min(wanted, self._largest()) for wanted in (size * 2, size + size // 4)]
        for wanted in [(self.pages_used() + lent) * self._live().page] if lent else doubled:
            if wanted <= size:
                return False
            if not _has_address_space(wanted - size):
                continue
            try:
                self.gate.shut(lambda wanted=wanted: self.set_size(wanted))  # type: ignore[misc]
                return True
            except lmdb_errors.MapMemoryError:
                continue  # no address space for so much
        return False

    def _largest(self) -> int:
        """The size beyond which the map does not grow: the ceiling, or what others use beyond it, and the reserve."""
        page = self._live().page
        ceiling, reserve, used = self.options.max_map_size or 1 << 62, RESERVE * page, self.pages_used() * page
        return reserve + (ceiling if used <= ceiling + reserve else used)


def _has_address_space(size: int) -> bool:
    """Whether the process may map so many bytes more: LMDB gives up the map it has before it asks for another."""
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
        return True
    except (OSError, OverflowError):
        return False
