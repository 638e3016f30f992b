"""The great storm: two processes with two threads each do everything there is, and are killed at random.

Streams are appended to, read, acknowledged, claimed, given back, trimmed, deleted and made anew; a transaction
of each leaves its mark in a stream they all share and in the state. The same store goes through many lives.
Sometimes one process dies before the others, sometimes one is stopped for a while.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import crash_parts
import crash_steps as steps
import pytest
from raxlog.crashtest import Storm, explore

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
ROUNDS = 1_000


def test_nothing_is_lost_nothing_is_by_half_and_nobody_is_stuck_in_a_storm_of_kills(tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    outcome = crash_parts.kills(ROUNDS, SEED, tmp_path)
    assert outcome.failed == 0
    assert outcome.tried == ROUNDS


def test_the_storm_catches_who_speaks_before_the_commit(tmp_path: Path) -> None:
    known = steps.golden(300)
    report = explore(
        partial(steps.several_writers, known=known, early=True), partial(steps.check_several, known=known),
        modes=[Storm(200, longest=0.02, lives=1)], seed=SEED, keep=tmp_path,
    )
    print(f"RAXLOG_SEED={SEED}\n{report}")
    assert any("LOST" in failure.found for failure in report.failures)
