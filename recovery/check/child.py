"""What the process in which a check runs says, message by message (subprocess_task.py carries them).

    {"generation": "000001"}                          which one is looked at
    {"opened": true}                                  LMDB has opened it and holds its state
    {"part": "records", "done": 512, "total": 807}    how far it is
    {"problem": {…}}   {"note": "…"}   {"counts": {…}}
    {"page": 17, "behind": "…"}                       a leaf page begun, and the key behind it

A job is a path, a mode ("walk": everything; "raw": all that needs no LMDB; "look-ups": those alone,
from a key on) and that key. The process may die of a signal in the middle of it: check.py then
asks another one for what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb

from ...storage.errors import CorruptionError, ReadOnlyStore, StoreError
from ...storage.files import directory, lmdb_errors
from .walk import Walk, in_force

_TRIES = 50


def open_lmdb(folder_: Path, path: Path) -> lmdb.Environment:
    """The generation, open for reading; nothing is created. Without lock where it rests or has none."""
    locked = (folder_ / directory.LOCK).exists() and not directory.is_snapshot(path) and directory.can_register(folder_)
    size = (folder_ / directory.DATA).stat().st_size
    return lmdb.open(str(folder_), readonly=True, create=False, lock=locked, map_size=max(size, 1 << 20), max_dbs=16)


def run(tell: Callable[[dict[str, Any]], None], path: str, mode: str, start: str) -> None:
    """Do one job. RaxlogError where there is nothing to check."""
    store = Path(path)
    found = in_force(store)
    tell({"generation": found.name})
    with closing(Walk(found, tell)) as walk:
        if walk.file.size == 0:
            raise CorruptionError(f"the data file {found / directory.DATA} is empty")
        walk.choose_meta(None)
        if mode == "raw" or walk.is_cut_off():
            if walk.is_cut_off() and walk.meta is not None:
                walk.find.say("lmdb", f"the data file is cut off: it has {walk.file.size} bytes, and "
                              f"{(walk.meta.last_page + 1) * walk.file.page_size} belong to it")
            _raw(walk)
            return
        try:
            environment = open_lmdb(found, store)
        except lmdb.Error as error:
            if isinstance(lmdb_errors.cannot_open(store, error), ReadOnlyStore):
                raise lmdb_errors.cannot_open(store, error) from error
            _raw(walk, f"LMDB cannot open the file: {error}")
            return
        with environment:
            _through_lmdb(walk, environment, mode, start)


def _raw(walk: Walk, why: str = "") -> None:
    """All but the look-ups. ``why`` LMDB is not asked is a problem of its own."""
    if why:
        walk.find.say("lmdb", why)
    if walk.begin():
        walk.verify()
        walk.walk()
    walk.find.note("no look-ups through LMDB were made")
    walk.find.end()


def _through_lmdb(walk: Walk, environment: lmdb.Environment, mode: str, start: str) -> None:
    for _ in range(_TRIES):
        try:
            txn = environment.begin()
        except lmdb.MapResizedError:
            environment.set_mapsize(0)
            continue
        except lmdb.Error as error:
            _raw(walk, f"LMDB cannot begin to read: {error}")
            return
        with txn:
            if not walk.choose_meta(txn.id()):
                continue  # two commits have come between: their meta pages lie where this one's was
            walk.tell({"opened": True})
            walk.is_first = mode == "walk"
            if walk.begin():
                if walk.is_first:
                    walk.verify()
                    walk.walk()
                    walk.find.end()  # what follows may kill us
                try:
                    walk.look_up(txn, bytes.fromhex(start))
                except lmdb.Error as error:
                    walk.find.say("lookup", f"LMDB fails: {error}")
                    walk.find.note("the look-ups through LMDB did not come to their end")
            walk.find.end()
            return
    raise StoreError(f"{walk.generation.parent} is written to so fast that no state of it could be held. Try again.")
