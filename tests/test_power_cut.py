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

import crash_steps as steps
import pytest
from raxlog.crashtest import PowerCut, Report, explore

pytestmark = pytest.mark.storm

LONG = bool(os.environ.get("RAXLOG_LONG"))
SEED = int(os.environ.get("RAXLOG_SEED", "7"))
IGNORED = ("wake", "lock.mdb", "writer")  # nothing in them is believed after a start
SIZES = {"mixed": 22_500, "growing": 3_000, "relaxed": 2_100, "tidied": 2_500}  # what one run has


@pytest.fixture(autouse=True)
def _compiler(require: Callable[[str], str]) -> None:
    require("cc")


def cut(workload: Any, check: Any, images: int, keep: Path, seed: int = SEED) -> Report:
    report = explore(workload, check, modes=[PowerCut(images, ignore=IGNORED)], seed=seed, keep=keep)
    print(report)
    return report


def survived(workload: Any, check: Any, images: int, keep: Path) -> None:
    """So many different images; a run that has fewer is made again with another seed."""
    tried = 0
    seed = SEED
    while tried < images:
        wish = images - tried + images // 4  # hardly any run gives all that were wished for
        report = cut(workload, check, min(wish, 50_000), keep, seed)
        report.raise_on_failure(not_run_too=True)
        tried += report.modes[0].unique
        seed += 1
    print(f"{tried:,} images of {seed - SEED} runs")


def wanted(what: str) -> int:
    return SIZES[what] * (67 if LONG else 1)


def test_every_kind_of_operation_survives_a_power_cut_at_any_moment(tmp_path: Path) -> None:
    known = steps.golden(1200)
    survived(partial(steps.mixed, steps=1200), partial(steps.check_mixed, known=known), wanted("mixed"), tmp_path)


def test_a_file_that_grows_survives_a_power_cut_at_any_moment(tmp_path: Path) -> None:
    known = steps.golden(120, 12)
    survived(partial(steps.mixed, steps=120, wide=12, map_size=1 << 16),
             partial(steps.check_mixed, known=known), wanted("growing"), tmp_path)


def test_relaxed_durability_loses_the_last_commits_and_nothing_is_ever_there_by_half(tmp_path: Path) -> None:
    known = steps.golden(130)
    relaxed = partial(steps.mixed, steps=130, durability="relaxed")
    survived(relaxed, partial(steps.check_mixed, known=known, lossy=True), wanted("relaxed"), tmp_path)
    report = cut(relaxed, partial(steps.check_mixed, known=known), 1000, tmp_path)
    assert report.failed, "relaxed durability lost nothing: the images do not show what they are for"
    assert all("LOST" in failure.found for failure in report.failures)


def test_compaction_and_snapshots_survive_a_power_cut_at_any_moment(tmp_path: Path) -> None:
    survived(partial(steps.tidied, steps=44, every=5), partial(steps.check_tidied, known=steps.golden(44)),
             wanted("tidied"), tmp_path)


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
