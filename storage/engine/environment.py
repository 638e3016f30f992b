"""The environment: one open store per process, used by all threads.

        open        CURRENT ─ the generation in force ─ LMDB's map ─ the log ─ this process's presence
        read()      many at once, behind the gate (store_map.py)
        write       one at a time, behind the writer's lock (commit/commits.py)
        grow        beside no read and no write (store_map.py)

After a fork the child must not touch the parent's environment, nor may it leave it open. A
hook before the fork waits until no transaction is open here, the one in the child closes the
inherited copy and replaces the locks; the child's first transaction opens its own. (To
close a copy of an open transaction is to wait for the parent's thread, or to free its slot.)

Locks are taken in this order: leading, writing, the gate's bar, the log's checkpoints, opening.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from weakref import ref

from .. import clocks, disk, fork_hooks
from ..commit.commits import Commits
from ..errors import CorruptionError, RaxlogError, StoreError, TransactionError, closed, interrupted
from ..folder import directory
from ..folder.store_files import StoreFiles
from ..fork_hooks import (
    FORK_PATIENCE,
    HERE,
    USUAL,
    acquire_in_time,
    acquire_now,
    at_fork,
    look,
    release_all,
    unseen,
)
from ..format import keys, records
from ..format.keys import NAMES
from ..known import alive
from ..locks.shared_file import End, enter_as_reader, find_other_user, judge
from ..log.checkpoint import NotAtRest
from ..log.log import Log
from ..notices import report
from ..threads import outside
from ..tree import lmdb_errors
from ..tree.tree import Tree
from ..trees.rax import Rax, RaxTransaction
from .open_options import OpenOptions
from .store_map import Read, ReaderGate, StoreMap

if TYPE_CHECKING:
    from ..figures import Reader

_YOUNG_MS = 60_000
_MOST_STREAMS = 100  # that are looked over

_environments: set[ref[Environment]] = set()  # until they are closed


class Attachment:
    """State that a layer above keeps with an environment, one of each class; its part in the environment's life."""

    def __init__(self, env: Environment) -> None:
        pass

    def require_outside(self) -> None:
        """TransactionError where this thread has been interrupted in what close() would wait for, or spoil."""

    def close(self) -> None:
        """Before the environment closes; again where an exception has struck that."""

    def before_fork(self) -> None:
        """Before the environment waits until no transaction is open."""

    def after_fork_in_parent(self) -> None:
        """In the parent, before transactions begin again."""

    def after_fork_in_child(self) -> bool:
        """In the child, before the inherited environment is closed: whether the child keeps this state."""
        return False


A = TypeVar("A", bound=Attachment)


class StoreRecord(NamedTuple):
    """The store's own record: 16 bytes that no other store has, when it was created, what new streams get."""

    uuid: bytes
    created_ms: int
    settings: dict[str, Any]


