"""A long reader: the file stays bounded, and who holds it back can be seen.

test_slow_reader.py has readers that take their time between entries, through the public calls. Here a read
transaction is held open for seconds at a time, past them, beside a writer that appends and trims.
"""

from __future__ import annotations

from pathlib import Path

import crash_parts
import pytest
import raxlog
from children import Child
from counting import checkpoint
from crash_parts import churn, size
from raxlog.storage.log import ring

pytestmark = pytest.mark.storm


def test_the_file_finds_its_size_beside_long_reads_and_their_lag_is_told(tmp_path: Path) -> None:
    assert crash_parts.reader(30.0, tmp_path).failed == 0


def test_the_control_a_read_that_never_ends_lets_the_file_grow_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "RING", ring.LEAST)  # as in the test above: there are many checkpoints
    path = tmp_path / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        for _ in range(100):
            churn(store)
        before = size(store)
        with Child(crash_parts.hold(path, 3600)) as child:
            child.heard()
            log = store._env.map.log
            assert log is not None
            earlier = log.checkpoints.made
            for _ in range(300):
                churn(store)
            checkpoint(store)
            slow = [reader for reader in store.readers() if reader.pid == child.pid]
            assert [reader.lag for reader in slow] == [log.checkpoints.made - earlier]
            assert size(store) > 3 * before
        assert store.readers() == []
        for _ in range(20):
            churn(store)
        grown = size(store)
        for _ in range(300):
            churn(store)
        assert size(store) == grown, "the pages are used again once the reader is gone"
        assert store.compact().bytes_after < 2 * before
