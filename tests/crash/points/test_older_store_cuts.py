"""A store of an earlier raxlog gets its log when it is opened for writing: at no step of that is anything lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import older_store_workload
import pytest
from raxlog import crashtest

pytestmark = pytest.mark.storm

IMAGES = 250
NAMES = ("before-the-log", "cut-before-the-log")


def cases(name: str, mode: crashtest.KillAt | crashtest.PowerCut, tmp_path: Path) -> crashtest.ModeResult:
    print("seed 21")
    work = partial(older_store_workload.opened, name=name), partial(older_store_workload.check, name=name)
    return crashtest.explore(*work, modes=[mode], seed=21, keep=tmp_path).modes[0]


@pytest.mark.parametrize("name", NAMES)
def test_no_power_cut_takes_anything_from_a_store_that_gets_a_log(
    require: Callable[[str], str], name: str, tmp_path: Path
) -> None:
    require("cc")
    result = cases(name, crashtest.PowerCut(images=IMAGES, ignore=("*lock.mdb",)), tmp_path)
    assert result.failed == 0, result.failures
    assert result.cases >= IMAGES // 2


@pytest.mark.parametrize("name", NAMES)
def test_no_system_call_is_a_bad_moment_to_be_killed_while_a_store_gets_a_log(
    require: Callable[[str], str], name: str, tmp_path: Path
) -> None:
    require("cc")
    result = cases(name, crashtest.KillAt.system_call("all", halves=False), tmp_path)
    assert result.failed == 0, result.failures
    assert result.cases > 30
