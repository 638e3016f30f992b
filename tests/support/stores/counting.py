"""What is counted of a store: its commits, and the threads beside those of its log."""

from __future__ import annotations

import threading
from pathlib import Path

import raxlog


def commits_of(store: raxlog.Store) -> int:
    """A number that grows by one with each commit of this process."""
    env = store._env
    env.live()
    assert env.map.log is not None
    return int(env.map.log.commits)


def checkpoint(store: raxlog.Store) -> None:
    """Have the data file hold all that was committed: a commit of LMDB's."""
    log = store._env.map.log
    assert log is not None
    log.checkpoints.make(True)


def other_threads() -> list[str]:
    """The names of this process' threads, but of those that put logs into data files."""
    return [thread.name for thread in threading.enumerate() if not thread.name.startswith("raxlog log")]


def settle(path: Path) -> None:
    """Have the data file of a closed store hold all that was committed: after a kill the log holds the newest."""
    raxlog.open(path).close()
