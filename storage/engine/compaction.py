"""Compaction: the data file rewritten without its unused pages, and put in force.

    C1  copy the live pages into 000002.tmp, and compare    a kill here leaves 000002.tmp
    C2  flush it; put in what was committed since then      … the same
    ─── the writer's lock ───
        the rest of that; name it 000002; flush the folder  … an unused orphan
    C3  write beside CURRENT what it is to say
    C4  commit the mark in 000001, flushed                  from here on 000002 is in force
    C5  CURRENT names 000002, flushed                       until here the mark leads on
    ───
    C6  go over ourselves; remove 000001 if no process has it open

Writers and readers go on beside C1 and C2; what is written then comes out of the log's feed (log/feed.py), round after
round, and they end when one takes a moment only. Where one takes more than half as long as the one before, writers are
nearly as fast: then each further round has the writer's lock for a tenth of a second, and writers go on between two. So
none of them waits for more than that, or for what was written in a moment, and the swap. Readers go on throughout, and
find the mark with their next transaction (directory.py). All that was committed before the writer's lock was taken is
in the copy, and nothing is committed to the old file after it.

Where the feed is lost (the disk is nearly full), all is done again with the writer's lock held from C1 on. The copy's
size is known before C1: where it would be no smaller, nothing is done. One process at a time copies: it has the
feed's lease, and a lock on 000002.tmp that keeps other processes from taking that for a leftover.

A kill, a power cut or an exception can end it at each step. Before C4 the store is as it was;
after it it is compacted. The next compaction, or opening for writing, removes what is left over.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from _thread import get_ident, start_new_thread
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from .. import clocks, disk
from ..crash_point import crash_point
from ..errors import CorruptionError, LockTimeout, StoreError, StoreFull, interrupted
from ..folder import directory
from ..format import records
from ..locks import ofd_lock
from ..locks.shared_file import SHARED
from ..log.checkpoint import put_changes
from ..log.feed import LEAST_FREE, Feed, Overwritten
from ..log.log import Log
from ..log.ring import APPLIED_KEY, create_log, unseal_applied
from ..log.transaction import WriteTransaction
from ..tree import lmdb_errors, lmdb_file
from ..tree.lmdb_file import RESERVE
from ..tree.tree import Tree
from .environment import Environment

if TYPE_CHECKING:
    from ..figures import Compaction

Progress = Callable[[str, int, int], None]

_ROOM = 1 << 24
_FIRST_NAP, _PERIOD = 0.001, 0.05
_MOMENT, _PIECE = 0.02, 0.1  # seconds


def compact(env: Environment, timeout: float, progress: Progress | None = None) -> Compaction:
    """Rewrite the store's data file. LockTimeout, StoreFull, CorruptionError: nothing changed."""

    def reached(step: str, done: int = 0, total: int = 0) -> None:
        if step != "copying":  # it is reported as often as time allows; the number of crash points must not vary
            crash_point(f"compact.{step}")
        if progress is not None:
            progress(step, done, total)

    if env.is_compacting():
        raise interrupted(env.path)
    env.gate.require_no_read()
    with contextlib.suppress(Overwritten):
        return _Compacting(env, reached, lambda work: env.commits.exclusively(work, timeout)).run(timeout)
    return env.commits.exclusively(lambda: _Compacting(env, reached, None).run(timeout), timeout)


def tidy(env: Environment) -> None:
    """Finish what a compaction that was killed has left, unless another process writes now."""
    # A full disk keeps a store from being tidied, not from being opened.
    try:
        with contextlib.suppress(LockTimeout, OSError):
            env.commits.exclusively(lambda: _settle(env), 0.0)
    except lmdb_errors.Error as error:
        raise lmdb_errors.translate_error(env.path, error) from error


