"""Compaction: the data file rewritten without its unused pages, and put in force.

    C1  copy the live pages into 000002.tmp, and compare    a kill here leaves 000002.tmp
    C2  flush it; name it 000002; flush the folder          … an unused orphan
    C3  write beside CURRENT what it is to say
    C4  commit the mark in 000001, flushed                  from here on 000002 is in force
    C5  CURRENT names 000002, flushed                       until here the mark leads on
    C6  go over ourselves; remove 000001 if no process has it open

Writers wait from C1 to C6 (about a second for a gigabyte that is in memory); readers go on,
those of other processes too, and find the mark with their next transaction (generation.py).
All that was committed before C1 is in the copy, and nothing is committed to the old file after it:
the writer's lock is held throughout. The copy's size is known before C1: where it would be no
smaller, nothing is done.

A kill, a power cut or an exception can end it at each step. Before C4 the store is as it was;
after it it is compacted. The next compaction, or opening for writing, removes what is left over.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from ..commit.write_transaction import WriteTransaction
from ..crash_point import crash_point
from ..engine.environment import Environment
from ..errors import CorruptionError, LockTimeout, StoreError, StoreFull
from ..files import directory, disk, generation, lmdb_errors, log_file
from ..files.lmdb_file import RESERVE, pages_in
from ..format import records
from ..log.log import Log

Progress = Callable[[str, int, int], None]

_ROOM = 1 << 24
_FIRST_NAP, _PERIOD = 0.001, 0.05


class Compaction(NamedTuple):
    """What a compaction did.

    Where the new file would be no smaller the old one stays: the same generation, and as many bytes.
    ``held_by``: processes that still have an old generation open; its room on disk is given back by
    the first open or compaction that finds it closed.
    """

    generation: int
    bytes_before: int
    bytes_after: int
    seconds: float
    held_by: tuple[int, ...]


def compact(env: Environment, timeout: float, progress: Progress | None = None) -> Compaction:
    """Rewrite the store's data file. LockTimeout, StoreFull, CorruptionError: nothing changed."""

    def reached(step: str, done: int = 0, total: int = 0) -> None:
        if step != "copying":  # reported as often as time allows, and crash points come in a fixed number
            crash_point(f"compact.{step}")
        if progress is not None:
            progress(step, done, total)

    return env.commits.exclusively(lambda: _compact(env, reached), timeout)


def tidy(env: Environment) -> None:
    """Finish what a compaction that was killed has left, unless another process writes now."""
    if generation.leftovers(env.path, env.map.generation) or directory.generation(env.path) != env.map.generation:
        # A full disk keeps a store from being tidied, not from being opened.
        try:
            with contextlib.suppress(LockTimeout, OSError):
                env.commits.exclusively(lambda: _settle(env), 0.0)
        except lmdb.Error as error:
            raise lmdb_errors.translate_error(env.path, error) from error


def _settle(env: Environment) -> list[int]:
    """Under the writer's lock: be in the generation in force, with CURRENT naming it and no other left."""
    go_over(env)
    if directory.generation(env.path) != env.map.generation:
        generation.point_to(env.path, env.map.generation)
    return generation.remove(env.path, env.map.generation)


def log_of(env: Environment) -> Log:
    """The log of a store that is open for writing."""
    assert env.map.log is not None
    return env.map.log


def go_over(env: Environment) -> None:
    """Be in the generation in force, as a write transaction is that has begun."""
    env.commits.apply(lambda _: None)


