"""Ahead of the map: commits that are in the journal only, so that each costs one page and one flush.

    commits    1        2        3       …     k
    journal    record   record   record        record ┐ one flush for both
    LMDB                                       transaction n, of all k changes

A commit of LMDB's writes four or five pages, here and there in the file; a record is one, and a
disk takes two thirds of the time for it. So while a process is alone with its store, and does
nothing but write, LMDB's transactions are undone again once their record is on disk, and each
begins with what those before it have changed. The last one that has room in the slot is committed.

    who must see a commit             how he comes to it
    the next write of this process    WriteTransaction puts Ahead.changes first
    a read of this process            publishes before it begins (ReadTransaction)
    another process                   is_alone() is asked after the record is on disk: either it
                                      sees the other, and the commit goes to LMDB as well, or the
                                      other comes later, finds the record, and applies it
    whoever opens the store after     finds the records, and applies them (journal.replay())
    a kill, or a power cut

Transaction n is taken by whoever commits first. If that was another process then it has applied
the records before: what is ahead of a transaction that is no longer the next one is in the map.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .journal import SLOT_BYTES, Record

SPARE_DISK = 16 << 20  # bytes that must be free on the disk
_FEWEST = 4
_MOST = 1024
_ALONE_AGAIN = 64
_SMALLEST = 8192


class Ahead(NamedTuple):
    """What the journal holds and the map does not."""

    generation: Path
    last: Record  # its transaction is LMDB's that will hold all of them
    changes: dict[bytes, bytes | None]
    commits: int

    def has_room(self, records: int = 1) -> bool:
        """Whether so many more records, as large as those so far, still go into the slot."""
        used = self.last.end
        return used + records * max(_SMALLEST, used // self.commits) <= SLOT_BYTES


class Streak:
    """How many commits in a row nobody has read in between: whether it is worth while to run ahead.

    A read that has to publish pays for a flush. If that came soon, more commits are waited for
    the next time.
    """

    __slots__ = ("_wanted", "commits")

    def __init__(self) -> None:
        self.commits = 0  # set to 0 by each read
        self._wanted = _FEWEST

    def goes_on(self) -> bool:
        """Count one more commit; whether it may run ahead."""
        self.commits += 1
        return self.commits > self._wanted

    def ended(self, ahead: Ahead) -> None:
        """All of it has been published."""
        if not ahead.has_room(2):
            self._wanted = _FEWEST  # nobody had asked for it
            return
        self.commits = 0
        if ahead.commits < _FEWEST:
            self._wanted = min(self._wanted * 2, _MOST)

    def not_alone(self) -> None:
        """Another process has the store open: look again after some commits."""
        self.commits = -_ALONE_AGAIN
