"""Benchmarks against real peers, in one run side by side: ``raxlog bench``.

    raxlog bench ──> CASES ──> a case in cases/ ──> rounds.py   contests: slices in turn, medians
                                     │                 └── sampler.py    where the time goes
                                     ├── peers.py      sqlite3, bare LMDB, the disk
                                     └── children.py   what other processes do
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from .rounds import Figure, Rounds

# Name: module, meaning. The function is named as the case is.
TABLE = {
    "lone": ("commits", "a durable append, one caller"),
    "reader": ("commits", "the same, while another process reads every 5 ms"),
    "handover": ("commits", "an entry appended here, taken and acknowledged by another process"),
    "threads": ("commits", "durable appends by 16 threads, compared with SQLite's by one"),
    "processes": ("commits", "durable appends by 8 processes, compared with one"),
    "queue": ("queues", "read + ack of 100, in two calls and fused"),
    "batches": ("commits", "1,000 entries a commit"),
}
CASES = {
    **TABLE,
    "growth": ("growth", "the curve: 10,000 entries and more, 1-16 threads, 1-8 processes"),
    "jobs": ("jobs", "workers, compared with huey and taskiq; deferred entries"),
    "scans": ("streams", "a whole stream to dicts, and bytes on disk"),
    "counts": ("streams", "rank, select, count and split; opening"),
    "overlay": ("streams", "get and range beside what no checkpoint has taken in"),
    "memory": ("streams", "memory while entries go in and out"),
    "buffered": ("commits", "appends whose callers do not wait"),
    "waking": ("publishing", "how soon another process has an entry"),
    "publishing": ("publishing", "a message, by what it reaches"),
    "globs": ("publishing", "channels and their patterns"),
    "subjects": ("subjects", "matching among as many subscriptions as --entries"),
    "instructions": ("instructions", "machine instructions and system calls of one call; needs valgrind, and strace"),
    "cliffs": ("cliffs", "calls by how much work they have"),
    "stalls": ("cliffs", "how long an append waits during a long call"),
    "imports": ("imports", "import of CSV and NDJSON, compared with extend"),
    "arrow": ("arrow", "decoding to Arrow"),
    "spark": ("spark", "scans by Spark, compared with Parquet"),
}


def measure(case: str, rounds: Rounds) -> list[Figure]:
    """The figures of a case of CASES."""
    run: Callable[[Rounds], list[Figure]] = getattr(import_module(f".cases.{CASES[case][0]}", __name__), case)
    return run(rounds)
