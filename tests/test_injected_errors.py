"""Injected errors: a full disk, a broken one, half a write; at each call in turn, once and for good.

After each the acknowledged steps are there, and the process is usable or got a clear error of
raxlog's. Each case must have fired, else the run proves nothing (crashtest/injected.py fails then).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import crash_steps as steps
import pytest
import raxlog
from raxlog.crashtest import Errors, KillAt, explore

pytestmark = pytest.mark.storm

LONG = bool(os.environ.get("RAXLOG_LONG"))
SEED = int(os.environ.get("RAXLOG_SEED", "7"))
STEPS = 60 if LONG else 16
MOST = None if LONG else 30
CLEAR = (raxlog.RaxlogError,)


@pytest.fixture(autouse=True)
def _compiler(require: Callable[[str], str]) -> None:
    require("cc")


MATRIX: list[Any] = [
    Errors("ENOSPC", calls=("write",), most=MOST, allowed=CLEAR),
    Errors("ENOSPC", calls=("write",), sticky=True, most=MOST, allowed=CLEAR),
    Errors("EIO", calls=("write",), most=MOST, allowed=CLEAR),
    Errors("EIO", calls=("write",), sticky=True, most=MOST, allowed=CLEAR),
    Errors("EIO", calls=("write",), late=True, most=MOST, allowed=CLEAR),
    Errors("EIO", calls=("sync",), most=MOST, allowed=CLEAR),
    Errors("EIO", calls=("sync",), sticky=True, most=MOST, allowed=CLEAR),
    Errors("EIO", calls=("sync",), late=True, most=MOST, allowed=CLEAR),
    Errors("ENOSPC", calls=("create", "size", "name", "rename"), most=MOST, allowed=CLEAR),
    Errors("EDQUOT", calls=("write", "create"), most=MOST, allowed=CLEAR),
    Errors("short", most=MOST, allowed=CLEAR),
    Errors("short", sticky=True, most=MOST, allowed=CLEAR),
]


@pytest.mark.parametrize("error", MATRIX, ids=lambda mode: mode.name)
def test_nothing_acknowledged_is_lost_to_an_error(error: Errors, tmp_path: Path) -> None:
    report = explore(partial(steps.minding, steps=STEPS), partial(steps.check_mixed, known=steps.golden(STEPS)),
                     modes=[error], seed=SEED, keep=tmp_path)
    print(report)
    assert report.passed
    (mode,) = report.modes
    assert mode.cases == sum(mode.reached.values()) > 0


def test_a_map_at_its_ceiling_is_told_and_loses_nothing_when_it_is_killed(tmp_path: Path) -> None:
    numbers: Any = "all" if LONG else range(200, 2000, 60)
    report = explore(steps.full_map, steps.check_full_map, seed=SEED, keep=tmp_path,
                     modes=[KillAt.system_call(numbers, halves=False)])
    print(report)
    assert report.passed
    assert report.modes[0].cases >= 20


def test_a_flush_that_fails_is_no_acknowledgement(tmp_path: Path) -> None:
    """The control: who says that a step is done although its call raised is caught."""
    report = explore(partial(careless, many=STEPS), partial(steps.check_mixed, known=steps.golden(STEPS)), seed=SEED,
                     modes=[Errors("ENOSPC", calls=("write",), sticky=True, most=20)], keep=tmp_path)
    assert report.failed


def careless(folder: Path, ack: Callable[[Any], None], *, many: int) -> None:
    with raxlog.open(folder / "s.rax") as store:
        for n in range(many):
            with contextlib.suppress(raxlog.RaxlogError):
                steps.step(store, "s", n)
            ack(n + 1)