def _compact(env: Environment, reached: Callable[..., None]) -> Compaction:
    began = time.monotonic()
    try:
        held = _settle(env)
        log_of(env).checkpoint(True)  # nothing is appended from here on
        old, last = env.map.generation, env.last_transaction_id()
        before = (old / directory.DATA).stat().st_size
        size = size_of_copy(env)
        if size >= before:
            return Compaction(int(old.name), before, before, time.monotonic() - began, tuple(held))
        number = generation.next_number(env.path, old)
        new = env.path / generation.name_of(number)
        building = new.with_name(new.name + generation.BUILDING)
        try:
            _copy(env, building, size, reached)  # C1
            os.rename(building, new)  # C2
            directory.sync_folder(env.path)
            reached("named")
            generation.prepare_pointer(env.path, new)  # C3
        except BaseException:
            disk.remove_tree(building)
            disk.remove_tree(new)
            raise
        reached("prepared")
        _mark(env, number, last + 1)  # C4
        reached("marked")
        generation.point_to(env.path, new, prepared=True)  # C5
        reached("switched")
        env.map.go_over()  # C6
    except lmdb.Error as error:
        raise lmdb_errors.translate_error(env.path, error) from error
    except TimeoutError:
        raise  # a signal's handler did
    except OSError as error:
        raise directory.cannot_create(env.path, error, "compact copy") from error
    env.commits.wake_readers(number)
    held += generation.remove(env.path, new)
    reached("cleared")
    after = (new / directory.DATA).stat().st_size
    return Compaction(number, before, after, time.monotonic() - began, tuple(sorted(set(held))))


def _mark(env: Environment, number: int, transaction: int) -> None:
    value = records.seal(generation.MARK, [number])

    def operation(txn: WriteTransaction) -> None:
        if txn.id != transaction:
            raise StoreError(
                f"another process has written to {env.path} during its compaction, for the file {directory.WRITER} was "
                "deleted, and what it wrote is not in the copy. Nothing was changed; compact the store again."
            )
        txn.put(generation.MARK, value)

    try:
        env.commits.apply(operation)
        log_of(env).checkpoint(True)  # where it is found without the log
        env.live().sync(True)
    finally:
        env.forget_last_commit()  # our own commit this time, and yet the mark has to be found


# -- the copy -----------------------------------------------------------------------------


def size_of_copy(env: Environment) -> int:
    """How many bytes the new file will have: the pages in use, some for the next commit, and the reserve."""
    stat = env.live().stat()
    return int((2 + pages_in(stat) + stat["depth"] + 1 + RESERVE) * stat["psize"])


def _copy(env: Environment, place: Path, size: int, reached: Callable[..., None]) -> None:
    """A whole, compact copy of ``size`` bytes in the new folder ``place``, all of it on disk."""
    live = env.live()
    stat = live.stat()
    room = os.statvfs(env.path)
    if size > room.f_bavail * room.f_frsize:
        raise StoreFull(
            f"no room to compact {env.path}: the new data file takes {size:,} bytes, and "
            f"{room.f_bavail * room.f_frsize:,} are free on its disk. Make room; nothing was changed."
        )
    place.mkdir()
    directory.reserve_lock(place)
    log_file.create(place, env.record.uuid, 8 * log_of(env).size)
    data = place / directory.DATA
    reached("copying", 0, size)
    copy_pages(live, place, lambda: reached("copying", size_of(data), size))
    reached("copied", size, size)
    directory.require_whole(place)
    with lmdb.open(str(place), map_size=2 * size + _ROOM, max_dbs=0, create=False) as made:
        entries = int(made.stat()["entries"])
        if entries != stat["entries"]:
            raise CorruptionError(
                f"the data file of {env.path} says it holds {stat['entries']} records, and a copy of it has {entries}"
            )
    disk.allocate(data, data.stat().st_size, size)
    directory.sync_file(data)
    directory.sync_folder(place)
    reached("flushed", size, size)


def copy_pages(live: lmdb.Environment, place: Path, look: Callable[[], None],
               txn: lmdb.Transaction[Any] | None = None) -> None:
    """LMDB's copy, in this thread: it is over when the call is, whatever strikes. Another thread shows its progress."""
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
        start_new_thread(watch, ())
        live.copy(str(place), compact=True, txn=txn)
    with looking:  # the last look comes before what is shown next
        if errors:
            raise errors[0]


def size_of(path: Path) -> int:
    """A file's size, 0 where it is not there yet."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

