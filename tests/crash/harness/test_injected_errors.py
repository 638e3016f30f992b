"""Injected errors: a full disk, a broken one, half a write; at each call in turn, once and for good.

After each the acknowledged steps are there, and the process is usable or got a clear error of
raxlog's. Nearly all cases must have fired, else the run proves nothing: a checkpoint makes a call more or less.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import crash_parts
import crash_steps as steps
import pytest
import raxlog
from raxlog.crashtest import Errors, explore

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", "7"))
STEPS = 16
MATRIX = crash_parts.matrix(30)


@pytest.fixture(autouse=True)
def _compiler(require: Callable[[str], str]) -> None:
    require("cc")


@pytest.mark.parametrize("kind", MATRIX)
def test_nothing_acknowledged_is_lost_to_an_error(kind: str, tmp_path: Path) -> None:
    outcome = crash_parts.errors(MATRIX[kind], STEPS, SEED, tmp_path)
    assert outcome.failed == 0
    assert outcome.tried > 0


def test_a_map_at_its_ceiling_is_told_and_loses_nothing_when_it_is_killed(tmp_path: Path) -> None:
    assert crash_parts.full_map(SEED, tmp_path, which=range(100, 800, 25)).failed == 0


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