def _settle(env: Environment) -> list[int]:
    """Under the writer's lock: be in the generation in force, with CURRENT naming it and no other left."""
    go_over(env)
    if directory.generation(env.path) != env.map.generation:
        directory.point_to(env.path, env.map.generation)
    log = log_of(env)
    log.ring.strike_out_orphan(log.pos, log.chain)  # the mark of a compaction killed as it wrote it: its copy goes
    log.ring.flush()  # a later record over it must not go with the power, and leave the mark
    return directory.remove_generations(env.path, env.map.generation)


def log_of(env: Environment) -> Log:
    """The log of a store that is open for writing. StoreClosed, once that has been closed."""
    env.live()
    assert env.map.log is not None
    return env.map.log


def go_over(env: Environment) -> None:
    """Be in the generation in force, as a write transaction is that has begun."""
    env.commits.apply(lambda _: None)


class _Compacting:
    """One compaction. Without ``exclusively`` all of it runs under the writer's lock, and needs no feed."""

    def __init__(self, env: Environment, reached: Callable[..., None],
                 exclusively: Callable[[Callable[[], Any]], Any] | None) -> None:
        self.env = env
        self.thread = get_ident()
        env.compactions.add(ref(self, env.compactions.discard))
        self.reached = reached
        self.exclusively = exclusively
        self.began = clocks.elapsed()
        self.held: list[int] = []
        self.feed: Feed | None = None
        self.made: Tree | None = None
        self.kept: list[FileIO] = []  # the lock on the copy; the old file, so that its removal is brief

    def locked(self, work: Callable[[], Any]) -> Any:
        """Run it under the writer's lock."""
        return work() if self.exclusively is None else self.exclusively(work)

    def run(self, timeout: float) -> Compaction:
        """Run the steps C1 to C6; LockTimeout where another compaction runs for ``timeout`` seconds."""
        env = self.env
        try:
            deadline = clocks.elapsed() + timeout
            while not self.locked(self.begin):
                if clocks.elapsed() > deadline:
                    raise LockTimeout(f"waited {timeout:g} s for another compaction of {env.path}")
                clocks.sleep(_PERIOD)
            if self.size >= self.before:
                return self.outcome(self.old, self.before)
            self.copy()  # C1
            self.catch_up()  # C2
            if not self.locked(self.swap):
                return self.outcome(self.old, self.before)
            self.reached("switched")
            if self.exclusively is None:
                self.leave()
            else:
                env.commits.run_apart(env.commits.writing, self.leave)
            with contextlib.suppress(LockTimeout):  # the next opening removes it
                self.held += self.locked(lambda: _settle(env))
            self.reached("cleared")
            return self.outcome(self.new, (self.new / directory.DATA).stat().st_size)
        except lmdb_errors.Error as error:
            raise lmdb_errors.translate_error(env.path, error) from error
        except TimeoutError:
            raise  # a signal's handler did
        except OSError as error:
            raise directory.cannot_create(env.path, error, "compact copy") from error
        finally:
            if self.made is not None:
                self.made.close()
            if hasattr(self, "place"):
                disk.remove_tree(self.place)
            if self.feed is not None:
                self.feed.close()
            for file in self.kept:
                ofd_lock.close(file)
            env.compactions.discard(ref(self))

    def leave(self) -> None:
        """C6. Under the writer's lock, or ``writing``. StoreClosed."""
        self.env.live()
        if self.env.map.generation == self.old:
            self.env.map.go_over()

    def outcome(self, folder: Path, size: int) -> Compaction:
        """The figures of this compaction; ``folder`` is the generation now in force."""
        from ..figures import Compaction  # noqa: PLC0415 - a store is opened without it

        took = clocks.elapsed() - self.began
        return Compaction(int(folder.name), self.before, size, took, tuple(sorted(set(self.held))))

    def begin(self) -> bool:
        """Under the writer's lock. False where another process compacts."""
        env = self.env
        self.held += _settle(env)
        self.old = env.map.generation
        if self.exclusively is not None:
            self.feed = Feed(self.old)
            try:
                self.feed.open(env.record.uuid)
            except LockTimeout:
                return False
        log_of(env).checkpoints.make(True)
        data = self.old / directory.DATA
        self.before, self.size, self.last = data.stat().st_size, size_of_copy(env), env.last_transaction_id()
        if self.size < self.before:
            self.number = directory.next_number(env.path, self.old)
            self.new = env.path / directory.generation_name(self.number)
            if _room_beside(env, self.size) < LEAST_FREE and self.feed is not None:
                raise Overwritten(f"the disk of {env.path} has no room for what is written beside a compaction")
            self.place = self.new.with_name(self.new.name + directory.BUILDING)
            self.place.mkdir()
            directory.reserve_lock(self.place)
            self.kept = [disk.open_file(self.place / directory.LOCK), disk.open_file(data, os.O_RDONLY)]
            ofd_lock.take(self.kept[0], 0, 1, shared=True)
        return True

    def copy(self) -> None:
        """A whole, compact copy in a new folder, all of it on disk."""
        env, place, size, log = self.env, self.place, self.size, log_of(self.env)
        data, tree = place / directory.DATA, log.tree
        create_log(place, env.record.uuid, 8 * log.ring.size)
        self.reached("copying", 0, size)
        with env.read() as view:
            txn = cast(Any, view).lmdb()
            wanted = tree.pages(txn).records
            with env.gate.copying:
                copy_pages(tree.copy, place, lambda: self.reached("copying", size_of(data), size), txn)
        self.reached("copied", size, size)
        lmdb_file.require_whole(place)
        made = self.made = Tree(place, 2 * size + _ROOM)
        with made.write() as copied:
            put_changes(copied, [], *unseal_applied(copied.get(APPLIED_KEY))[:2])  # its log is new
        entries = made.pages().records
        if entries != wanted:
            raise CorruptionError(
                f"the data file of {env.path} says it holds {wanted} records, and a copy of it has {entries}"
            )
        _lengthen(data, size)
        directory.sync_file(data)
        directory.sync_folder(place)

    def catch_up(self) -> None:
        """C2: apply what was committed since the copy began, while writers go on, until little remains."""
        time_limit = math.inf
        while self.feed is not None:
            began = clocks.elapsed()
            self.follow(time_limit)
            took = clocks.elapsed() - began
            if took < _MOMENT:
                break
            if took > time_limit:
                while not self.locked(self.gain):
                    pass
                break
            time_limit = took / 2
        if self.feed is not None and self.env.map.log is not None:  # None: it has been closed
            log_of(self.env).checkpoints.make(True)  # so that there is little to do when the old file is left
        self.reached("flushed", self.size, self.size)

    def gain(self) -> bool:
        """Under the writer's lock: apply one piece of the feed, of 100 ms; True once it has caught up."""
        began = clocks.elapsed()
        self.follow(_PIECE)
        return clocks.elapsed() - began < _PIECE

    def follow(self, seconds: float = math.inf) -> int:
        """Put into the copy, in pieces, what the log has now, or as much as that time allows; up to where that is."""
        made, feed = self.made, self.feed
        assert made is not None
        ends, aim = clocks.elapsed() + seconds, 0 if feed is None else feed.end()
        while True:
            try:
                with made.write() as txn:
                    enough = min(ends, clocks.elapsed() + _PIECE)  # writers wait for the flush of a piece
                    upto, chain, *_ = unseal_applied(txn.get(APPLIED_KEY))
                    if feed is not None:
                        for upto, chain, changes in feed.changes(upto, chain, txn.get):  # noqa: B020
                            put_changes(txn, changes, upto, chain)
                            if clocks.elapsed() > enough:
                                break
                if upto >= aim or clocks.elapsed() > ends:
                    return upto
            except lmdb_errors.MapFullError:
                made.set_size(2 * made.state().map_size)

    def swap(self) -> bool:
        """Under the writer's lock: the rest, and the copy in force. False where it is no smaller any more."""
        env, data = self.env, self.place / directory.DATA
        go_over(env)
        if env.map.generation != self.old:
            raise Overwritten(f"another process has compacted {env.path}")
        if self.feed is not None and self.made is not None:
            upto, self.last = self.follow(), env.last_transaction_id()
            if upto != self.last:
                raise Overwritten(f"the log of {env.path} ends at {self.last}, and its feed at {upto}")
            pages, page = self.made.state().pages + RESERVE, self.made.page
            self.made.close()
            self.feed.close()
            _lengthen(data, pages * page)
            directory.sync_file(data)
            self.before = (self.old / directory.DATA).stat().st_size
            if pages * page >= self.before:
                return False
        elif self.made is not None:
            self.made.close()
        ofd_lock.close(self.kept[0])  # LMDB would take it for a process that is inside
        try:
            os.rename(self.place, self.new)
            directory.sync_folder(env.path)
            self.reached("named")
            directory.prepare_pointer(env.path, self.new)  # C3
        except BaseException:
            disk.remove_tree(self.new)
            raise
        self.reached("prepared")
        _mark(env, self.number, self.last + 1)  # C4
        self.reached("marked")
        directory.point_to(env.path, self.new, prepared=True)  # C5
        env.commits.wake_readers(self.number)
        return True


