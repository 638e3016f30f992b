"""Power cuts at the ring's wraps and beside its checkpoints: the ring is used again only once LMDB has what it held."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import crash_parts
import pytest
import ring_workload
from raxlog.crashtest import PowerCut, Report, explore

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", "7"))
IMAGES = 6_000 if os.environ.get("RAXLOG_LONG") else 1_000


@pytest.fixture(autouse=True)
def _compiler(require: Callable[[str], str]) -> None:
    require("cc")


def cut(durability: str, keep: Path, forgets: bool = False) -> Report:
    report = explore(partial(ring_workload.append, durability=durability, forgets=forgets),
                     partial(ring_workload.check, durable=durability == "commit"),
                     modes=[PowerCut(IMAGES, ignore=crash_parts.IGNORED)], seed=SEED, keep=keep)
    print(report)
    return report


@pytest.mark.parametrize("durability", ["commit", "relaxed"])
def test_a_ring_that_is_used_again_and_again_loses_nothing_in_a_power_cut(durability: str, tmp_path: Path) -> None:
    cut(durability, tmp_path).raise_on_failure()


def test_the_check_catches_a_ring_that_is_used_again_before_its_checkpoint(tmp_path: Path) -> None:
    report = cut("commit", tmp_path, forgets=True)  # after the run that nothing disturbs
    assert any("LOST" in failure.found for failure in report.failures)
