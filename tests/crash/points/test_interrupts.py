"""Exceptions inside a living process, at any moment: nothing is lost, by half, there twice, or left locked.

Traced at bytecodes of the plain kernels, by signals on both builds, asynchronously in threads that share
their commits. After each exception the process goes on; in the end every stream is what it would have been.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import crash_parts
import interrupt_victims as victims
import pytest
from raxlog.crashtest import Interrupts, Report, explore
from raxlog.storage.commit import commits as commits_module
from raxlog.storage.commit.commits import Commits

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
TIMES = 3
Ack = Callable[[Any], None]


CASES = [
    *[("alone", "traced", 200)] * 3, ("alone, commits", "traced", 200), *[("alone", "signals", 100)] * 3,
    ("alone, plain", "signals", 100), ("crowd", "traced", 150), ("crowd, commits", "traced", 200),
    ("crowd", "signals", 100), ("crowd, struck", "signals", 50),
    ("buffered", "traced", 200), ("buffered", "signals", 100),
    ("opened", "traced", 120), ("opened", "signals", 60), ("opened, plain", "signals", 60),
    ("alone, compacting", "traced", 60), ("alone, compacting", "signals", 60),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{number}: {', '.join(CASES[number][:2])}")
def test_no_moment_is_a_bad_one_for_an_exception(number: int, tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    workload, how, most = CASES[number]
    outcome = crash_parts.interrupts(workload, how, most, SEED + number, tmp_path)
    assert outcome.failed == 0
    assert outcome.tried > most // 4  # others came after the end of their run


# -- controls --------------------------------------------------------------------------------


def count(folder: Path, ack: Ack, *, kind: type[victims.Counter]) -> None:
    """Adds one, again and again; after an exception it looks how far it is."""
    counter = kind(folder / "count.txt")
    done = 0
    ack(done)
    while done < TIMES:
        try:
            counter.add()
            done += 1
        except (TimeoutError, KeyboardInterrupt):
            done = int(counter.path.read_text()) if counter.path.exists() else 0
        ack(done)


def check_count(folder: Path, acks: list[int]) -> None:
    kept = (folder / "count.txt").read_text()
    assert kept == str(TIMES), f"TWICE: {kept} instead of {TIMES}"
    assert acks == sorted(acks), f"LOST: {acks}"


def counted(kind: type[victims.Counter], **options: Any) -> Report:
    mode = Interrupts(most=None, raises=(TimeoutError, KeyboardInterrupt), inside=("interrupt_victims",), **options)
    return explore(partial(count, kind=kind), check_count, modes=[mode], seed=SEED, timeout=10)


def test_a_users_own_code_is_raised_at_before_each_bytecode_and_its_lock_is_never_left_held() -> None:
    report = counted(victims.Counter)
    report.raise_on_failure()
    (mode,) = report.modes
    assert mode.cases == mode.planned > 100
    assert set(mode.reached) == {"Counter.add"}


@pytest.mark.parametrize(("kind", "found"), [
    (victims.TrustsMemory, "TWICE"), (victims.LeavesItsLock, "STUCK"), (victims.WritesInPlace, "ValueError"),
])
def test_the_interrupts_catch_a_bug_and_say_how_to_repeat_it(kind: type[victims.Counter], found: str) -> None:
    report = counted(kind)
    assert any(found in failure.found for failure in report.failures), report
    failure = next(failure for failure in report.failures if found in failure.found)
    assert "interrupt_victims.py:" in failure.where
    at = eval(failure.where.rpartition("again: ")[2], {"Interrupts": Interrupts}).at  # as a user would paste it
    again = counted(kind, at=at)
    assert found in again.failures[0].found
    assert again.modes[0].cases == 1


# -- two faults that there once were -----------------------------------------------------------


def trust_changes() -> None:
    """A call that raises is believed to have touched nothing as long as it has put nothing."""

    def is_spoiled(_: Commits, txn: Any, call: Any) -> bool:
        changes, put, dirty = txn.changes, len(txn.touched), dict(txn.dirty)
        try:
            call.result = call.operation(txn)
            call.error = None
        except Exception as error:
            call.error = error
            if len(txn.touched) != put:
                return True
            txn.changes, txn.dirty = changes, dirty
        return False

    Commits.is_spoiled = is_spoiled  # type: ignore[method-assign]


def forget_the_commit() -> None:
    """After an exception the disk is not asked: what it interrupted is applied again, call by call."""
    settle = commits_module.settle

    def forget(commits: Commits, error: BaseException | None = None) -> bool:
        commits.committing = None
        return settle(commits, error)

    commits_module.settle = forget


@pytest.mark.parametrize(("workload", "spoil", "inside"), [
    ("alone, plain", trust_changes, ("raxlog.stream",)), ("crowd, plain", forget_the_commit, crash_parts.COMMITS),
])  # fmt: skip
def test_the_interrupts_catch_a_call_kept_by_half_and_a_batch_applied_twice(
    workload: str, spoil: Callable[[], None], inside: tuple[str, ...], tmp_path: Path
) -> None:
    tries = (crash_parts.interrupts(workload, "traced", 60, SEED + n, tmp_path, spoil=spoil, inside=inside,
                                    raises=(TimeoutError, RuntimeError)) for n in range(8))
    assert any(outcome.failed for outcome in tries if outcome.tried)  # with none tried the bug could not be planted
