"""The swap of a compaction under raxlog.crashtest: kills at its crash points, and what a power cut leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from compacted_workload import ROUNDS, append_and_compact, forget_to_flush_names, nothing_is_lost
from raxlog.crashtest import KillAt, PowerCut, Report, explore

pytestmark = pytest.mark.storm

IMAGES = 150
POINTS = 7  # of one compaction: copied, flushed, named, prepared, marked, switched, cleared


def explored(report: Report) -> Report:
    print(report)
    if any(mode.status == "not run" for mode in report.modes):
        pytest.skip("missing oracle: cc")
    return report


def test_a_kill_at_each_crash_point_of_a_compaction_loses_nothing(tmp_path: Path) -> None:
    report = explored(explore(append_and_compact, nothing_is_lost, modes=[KillAt.points("compact.*")], seed=1,
                              keep=tmp_path))
    report.raise_on_failure()
    assert report.modes[0].cases == POINTS * ROUNDS


def test_a_power_cut_around_a_compaction_loses_nothing(tmp_path: Path) -> None:
    explored(explore(append_and_compact, nothing_is_lost, modes=[PowerCut(images=IMAGES)], seed=1,
                     keep=tmp_path)).raise_on_failure()


def test_the_images_catch_a_compaction_that_forgets_to_flush_a_name(tmp_path: Path) -> None:
    report = explored(explore(forget_to_flush_names, nothing_is_lost, modes=[PowerCut(images=150)], seed=1,
                              keep=tmp_path))
    assert report.modes[0].failures
