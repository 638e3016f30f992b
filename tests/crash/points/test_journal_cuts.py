"""The journal under power cuts of every kind, and that leaving a part of it out is noticed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import journal_workload
import pytest
from raxlog import crashtest
from raxlog.storage.commit import journal

pytestmark = [
    pytest.mark.storm,
    pytest.mark.skipif(not journal.is_supported(), reason="commits flush twice on this system"),
]

IMAGES = 1_500


WORK = {
    "append": (journal_workload.append, journal_workload.check),
    "consume": (journal_workload.consume, journal_workload.check_consumed),
}


def cuts(images: int, seed: int, work: str = "append") -> crashtest.ModeResult:
    power_cut = crashtest.PowerCut(images=images, ignore=("*lock.mdb",))
    print(f"seed {seed}")
    return crashtest.explore(*WORK[work], modes=[power_cut], seed=seed).modes[0]


@pytest.mark.parametrize("work", WORK)
def test_no_power_cut_loses_a_commit_that_flushed_once(require: Callable[[str], str], work: str) -> None:
    require("cc")
    result = cuts(IMAGES, 11, work)
    assert result.failed == 0, result.failures
    assert result.cases >= IMAGES * 9 // 10


@pytest.mark.parametrize("work", WORK)
def test_no_system_call_is_a_bad_moment_to_be_killed(require: Callable[[str], str], work: str) -> None:
    require("cc")
    write, check = WORK[work]  # of fewer steps: what a run costs grows with the square of them
    kills = crashtest.KillAt.system_call("all")
    mode = crashtest.explore(partial(write, steps=20), check, modes=[kills], seed=13).modes[0]
    assert mode.failed == 0, mode.failures
    assert mode.cases > 100


@pytest.mark.parametrize("planted", ["no record", "one slot", "no checksum"])
def test_a_journal_with_a_part_left_out_is_caught(
    require: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    require("cc")
    monkeypatch.setenv("RAXLOG_TEST_JOURNAL", planted)
    assert cuts(800, seed=12).failed > 0