class Environment:
    """One store's LMDB environment in this process. Made and closed by registry.py."""

    def __init__(self, path: Path, options: OpenOptions) -> None:
        path = Path(os.path.abspath(path))  # a program may go to another folder
        self.path: Path = path
        self.options = options
        self.readonly: bool = options.readonly
        self.inherited: bool = False  # from before a fork, and not used since
        self.record: StoreRecord
        self.last_end: End
        self.files: StoreFiles = StoreFiles(path, self.live)
        self.gate: ReaderGate = ReaderGate(path)
        self.map: StoreMap = StoreMap(path, options, self.files, self.gate, self.forget_last_commit)
        self.checked: int = -1  # the last transaction a read has found without the mark of a superseded generation
        self.commits: Commits = Commits(self)
        self._opened = self._closed = False
        self.compactions: set[ref[Any]] = set()  # under way in this process
        self._attached: dict[type[Attachment], Any] = {}
        self._forked_inside = self._forked_unseen = False
        _environments.add(ref(self, _environments.discard))

    def attached(self, kind: type[A]) -> A:
        """The state of that class, made by its first use."""
        found: A | None = self._attached.get(kind)
        if found is None:
            with self.map.opening:
                found = self._attached.get(kind)
                if found is None:
                    found = self._attached[kind] = kind(self)
        return found

    # -- opening and closing ------------------------------------------------------------

    def open(self) -> Self:
        """Open it. Once; close() closes what an exception has left of it."""
        self._open()
        self._opened = True
        return self

    def _open(self) -> None:
        files = self.files
        try:
            files.open(self.readonly)
            self.map.open()
            if not self.readonly:
                found = files.enter()
            else:
                found = [] if files.shared is None else enter_as_reader(files.shared)
            if clocks.held is not None:
                _require_alone()
            how, _, problems = self.last_end = judge(found, self._look_over)
            if files.presence is not None:
                files.presence.clear_the_cut()
            row = self.map.row
            self.record = StoreRecord(row[1], row[2], row[4])
            if not self.readonly and abs(clocks.wall_ns() // 1_000_000 - self.record.created_ms) < _YOUNG_MS:
                # Its creator may not have come to flush its name, on which all hangs.
                directory.sync_folder(self.path.parent)
            if how != "clean":
                cause = "killed process" if how == "killed" else how
                # A program that set up no logging prints warnings: an end that lost nothing is none.
                report("raxlog.store", "warning" if problems else "info",
                       "%s was left by a %s; damaged: %s", self.path, cause,
                       "; ".join(problems) or "nothing")
        except BaseException as error:
            self._close_files()
            if lmdb_errors.is_failure(error):
                raise lmdb_errors.cannot_open(self.path, error, self.readonly) from error
            raise

    def _look_over(self) -> list[str]:
        with self.map.begin_read() as txn:
            return [*_damaged_of_newest(txn)]

    @property
    def is_closed(self) -> bool:
        """Whether close() has come as far as to refuse further calls."""
        return self._closed

    @property
    def is_open(self) -> bool:
        """Whether open() has succeeded, and close() has not been called."""
        return self._opened and not self._closed

    def live(self) -> Log | Tree:
        """What reads begin on, opened again in a forked child; StoreClosed after close()."""
        mapped = self.map.mapped
        if mapped is not None and not self._closed:
            return mapped
        if self._closed:
            raise closed(self.path)
        self.require_usable()
        outside(self.map.opening, self.path)
        with self.map.opening:
            if self.map.mapped is None and self.inherited:
                self._open()
                self.inherited = False
            elif self.map.mapped is None:
                self.map.remap()
        return self.map.mapped  # type: ignore[return-value]

    def require_usable(self) -> None:
        """StoreError in a forked child that cannot open it again. Asked by each call, before it changes anything."""
        look()
        if self._forked_unseen:
            raise unseen(f"the open store {self.path}")
        if self._forked_inside:
            raise StoreError(
                "this process was forked while a thread of its parent was inside a transaction on "
                f"{self.path}, and cannot use that store. Fork outside of transactions, or spawn."
            )

    def is_compacting(self) -> bool:
        """Whether this thread compacts the store, and has been interrupted."""
        here = get_ident()
        return any(compaction.thread == here for compaction in alive(self.compactions))

    def require_outside(self) -> None:
        """TransactionError where this thread has been interrupted in what close() would wait for, or spoil."""
        self.commits.require_outside()
        if self.map.is_inside() or self.is_compacting():
            raise interrupted(self.path)
        for attached in list(self._attached.values()):
            attached.require_outside()

    def close(self) -> None:
        """Wait for this process's readers and writer, flush what relaxed durability left, close.

        After an exception it is called again, and ends what is left. TransactionError, and nothing is closed, by what
        has interrupted a call of the same thread that would be waited for.
        """
        self.require_outside()
        for attached in list(self._attached.values()):
            attached.close()
        self._closed = True
        self.commits.run_apart(self.commits.leading, self._close_apart)
        _environments.discard(ref(self))

    def _close_apart(self) -> None:
        with self.commits.writing:
            self.gate.shut(self._close_quietly, is_end=True)

    def _close_quietly(self) -> None:
        if self.map.log is not None and not self.readonly:
            with contextlib.suppress(lmdb_errors.Error):
                self.map.log.ring.flush()
        self._close_files()
        self.commits.forget_warm()

    def _close_files(self) -> None:
        self.files.leave(clean=self.map.failed_flush is None)
        self.map.close()
        self.files.close()

    def __reduce__(self) -> str:
        raise StoreError(
            f"the open store {self.path} cannot be pickled, nor can its streams: send its path, and open it there"
        )

    # -- forking ------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Let no transaction be open in the moment of the fork, and hold the locks over it.

        Waits two seconds at most: beside a transaction that stays open longer than that, the
        child cannot use this store.
        """
        for attached in list(self._attached.values()):
            attached.before_fork()
        if not self.gate.fork_locks:
            self.gate.forking = get_ident()
        self._hold(acquire_in_time, FORK_PATIENCE)

    def _hold(self, acquire: Callable[[Any], bool], patience: float) -> None:
        locks, gate_locks = self._fork_locks(), self.gate.fork_locks
        # In C alone, like the release: no exception comes between a lock and its place in the list.
        gate_locks.extend(filter(acquire, [lock for lock in locks if lock not in gate_locks]))
        self._forked_inside = not (len(gate_locks) == len(locks) and self.gate.drain(patience))

    def _fork_locks(self) -> list[Any]:
        locks: list[Any] = [self.commits.writing, self.gate.turn, self.gate.bar, self.map.opening]
        if self.map.log is not None and self.map.log.checkpoints is not None:
            locks.insert(3, self.map.log.checkpoints.making)
        if self.commits.in_own_transaction():
            locks.remove(self.commits.writing)  # its own thread forks, and would wait for itself
        return locks

    def after_fork_in_parent(self) -> None:
        """Let transactions begin again."""
        for attached in list(self._attached.values()):
            attached.after_fork_in_parent()
        self._forked_inside = False
        release_all(self.gate.fork_locks)

    def after_fork_in_child(self) -> None:
        """Close the inherited environment, and replace every lock."""
        self._forked_unseen = fork_hooks.is_late
        if not (self.gate.fork_locks or self._forked_inside):  # by C, and Python has been told of it in the child only
            self._forked_inside = True  # where an exception strikes what finds out
            self._hold(acquire_now, 0)
        self._attached = {kind: state for kind, state in self._attached.items() if state.after_fork_in_child()}
        self.commits = Commits(self)
        self.compactions = set()
        self.checked = -1
        self.inherited = True
        self.map.part_from_parent(self._forked_inside)
        self.map.close()
        self.files.close()
        self.gate.reset()  # last: where this is run again, what is held says that Python saw the fork

    # -- transactions -------------------------------------------------------------------

    def read(self) -> GatedRead:
        """A read transaction, as a context manager: ``with env.read() as txn``. About 0.7 µs.

        Not to be nested in one thread: growth would wait for the outer, the inner for growth.
        """
        return GatedRead(self)

    def is_in_force(self, txn: Any) -> bool:
        """Whether the generation a read has begun in had no mark then. Asked once for each commit."""
        number = txn.id()
        if number != self.commits.warm_id and directory.successor(txn.get) is not None:
            return False
        self.checked = number
        return True

    def forget_last_commit(self) -> None:
        """Have the next transaction look again at what is known since the last commit, and for a mark."""
        self.commits.forget_warm()
        self.checked = -1

    def leave_superseded(self, map_read: Log | Tree) -> None:
        """Go over, for a read that has found the mark in ``map_read`` and has ended."""
        if self.commits.in_own_transaction():
            raise TransactionError(f"{self.path} is being compacted by this thread; read from it once that has ended")
        self.commits.run_apart(self.commits.writing, lambda: self._go_over_from(map_read))

    def _go_over_from(self, map_read: Log | Tree) -> None:
        if self.map.mapped is map_read:
            self.map.go_over()

    def recover_read(self, error: lmdb_errors.Error | OSError | NotAtRest) -> None:
        """Recover from an error at the beginning of a read (a resize, a panic, no reader slot), or raise it."""
        commits = self.commits
        if self._closed:
            raise closed(self.path) from error
        if isinstance(error, NotAtRest):
            commits.run_apart(commits.writing, self.map.reopen)
        elif not lmdb_errors.is_failure(error):
            raise error
        elif isinstance(error, lmdb_errors.MapResizedError) and commits.in_own_transaction():
            self.map.adopt_size()
        elif isinstance(error, lmdb_errors.MapResizedError):  # what another thread's transaction sees would be gone
            commits.run_apart(commits.writing, self.map.adopt_size)
        elif isinstance(error, lmdb_errors.PanicError):
            commits.run_apart(commits.writing, self.map.reopen)
        elif not isinstance(error, lmdb_errors.ReadersFullError) or not self.map.clear_readers():
            raise lmdb_errors.translate_error(self.path, error) from error

    def readers(self) -> list[Reader]:
        """The reads open at this moment in all processes, the furthest behind first.

        LMDB uses no page again that an open read may still see, so the file grows by what is written while a read
        stays open. Those of dead processes are cleared before. A read shows up while it runs, so mostly for
        microseconds: one that is always here, or lags by more than a few checkpoints, holds pages back.
        """
        with lmdb_errors.translated(self.path):
            from ..figures import Reader  # noqa: PLC0415 - it is loaded once one is returned

            self.live()
            if not self.readonly:
                self.map.clear_readers()
            tree = self.map.tree
            assert tree is not None
            last = tree.state().transaction
            found = [Reader(*read, lag=max(0, last - read.transaction)) for read in tree.readers()]
        return sorted(found, key=lambda reader: -reader.lag)

    def flush(self) -> None:
        """Force everything committed to disk; after it even a power cut loses none of it."""
        self.require_usable()
        with lmdb_errors.translated(self.path):
            self.commits.run_apart(self.commits.leading, self._flush)

    def _flush(self) -> None:
        try:
            if not isinstance(log := self.live(), Tree):
                log.ring.flush()
        except lmdb_errors.Error as error:
            self.map.note_failure(error)
            raise

    def moment(self, txn: Any) -> int:
        """A number for what this read sees: as no other state of the store has. LMDB's own
        begins again with each generation."""
        return int(self.map.generation.name) << 64 | int(txn.id())

    def last_transaction_id(self) -> int:
        """The number of the newest commit in the file; -1 where none is mapped, in a forked child or after close()."""
        return self.map.last_transaction_id()


class GatedRead:
    """One short read of a consistent state. Values come out as copies, never LMDB's memory."""

    __slots__ = ("__weakref__", "_env", "_mark", "_txn", "thread")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._mark: ref[Read] = ref(self)
        self.thread: int = get_ident()

    def __enter__(self) -> Any:
        env, mark = self._env, self._mark
        while True:
            if HERE[0] != USUAL:
                env.require_usable()
            gate = env.gate
            try:
                gate.inside.add(mark)
                if not gate.bar.locked():
                    mapped = env.live()
                    self._txn = txn = mapped.begin()
                    if txn.id() == env.checked or env.is_in_force(txn):
                        return txn
                    txn.abort()
                    gate.inside.discard(mark)
                    env.leave_superseded(mapped)
                    continue
            except (lmdb_errors.Error, OSError, NotAtRest) as error:
                gate.inside.discard(mark)
                env.recover_read(error)
            except BaseException:
                gate.inside.discard(mark)
                raise
            else:
                gate.inside.discard(mark)
                if not gate.wait():
                    raise interrupted(env.path)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._txn.abort()
        self._env.gate.inside.discard(self._mark)
        if error is not None and lmdb_errors.is_failure(error):
            if self._env.is_closed:
                raise closed(self._env.path) from error
            raise lmdb_errors.translate_error(self._env.path, error) from error


def _damaged_of_newest(txn: RaxTransaction) -> Iterator[str]:
    """Read what was written last: names, headers and last nodes of up to 100 streams. About 10 µs each."""
    try:
        for index, (name, value) in enumerate(Rax(txn, NAMES).items()):
            if index == _MOST_STREAMS:
                return
            try:
                _look_at(txn, name, value)
            except RaxlogError as error:
                yield f"stream {name.decode(errors='backslashreplace')}: {error}"
    except CorruptionError as error:
        yield str(error)


def _look_at(txn: RaxTransaction, name: bytes, value: bytes) -> None:
    number = records.unseal(NAMES + name, value)[0]
    key = keys.header_key(number)
    header = txn.get(key)
    if header is None:
        raise CorruptionError(f"the header of stream number {number} is not there")
    records.unseal(key, header)
    with txn.cursor() as cursor:
        if cursor.set_key(key) and cursor.prev() and cursor.key().startswith(keys.family(number, keys.NODE)):
            records.block_header(cursor.key(), cursor.value())


def _require_alone() -> None:
    """StoreError where another process has a store of this one open: it does not see the clock that is moved here."""
    for env in alive(_environments):
        if env.files.shared is not None and (user := find_other_user(env.files.shared)) is not None:
            raise StoreError(
                f"{env.path} is open in another process, too ({user}), which does not see the clock that a test moves "
                "in this one. Close it there, or use a store of the test's own, as of raxlog.testing.store()."
            )


def _before_fork() -> None:
    if _environments:
        # The child's hook needs it. Were it imported by another thread at this moment, the child would wait for ever.
        import ctypes  # noqa: F401, PLC0415 - only a process that forks, or waits, pays for it
    for env in alive(_environments):
        env.before_fork()


def _after_fork_in_parent() -> None:
    for env in alive(_environments):
        env.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for env in alive(_environments):
        env.after_fork_in_child()


clocks.guard = _require_alone
at_fork(after_in_child=disk.close_inherited)
at_fork(4, before=_before_fork)  # each run may wait for a transaction
at_fork(after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
