"""Readers: which processes read at this moment, and how far they are behind.

LMDB uses no page again that an open read may still see, so the file grows by what is written
while a read stays open. Here the process is named.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..figures import Figures
from ..tree import lmdb_errors
from .environment import Environment


@dataclass(frozen=True, slots=True)
class Reader(Figures):
    """One read transaction that is open now. ``lag``: how many checkpoints have come since it began."""

    pid: int
    thread: int
    transaction: int
    lag: int


def readers(env: Environment) -> list[Reader]:
    """The reads open at this moment in all processes, the furthest behind first.

    Those of dead processes are cleared before. A read shows up while it runs, so mostly for
    microseconds: one that is always here, or lags by more than a few checkpoints, holds pages back.
    """
    with lmdb_errors.translated(env.path):
        env.live()
        if not env.readonly:
            env.map.clear_readers()
        tree = env.map.tree
        assert tree is not None
        last = tree.state().transaction
        found = [Reader(*read, lag=max(0, last - read.transaction)) for read in tree.readers()]
    return sorted(found, key=lambda reader: -reader.lag)
