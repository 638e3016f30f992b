"""The N-th system call, for every N: a writer is killed before each call that changes a file, and in each.

The workload does every kind of operation, makes a snapshot and compacts the store; its creation
is a part of it. Nothing acknowledged may be lost, nothing be there by half, and the store must
take a write afterwards. A split transaction is caught, also at the points raxlog names itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import crash_parts
import crash_steps as steps
import pytest
from raxlog.crashtest import KillAt, ModeResult, explore

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", "7"))
STEPS = 26


@pytest.fixture(autouse=True)
def _compiler(require: Callable[[str], str]) -> None:
    require("cc")


def killed(workload: Any, check: Any, mode: Any, keep: Path, **options: Any) -> ModeResult:
    report = explore(workload, check, modes=[mode], seed=SEED, keep=keep, **options)
    print(report)
    return report.modes[0]


def test_no_system_call_is_a_bad_moment_to_be_killed(tmp_path: Path) -> None:
    outcome = crash_parts.calls("mixed", STEPS, SEED, tmp_path)
    assert outcome.failed == 0
    assert outcome.tried > 5 * STEPS


def test_no_system_call_of_a_compaction_is_a_bad_moment_to_be_killed(tmp_path: Path) -> None:
    outcome = crash_parts.calls("compaction", 12, SEED, tmp_path, halves=False)
    assert outcome.failed == 0
    assert outcome.also["rename"] >= 3


def test_no_system_call_of_a_snapshot_is_a_bad_moment_to_be_killed(tmp_path: Path) -> None:
    """A snapshot is made by a process of its own, so it takes a start of Python for each call."""
    outcome = crash_parts.calls("snapshot", 3, SEED, tmp_path, which=range(30, 96, 6), halves=False)
    assert outcome.failed == 0
    assert outcome.tried >= 10


def test_killing_at_every_call_catches_a_split_transaction(tmp_path: Path) -> None:
    mode = killed(partial(steps.split_transaction, steps=12), partial(steps.check_mixed, known=steps.golden(12)),
                  KillAt.system_call("all", halves=False), tmp_path)
    assert any("HALF" in failure.found for failure in mode.failures)


def test_killing_at_every_call_catches_who_speaks_before_the_commit(tmp_path: Path) -> None:
    mode = killed(partial(steps.mixed, steps=6, early=True), partial(steps.check_mixed, known=steps.golden(6)),
                  KillAt.system_call("all", halves=False), tmp_path)
    assert any("LOST" in failure.found for failure in mode.failures)


def test_raxlogs_own_crash_points_are_no_bad_moments_either(tmp_path: Path) -> None:
    mode = killed(partial(steps.tidied, steps=10, every=5, snapshots=False),
                  partial(steps.check_tidied, known=steps.golden(10)),
                  KillAt.points("commit.*", "create.*", "compact.*"), tmp_path)
    assert mode.status == "passed"
    wanted = {"commit.before", "commit.after", "create.renamed", "compact.marked", "compact.switched"}
    assert wanted <= set(mode.reached)


def test_a_forgotten_index_row_is_found_after_the_kill_and_a_whole_index_is_not(tmp_path: Path) -> None:
    """The control of the check: it runs after each kill here, so an index must be whole at every commit."""
    points = KillAt.points("commit.after", most_hits=3)
    right = killed(partial(steps.mixed, steps=9), steps.check_invariants, points, tmp_path)
    wrong = killed(partial(steps.forgetful, steps=9), steps.check_invariants, points, tmp_path)
    assert right.status == "passed"
    assert any("INVARIANT" in failure.found for failure in wrong.failures)
