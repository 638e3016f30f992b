"""check: verify every invariant of a store, in a process of its own.

    check(path)
      └─ subprocess: walk all of it   ── problems, counts ──> Report
           │ dies in LMDB                                      a problem, with the signal
           └─ subprocess: the rest, after the page that killed the first      … and so on

The walks read raw pages and cannot die; only opening LMDB and the look-ups through it can, so one
bad page hides nothing but itself. The messages, each a dict:

    {"generation": "000001"}                          the generation that is checked
    {"opened": true}                                  LMDB has opened it and pins its state
    {"part": "records", "done": 512, "total": 807}    progress
    {"problem": {…}}   {"note": "…"}   {"counts": {…}}
    {"page": 17, "next": "…"}                         look-ups begin a leaf page; the next page's first key
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb

from ...storage.errors import CorruptionError, InvalidArgument, RaxlogError, ReadOnlyStore, StoreError
from ...storage.files import directory, lmdb_errors
from ...storage.lifecycle import registry
from ...stream.entries.write_buffer import WriteBuffer
from ..subprocess_task import Progress, SubprocessTask
from .report import Problem, Report
from .walk import StoreWalk, current_generation

_MOST_DEATHS = 64
_TRIES = 50


def check(path: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Check every invariant of the store at ``path``: ``.ok``, ``.problems``, ``.counts``.

    Each problem states what is wrong, what it means, and where: stream, group, node, offset, page.
    ``progress(part, done, total)`` is called now and then; the parts are "pages", "records",
    "streams", "subjects" and "look-ups". Changes and creates nothing, works in a process of its own,
    and may run beside writers: it pins one state for as long as it takes, and pages freed in that
    time are reused afterwards. About a second for a million small entries.

    Damage is reported, never raised, and cannot kill the caller. NotAStore,
    UnsupportedFormat, ReadOnlyStore (beside a live writer, without permission to register as a
    reader), StoreError (the file cannot be read), CorruptionError (it is empty).
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidArgument(f"path={path!r} must name a directory")
    store = Path(os.path.abspath(path))
    env = registry.opened(store)
    if env is not None and env.options.durability == "buffered" and not env.readonly:
        env.attached(WriteBuffer).flush()
    directory.generation(store)  # NotAStore, with the reason
    began = time.monotonic()
    report = Report(str(store), "")
    job: dict[str, Any] = {"path": str(store), "mode": "walk", "start": ""}
    for _ in range(_MOST_DEATHS):
        rest = _run_job(job, report, progress)
        if rest is None:
            break
        job = rest
    else:
        report.notes.append(f"the check was given up after {_MOST_DEATHS} deaths")
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _run_job(job: dict[str, Any], report: Report, progress: Progress | None) -> dict[str, Any] | None:
    """Run one subprocess. Returns the job of the next one if this one was killed, else None."""
    opened = False
    last: dict[str, Any] = {}
    part = "opening"
    with SubprocessTask(perform, job) as task:
        for (message,) in task:
            if "part" in message:
                part = message["part"]
                if progress is not None:
                    progress(part, message["done"], message["total"])
            elif "next" in message:
                last = message
            elif "counts" in message and job["mode"] == "look-ups":
                report.counts["looked_up"] = report.counts.get("looked_up", 0) + message["counts"].get("looked_up", 0)
            else:
                report.take(message)
            opened = opened or "opened" in message
        if isinstance(task.error, RaxlogError):
            raise task.error
        failure = task.failure
    if failure is None:
        return None
    where = f" at page {last['page']}" if last else ""
    report.add(Problem("process", f"the process that read it {failure} during {part}{where}", page=last.get("page")))
    if last and last["next"] is not None:
        return job | {"mode": "look-ups", "start": last["next"]}
    if last or job["mode"] == "raw" or opened:
        return None
    return job | {"mode": "raw"}


# -- in the subprocess ------------------------------------------------------------------------


def perform(send: Callable[[dict[str, Any]], None], path: str, mode: str, start: str) -> None:
    """Check in this process. RaxlogError where there is nothing to check.

    ``mode`` is "walk" (everything), "raw" (all that needs no LMDB) or "look-ups" (those alone, from the
    leaf of the key ``start`` on, in hex).
    """
    store = Path(path)
    generation = current_generation(store)
    send({"generation": generation.name})
    with closing(StoreWalk(generation, send)) as walk:
        if walk.file.size == 0:
            raise CorruptionError(f"the data file {generation / directory.DATA} is empty")
        walk.choose_meta(None)
        if mode == "raw" or walk.is_cut_off():
            if walk.is_cut_off() and walk.meta is not None:
                walk.find.problem("lmdb", f"the data file is cut off: it has {walk.file.size} bytes, and "
                                  f"{(walk.meta.last_page + 1) * walk.file.page_size} belong to it")
            _walk_raw(walk)
            return
        try:
            environment = _open_lmdb(generation, store)
        except lmdb.Error as error:
            refusal = lmdb_errors.cannot_open(store, error)
            if isinstance(refusal, ReadOnlyStore):
                raise refusal from error
            _walk_raw(walk, f"LMDB cannot open the file: {error}")
            return
        with environment:
            _walk_with_lmdb(walk, environment, mode, start)


def _open_lmdb(generation: Path, store: Path) -> lmdb.Environment:
    """Open a generation for reading; nothing is created. Without lock where it is a snapshot or has none."""
    has_lock = (generation / directory.LOCK).exists() and not directory.is_snapshot(store)
    size = (generation / directory.DATA).stat().st_size
    return lmdb.open(str(generation), readonly=True, create=False, lock=has_lock and directory.can_register(generation),
                     map_size=max(size, 1 << 20), max_dbs=16)


def _walk_raw(walk: StoreWalk, why: str = "") -> None:
    """All but the look-ups; ``why`` is the problem that forbids them."""
    if why:
        walk.find.problem("lmdb", why)
    if walk.begin():
        walk.verify()
        walk.walk()
    walk.find.note("no look-ups through LMDB were made")
    walk.find.end()


def _walk_with_lmdb(walk: StoreWalk, environment: lmdb.Environment, mode: str, start: str) -> None:
    for _ in range(_TRIES):
        try:
            txn = environment.begin()
        except lmdb.MapResizedError:
            environment.set_mapsize(0)
            continue
        except lmdb.Error as error:
            _walk_raw(walk, f"LMDB cannot begin to read: {error}")
            return
        with txn:
            if not walk.choose_meta(txn.id()):
                continue  # two commits since then have replaced its meta page
            walk.send({"opened": True})
            walk.is_first = mode == "walk"
            if walk.begin():
                if walk.is_first:
                    walk.verify()
                    walk.walk()
                    walk.find.end()  # the look-ups may kill the process
                try:
                    walk.look_up(txn, bytes.fromhex(start))
                except lmdb.Error as error:
                    walk.find.problem("lookup", f"LMDB fails: {error}")
                    walk.find.note("the look-ups through LMDB did not come to their end")
            walk.find.end()
            return
    raise StoreError(f"{walk.generation.parent} is written to so fast that no state of it could be held. Try again.")
