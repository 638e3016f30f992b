"""Generations: which of a store's data files is in force, and how all processes go over to a new one.

    CURRENT ──► 000001/data.mdb      number 0, kind 06: superseded by 2
                                               │
                000002/data.mdb   ◄────────────┘       in force: it has no such mark

The mark is a record in the last commit of a generation. A process that finds it closes the map and
opens the one that it names. Everything that begins after that commit sees it:

  - a write transaction looks for it right after it has begun, unless the last commit was its
    own process's (then there is no mark), so no commit goes to an orphan
  - a read transaction looks once for each commit it finds: 0.05 µs where nothing has been
    committed since the last read, 0.5 µs more where something has. A read that was under way
    goes on in the old file, which is not written any more

So CURRENT is only where the search begins. Where a process was killed, or the power was cut,
between the mark and the change of CURRENT, the mark leads on; the next opening for writing
finishes the change.

A generation can go once CURRENT is past it and no process has it open, which the locks on
its lock file show (lock_file.py). It is renamed first: an opening in that moment finds all of it or nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import CorruptionError
from ..format import keys, records
from ..tree import lock_file
from . import directory

MARK = keys.family(0, keys.SUPERSEDED)
BUILDING = ".tmp"
_GONE = ".gone"


def name_of(number: int) -> str:
    """The name of a generation's folder."""
    return f"{number:06d}"


def successor(get: Callable[[bytes], Any]) -> str | None:
    """The name of the generation that supersedes this one, by its mark; None if it has none."""
    value = get(MARK)
    if value is None:
        return None
    number = records.unseal(MARK, value)[0]
    if not isinstance(number, int) or not 0 < number < 10**9:
        raise CorruptionError(f"the mark of a superseded generation names generation {number!r}")
    return name_of(number)


def missing(newer: Path) -> str:
    """What is wrong where the generation that a mark names is not there."""
    return (
        f"{newer}, which supersedes what is here, is not there: it has been removed, or this is a copy by hard links "
        "(cp -al) of a store that has been compacted since. 'raxlog salvage' makes a store of what is here; to copy "
        "one, use 'raxlog snapshot'."
    )


def point_to(path: Path, generation: Path, prepared: bool = False) -> None:
    """Let CURRENT name the generation, durably. Under the writer's lock."""
    if not prepared:
        prepare_pointer(path, generation)
    os.rename(path / (directory.CURRENT + BUILDING), path / directory.CURRENT)
    directory.sync_folder(path)


def prepare_pointer(path: Path, generation: Path) -> None:
    """Write what CURRENT is to say beside it: where the disk is full, this is where it shows."""
    new = path / (directory.CURRENT + BUILDING)
    new.write_text(generation.name + "\n", encoding="ascii")
    directory.sync_file(new)


def leftovers(path: Path, in_force: Path) -> list[Path]:
    """What is left in the store's folder of generations that are not in force."""
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            stem = entry.name.removesuffix(_GONE).removesuffix(BUILDING)
            if entry.name != in_force.name and (stem.isdigit() or entry.name == directory.CURRENT + BUILDING):
                found.append(Path(entry.path))
    return sorted(found)


def next_number(path: Path, in_force: Path) -> int:
    """A number above that of every generation, also of those that could not be removed."""
    names = [in_force.name, *(leftover.name.partition(".")[0] for leftover in leftovers(path, in_force))]
    return 1 + max(int(name) for name in names if name.isdigit())


def remove(path: Path, in_force: Path) -> list[int]:
    """Remove the leftovers that no process has open; return the processes that have one open.

    Under the writer's lock, with CURRENT durably naming the one in force.
    """
    kept = []
    for leftover in leftovers(path, in_force):
        holder = lock_file.holder(leftover)
        if holder is not None:
            kept.append(holder)
            continue
        # A file that cannot be removed now is tried again by the next call.
        with contextlib.suppress(OSError):
            if leftover.is_dir():
                doomed = leftover if leftover.name.endswith(_GONE) else leftover.with_name(leftover.name + _GONE)
                if doomed != leftover:
                    disk.remove_tree(doomed)
                    os.rename(leftover, doomed)
                disk.remove_tree(doomed, ignore_errors=False)
            else:
                leftover.unlink()
    return kept

