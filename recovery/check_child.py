"""The process in which a check runs: messages as JSON lines on stdout, one job, then the end.

    {"generation": "000001"}                          which one is looked at
    {"opened": true}                                  LMDB has opened it and holds its state
    {"part": "records", "done": 512, "total": 807}    how far it is
    {"problem": {…}}   {"note": "…"}   {"counts": {…}}
    {"page": 17, "behind": "…"}                       a leaf page begun, and the key behind it
    {"error": "NotAStore", "what": "…"}               there is nothing to check
    {"done": true}

A job is {"path": …, "mode": "walk" | "raw" | "look-ups", "start": key}: everything, or all that
needs no LMDB, or the look-ups alone from a key on. Who asked (check.py) may be told of our
death by a signal in the middle of it, and asks for what is left.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import lmdb

from ..storage import faults, folder, generation
from ..storage.errors import CorruptionError, RaxlogError, ReadOnlyStore, StoreError
from .check_walk import Walk

_TRIES = 50


def tell(message: dict[str, Any]) -> None:
    """One message, at once: the next step may be the last."""
    os.write(1, json.dumps(message).encode() + b"\n")


def open_lmdb(folder_: Path, path: Path) -> lmdb.Environment:
    """The generation, open for reading; nothing is created. Without lock where it rests or has none."""
    locked = (folder_ / folder.LOCK).exists() and not folder.is_snapshot(path) and folder.can_register(folder_)
    size = (folder_ / folder.DATA).stat().st_size
    return lmdb.open(str(folder_), readonly=True, create=False, lock=locked, map_size=max(size, 1 << 20), max_dbs=16)


def _in_force(path: Path) -> Path:
    """The generation in force: CURRENT's, or the one its mark leads to."""
    found = folder.generation(path)
    for _ in range(_TRIES):
        walk = Walk(found, lambda message: None)
        try:
            if not walk.choose_meta(None) or not walk.begin():
                break
            assert walk.tree is not None
            newer = generation.successor(walk.tree.get)
        except RaxlogError:
            break  # the check itself will say what is wrong
        finally:
            walk.close()
        if newer is None or not (path / newer / folder.DATA).is_file():
            break
        found = path / newer
    return found


def run(job: dict[str, Any]) -> None:
    """Do one job. RaxlogError where there is nothing to check."""
    path = Path(job["path"])
    found = _in_force(path)
    tell({"generation": found.name})
    walk = Walk(found, tell)
    try:
        if walk.file.size == 0:
            raise CorruptionError(f"the data file {found / folder.DATA} is empty")
        walk.choose_meta(None)
        if job["mode"] == "raw" or walk.is_cut_off():
            if walk.is_cut_off() and walk.meta is not None:
                walk.find.say("lmdb", f"the data file is cut off: it has {walk.file.size} bytes, and "
                              f"{(walk.meta.last_page + 1) * walk.file.page_size} belong to it")
            _raw(walk)
            return
        try:
            environment = open_lmdb(found, path)
        except lmdb.Error as error:
            if isinstance(faults.cannot_open(path, error), ReadOnlyStore):
                raise faults.cannot_open(path, error) from error
            walk.find.say("lmdb", f"LMDB cannot open the file: {error}")
            _raw(walk)
            return
        with environment:
            _through_lmdb(walk, environment, job)
    finally:
        walk.close()


def _raw(walk: Walk) -> None:
    if walk.begin():
        walk.verify()
        walk.walk()
    walk.find.note("no look-ups through LMDB were made")
    walk.find.end()


def _through_lmdb(walk: Walk, environment: lmdb.Environment, job: dict[str, Any]) -> None:
    for _ in range(_TRIES):
        try:
            txn = environment.begin()
        except lmdb.MapResizedError:
            environment.set_mapsize(0)
            continue
        except lmdb.Error as error:
            walk.find.say("lmdb", f"LMDB cannot begin to read: {error}")
            _raw(walk)
            return
        with txn:
            if not walk.choose_meta(txn.id()):
                continue  # two commits have come between: their meta pages lie where this one's was
            tell({"opened": True})
            walk.is_first = job["mode"] == "walk"
            if walk.begin():
                if job["mode"] == "walk":
                    walk.verify()
                    walk.walk()
                    walk.find.end()  # what follows may kill us
                try:
                    walk.look_up(txn, bytes.fromhex(job["start"]))
                except lmdb.Error as error:
                    walk.find.say("lookup", f"LMDB fails: {error}")
                    walk.find.note("the look-ups through LMDB did not come to their end")
            walk.find.end()
            return
    raise StoreError(f"{job['path']} is written to so fast that no state of it could be held. Try again.")


def main() -> None:
    """Do the job given as the one argument."""
    try:
        run(json.loads(sys.argv[1]))
    except RaxlogError as error:
        what = error.what if isinstance(error, CorruptionError) else str(error)
        tell({"error": type(error).__name__, "what": what})
    tell({"done": True})
