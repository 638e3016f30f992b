"""A group with a key whose entries have very many of them: what a process remembers of these has an end."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
import raxlog
from counting import checkpoint
from raxlog.stream.group import parking

LONG = bool(os.environ.get("RAXLOG_LONG"))
MANY = 250_000 if LONG else 40_000
KNOWN = parking.MOST_KNOWN if LONG else 10_000
BATCH = 100
LOOK = 20 * BATCH
MOST_BLOCKS = 15_000 + KNOWN  # of Python's memory
MOST_MEMORY = (20 << 20) + 160 * KNOWN


def memory() -> int:
    """Bytes of this process that are in no file."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in status)["RssAnon"].split()[0]) << 10


def test_a_process_that_works_off_very_many_keys_remembers_no_more_than_of_some(
    store: raxlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "MOST_KNOWN", KNOWN)
    jobs = store.stream("jobs")
    group = jobs.create_group("w")
    group.configure(key="k", order=True)
    for first in range(1, MANY + 1, 1000):
        jobs.extend([{"k": f"customer-{n}"} for n in range(first, first + 1000)],
                    ids=[f"{n}-0" for n in range(first, first + 1000)])
    checkpoint(store)
    gc.collect()
    blocks, before, most, grown = sys.getallocatedblocks(), memory(), 0, 0
    for first in range(1, MANY + 1, BATCH):
        assert len(group.read("x", count=BATCH)) == BATCH
        if first % LOOK == 1:
            checkpoint(store)  # what the log holds is bounded elsewhere, and on a busy machine it is more
            most, grown = max(most, sys.getallocatedblocks() - blocks), max(grown, memory() - before)
    assert group.pending().total == MANY
    for first in range(1, MANY + 1, BATCH):
        assert group.ack(*[f"{n}-0" for n in range(first, first + BATCH)]) == BATCH
        if first % LOOK == 1:
            checkpoint(store)
            most, grown = max(most, sys.getallocatedblocks() - blocks), max(grown, memory() - before)
    assert group.pending().total == group.lag == 0
    print(f"{MANY} keys: {most} blocks and {grown >> 10} KB more at most")
    assert most <= MOST_BLOCKS
    assert grown <= MOST_MEMORY
