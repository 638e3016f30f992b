"""durability="buffered": after a kill, a power cut or an error of the disk the first so many calls are there.

And so is all that a flush() was behind. Each part has a control: a buffer or a program with a bug, which is caught.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import buffered_workloads as workloads
import pytest
import raxlog
from children import Child
from raxlog.crashtest import Errors, KillAt, ModeResult, PowerCut, explore

LONG = bool(os.environ.get("RAXLOG_LONG"))
SEED = int(os.environ.get("RAXLOG_SEED", "7"))
CLEAR = (raxlog.RaxlogError,)
Say = Callable[[Any], None]


# -- kills and power cuts --------------------------------------------------------------------


def _storm(path: Path, rounds: int, bug: str = "") -> tuple[int, str]:
    """Kill a writer again and again on one store: how many calls were done, what was wrong."""
    chance = random.Random(SEED)
    done = 0
    for number in range(rounds):

        def work(say: Say, start: int = done) -> None:
            with workloads.planted(bug), raxlog.open(path, durability="buffered", buffer_window=0.002,
                                                     encoding=None) as store:
                say(start)
                workloads.pour(store, say, start, start + 100_000, every=23)

        with Child(work) as child:
            said = [child.heard()]
            time.sleep(chance.random() * 0.03)
            child.kill()
            said += child.all_heard()
        with raxlog.open(path, encoding=None) as store:
            try:
                there = workloads.whole_calls(store)
                assert there >= said[-1], f"LOST: {there} calls are there, {said[-1]} were flushed"
            except AssertionError as error:
                return done, f"round {number}: {error}"
        done = there
    return done, ""


@pytest.mark.storm
def test_after_a_kill_the_first_so_many_calls_are_there_and_all_that_was_flushed(path: Path) -> None:
    rounds = 3000 if LONG else 50
    done, wrong = _storm(path, rounds)
    print(f"{rounds} kills, {done} calls")
    assert wrong == ""
    assert done > rounds
    assert raxlog.check(path).ok


@pytest.mark.storm
@pytest.mark.parametrize(("bug", "word"), [("reordered", "GAP"), ("early", "LOST")])
def test_the_kills_catch_a_buffer_that_reorders_and_a_flush_that_speaks_early(path: Path, bug: str, word: str) -> None:
    assert word in _storm(path, 300, bug)[1]


def explored(workload: Any, mode: Any, keep: Path, check: Any = workloads.check_poured) -> ModeResult:
    report = explore(workload, check, modes=[mode], seed=SEED, keep=keep)
    print(report)
    return report.modes[0]


@pytest.mark.storm
def test_no_system_call_is_a_bad_moment_to_be_killed(tmp_path: Path, require: Callable[[str], str]) -> None:
    require("cc")
    numbers: Any = "all" if LONG else range(1, 200, 5)
    mode = explored(workloads.poured, KillAt.system_call(numbers, halves=LONG), tmp_path)
    assert mode.status == "passed"
    assert mode.cases >= 10


@pytest.mark.storm
def test_a_power_cut_leaves_the_first_so_many_calls_and_all_that_was_flushed(
    tmp_path: Path, require: Callable[[str], str]
) -> None:
    require("cc")
    images = 40_000 if LONG else 500
    cut = PowerCut(images, ignore=("shared", "lock.mdb"))
    mode = explored(partial(workloads.poured, calls=2000 if LONG else 80), cut, tmp_path)
    assert mode.status == "passed"
    early = explored(partial(workloads.poured, bug="early"), PowerCut(60, ignore=cut.ignore), tmp_path)
    assert any("LOST" in failure.found for failure in early.failures)
    mixed_up = explored(partial(workloads.poured, bug="reordered"), PowerCut(60, ignore=cut.ignore), tmp_path)
    assert any(word in failure.found for failure in mixed_up.failures for word in ("GAP", "HALF", "ORDER"))


MOST = None if LONG else 8


@pytest.mark.storm
@pytest.mark.parametrize("error", [
    Errors("ENOSPC", calls=("write",), most=MOST, allowed=CLEAR),
    Errors("ENOSPC", calls=("write",), sticky=True, most=MOST, allowed=CLEAR),
    Errors("EIO", calls=("sync",), most=MOST, allowed=CLEAR),
    Errors("EIO", calls=("write",), sticky=True, most=MOST, allowed=CLEAR),
    Errors("short", most=MOST, allowed=CLEAR),
], ids=lambda mode: mode.name)  # fmt: skip
def test_nothing_that_was_flushed_is_lost_to_an_error(
    error: Errors, tmp_path: Path, require: Callable[[str], str]
) -> None:
    require("cc")
    mode = explored(workloads.minding, error, tmp_path)
    assert mode.status == "passed"
    assert sum(mode.reached.values()) > 0


@pytest.mark.storm
def test_who_takes_a_loss_for_a_yes_is_caught(tmp_path: Path, require: Callable[[str], str]) -> None:
    require("cc")
    error = Errors("ENOSPC", calls=("write",), sticky=True, most=10)
    assert explored(workloads.careless, error, tmp_path).failures
