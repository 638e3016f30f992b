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

import crash_steps as steps
import pytest
from raxlog.crashtest import Storm, explore

pytestmark = pytest.mark.storm

LONG = bool(os.environ.get("RAXLOG_LONG"))
SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
ROUNDS = 50_000 if LONG else 1_000
KNOWN = 700  # steps; whoever comes so far ends, so the lives of a store are few enough


def test_nothing_is_lost_nothing_is_by_half_and_nobody_is_stuck_in_a_storm_of_kills(tmp_path: Path) -> None:
    known = steps.golden(KNOWN)
    report = explore(
        partial(steps.several_writers, known=known), partial(steps.check_several, known=known),
        modes=[Storm(ROUNDS, longest=0.02, lives=12)], seed=SEED, keep=tmp_path,
    )
    print(f"RAXLOG_SEED={SEED}\n{report}")
    report.raise_on_failure()
    (mode,) = report.modes
    assert mode.cases == ROUNDS
    assert mode.reached["killed"] > 0.8 * ROUNDS
    assert mode.reached["stopped"] > 0.03 * ROUNDS


def test_the_storm_catches_who_speaks_before_the_commit(tmp_path: Path) -> None:
    known = steps.golden(KNOWN)
    report = explore(
        partial(steps.several_writers, known=known, early=True), partial(steps.check_several, known=known),
        modes=[Storm(200, longest=0.02, lives=1)], seed=SEED, keep=tmp_path,
    )
    print(f"RAXLOG_SEED={SEED}\n{report}")
    assert any("LOST" in failure.found for failure in report.failures)