def _mark(env: Environment, number: int, transaction: int) -> None:
    value = records.seal(directory.MARK, [number])

    def operation(txn: WriteTransaction) -> None:
        if txn.upto != transaction:
            raise StoreError(
                f"another process has written to {env.path} during its compaction, for the file {SHARED} was "
                "replaced, and what it wrote is not in the copy. Nothing was changed; compact the store again."
            )
        txn.put(directory.MARK, value)

    try:
        env.commits.apply(operation)
        log_of(env).checkpoints.make(True)  # where it is found without the log
        log_of(env).ring.flush()
    finally:
        env.forget_last_commit()  # our own commit this time, and yet the mark has to be found


# -- the copy -----------------------------------------------------------------------------


def size_of_copy(env: Environment) -> int:
    """How many bytes the new file will have: the pages in use, some for the next commit, and the reserve."""
    tree = log_of(env).tree
    pages = tree.pages()
    return int((2 + pages.occupied + pages.depth + 1 + RESERVE) * tree.page)


def _lengthen(data: Path, size: int) -> None:
    """Have a file be so long, unless it is longer."""
    now = data.stat().st_size
    if size > now:
        disk.allocate(data, now, size)


def _room_beside(env: Environment, size: int) -> int:
    """How many bytes are free on the disk beside the copy. StoreFull where it has no room for that."""
    disk_now = os.statvfs(env.path)
    room = disk_now.f_bavail * disk_now.f_frsize
    if size > room:
        raise StoreFull(
            f"no room to compact {env.path}: the new data file takes {size:,} bytes, and "
            f"{room:,} are free on its disk. Make room; nothing was changed."
        )
    return room - size


def copy_pages(copy: Callable[[str, Any], None], place: Path, look: Callable[[], None], txn: Any) -> None:
    """A copy of what a read sees, in this thread: it is over when the call is, whatever strikes.

    Another thread shows its progress.
    """
    errors: list[BaseException] = []
    copying, looking = threading.Lock(), threading.Lock()

    def watch() -> None:
        nap = _FIRST_NAP
        while not copying.acquire(timeout=nap):
            nap = min(nap * 2, _PERIOD)
            try:
                with looking:
                    if copying.locked():
                        look()
            except BaseException as error:
                errors.append(error)
                return
        copying.release()

    with copying:
        # Not a Thread of threading's, an exception can leave its start() by half.
        with contextlib.suppress(RuntimeError):  # none can be had: LMDB's copy needs one, too, and reports it
            start_new_thread(watch, ())
        copy(str(place), txn)
    with looking:  # the last look comes before what is shown next
        if errors:
            raise errors[0]


def size_of(path: Path) -> int:
    """A file's size, 0 where it is not there yet."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

