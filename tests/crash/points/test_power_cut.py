"""Power cuts: whatever reached the disk, no acknowledged write is lost, none is there by half.

One run is recorded write by write; thousands of images of what a disk may hold at each moment
are opened and compared with the model: 512-byte sectors whole or not at all, any of them, in
any order, names not before their folder is flushed. Writes cut inside a sector are tried too
and told apart. Dropping a flush, acknowledging early and splitting a transaction are caught.
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
from raxlog.crashtest import PowerCut, Report, explore

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", "7"))
SIZES = {"mixed": 22_400, "growing": 3_000, "relaxed": 2_100, "tidied": 2_500}  # 30,000 together


@pytest.fixture(autouse=True)
def _compiler(require: Callable[[str], str]) -> None:
    require("cc")


def cut(workload: Any, check: Any, images: int, keep: Path) -> Report:
    report = explore(workload, check, modes=[PowerCut(images, ignore=crash_parts.IGNORED)], seed=SEED, keep=keep)
    print(report)
    return report


@pytest.mark.parametrize("workload", ["mixed", "growing", "tidied"])
def test_every_kind_of_operation_growth_compaction_and_snapshots_survive_a_power_cut_at_any_moment(
    workload: str, tmp_path: Path
) -> None:
    outcome = crash_parts.images(workload, SIZES[workload], SEED, tmp_path)
    assert outcome.failed == 0
    assert outcome.tried >= SIZES[workload]


def test_relaxed_durability_loses_the_last_commits_and_nothing_is_ever_there_by_half(tmp_path: Path) -> None:
    outcome = crash_parts.images("relaxed", SIZES["relaxed"], SEED, tmp_path)
    assert outcome.failed == 0
    assert outcome.tried >= SIZES["relaxed"]
    relaxed = partial(steps.mixed, steps=130, durability="relaxed")
    report = cut(relaxed, partial(steps.check_mixed, known=steps.golden(130)), 1000, tmp_path)
    assert report.failed, "relaxed durability lost nothing: the images do not show what they are for"
    assert all("LOST" in failure.found for failure in report.failures)


# -- controls --------------------------------------------------------------------------------


def test_the_images_catch_a_commit_without_its_flush(tmp_path: Path) -> None:
    report = cut(steps.unflushed, partial(steps.check_mixed, known=steps.golden(30)), 1500, tmp_path)
    assert report.failed


def test_the_images_catch_a_split_transaction(tmp_path: Path) -> None:
    report = cut(steps.split_transaction, partial(steps.check_mixed, known=steps.golden(30)), 1500, tmp_path)
    assert any("HALF" in failure.found for failure in report.failures)


def test_the_images_catch_who_speaks_before_the_commit(tmp_path: Path) -> None:
    report = cut(partial(steps.mixed, steps=20, early=True), partial(steps.check_mixed, known=steps.golden(20)), 1500,
                 tmp_path)
    assert any("LOST" in failure.found for failure in report.failures)
