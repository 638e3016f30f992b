"""What is counted of a store: its commits, and the threads beside those of its log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import raxlog
from raxlog.storage.files import log_file

JOURNAL_ALONE = pytest.mark.skipif(
    log_file.asked_ring(1 << 62) > 0, reason="how the journal, or a commit to the data file, works: a log has neither"
)


def commits_of(store: raxlog.Store) -> int:
    """A number that grows by one with each commit of this process."""
    env = store._env
    env.live()
    return env.last_transaction_id() if env.map.log is None else int(env.map.log.commits)


def other_threads() -> list[str]:
    """The names of this process' threads, but of those that put logs into data files."""
    return [thread.name for thread in threading.enumerate() if not thread.name.startswith("raxlog log")]


def settle(path: Path) -> None:
    """Have the data file of a closed store hold all that was committed: after a kill the log holds the newest."""
    raxlog.open(path).close()
