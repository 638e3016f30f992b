"""The log under power cuts and kills of every kind, with wraps and checkpoints; and a part left out is noticed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import log_workload
import pytest
from raxlog import crashtest

pytestmark = pytest.mark.storm

IMAGES = 1_000
WORK = {
    "append": (log_workload.append, log_workload.check),
    "consume": (log_workload.consume, log_workload.check_consumed),
    "relaxed": (log_workload.relax, log_workload.check_relaxed),
    "handed over": (log_workload.hand_over, log_workload.check),
    "shown": (log_workload.show, log_workload.check),
}


def cuts(images: int, seed: int, work: str = "append") -> crashtest.ModeResult:
    power_cut = crashtest.PowerCut(images=images, ignore=("*lock.mdb", "*log-state"))
    print(f"seed {seed}")
    return crashtest.explore(*WORK[work], modes=[power_cut], seed=seed).modes[0]


@pytest.mark.parametrize("work", WORK)
def test_no_power_cut_loses_what_was_acknowledged_nor_leaves_half_a_commit(
    require: Callable[[str], str], work: str
) -> None:
    """Of relaxed commits the last may go, but for those before a flush, and those that are left are the first."""
    require("cc")
    images = IMAGES if work in ("append", "consume") else IMAGES // 2
    result = cuts(images, 11, work)
    assert result.failed == 0, result.failures
    assert result.cases >= images * 9 // 10


@pytest.mark.parametrize("work", ["append", "consume"])
def test_no_system_call_is_a_bad_moment_to_be_killed(require: Callable[[str], str], work: str) -> None:
    require("cc")
    write, check = WORK[work]  # of fewer steps: what a run costs grows with the square of them
    kills = crashtest.KillAt.system_call("all")
    mode = crashtest.explore(partial(write, steps=24), check, modes=[kills], seed=13).modes[0]
    assert mode.failed == 0, mode.failures
    assert mode.cases > 60


@pytest.mark.parametrize(("planted", "work"), [
    ("no flush", "append"), ("a ring that is used too early", "append"), ("a joining without a flush", "shown"),
])
def test_a_log_with_a_part_left_out_is_caught(
    require: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, planted: str, work: str
) -> None:
    require("cc")
    monkeypatch.setenv("RAXLOG_TEST_LOG", planted)
    monkeypatch.setenv("RAXLOG_PURE", "1")
    assert cuts(400, 12, work).failed > 0
