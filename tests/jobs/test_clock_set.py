"""Leases and waits over a clock that is set, a machine that is suspended, or started again.

The machine is a library in front of libc, in processes of their own; delivery times are real, a lease is two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import raxlog
from fake_machine import Asked, FakeMachine

HOUR = 3600
YEARS = 10 * 365 * 24 * HOUR
LEASE = 2
IDLE = f"[str(one.id) for one in group.read('other', claim_idle={LEASE})]"
WAITS = f"later(lambda: [str(one.id) for one in group.read('other', claim_idle={LEASE}, timeout=20)])"
CLAIMS = {
    "read": IDLE,
    "claim": f"[str(one.id) for one in group.claim('other', *[p.id for p in group.pending_entries(consumer='killed')],"
             f" min_idle={LEASE})]",
    "autoclaim": f"[str(one.id) for one in group.autoclaim('other', {LEASE}).entries]",
}


@pytest.fixture
def machine(tmp_path: Path, require: Callable[[str], str]) -> FakeMachine:
    return FakeMachine(tmp_path, require("cc"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    where = tmp_path / "s.rax"
    with raxlog.open(where) as store:
        store.stream("queue").create_group("workers", create_stream=True)
    return where


@pytest.fixture
def process(machine: FakeMachine, path: Path) -> Iterator[Callable[..., Asked]]:
    """Processes on the machine, until the test ends."""
    with ExitStack() as stack:
        yield lambda place=path, **options: stack.enter_context(machine.process(place, **options))


def take(process: Asked, consumer: str = "killed") -> str:
    """Append an entry, and have it delivered."""
    sid = process.ask("str(queue.append({'n': 1}))")
    assert process.ask(f"[str(one.id) for one in group.read({consumer!r})]") == [sid]
    return sid


def taken_over(process: Asked, claims: str = IDLE) -> list[str]:
    """What a consumer claims, once there is something: within a lease and a half."""
    deadline = time.monotonic() + 1.5 * LEASE
    while not (found := process.ask(claims)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return list(found)


# -- a step ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
@pytest.mark.parametrize("claims", CLAIMS.values(), ids=CLAIMS)
def test_after_a_step_an_entry_is_taken_over_once_a_whole_lease_has_passed(
        claims: str, ahead: int, machine: FakeMachine, path: Path, process: Callable[..., Asked]) -> None:
    one, other, late = process(), process(), process(None)
    sid = take(one)
    time.sleep(LEASE)
    one.kill()
    began = time.monotonic()
    machine.set_clock(ahead)
    late.ask(f"begin({str(path)!r}, False)")
    assert late.ask(claims) == [], "one that comes behind the step judges by the same words"
    assert taken_over(other, claims) == [sid]
    assert time.monotonic() - began >= LEASE


@pytest.mark.parametrize("ahead", [1, -1, 0])
def test_a_second_more_or_less_is_no_step(ahead: int, machine: FakeMachine, process: Callable[..., Asked]) -> None:
    one, other = process(), process()
    sid = take(one)
    time.sleep(LEASE + 1.1)
    machine.set_clock(ahead)
    assert other.ask(IDLE) == [sid]


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, YEARS])
def test_no_entry_of_a_living_worker_is_run_twice(ahead: int, machine: FakeMachine,
                                                  process: Callable[..., Asked]) -> None:
    run = ("group.worker(lambda entry: (time.sleep(5), counted.append(entry.deliveries)), lease=2)"
           ".run(signals=False, until=lambda: time.monotonic() > end)")
    workers = [process(), process()]
    for worker in workers:
        worker.ask("globals().update(counted=[], end=time.monotonic() + 7)")
    workers[0].ask("str(queue.append({'n': 1}))")
    for worker in workers:
        assert worker.ask(f"later(lambda: ({run}, counted)[1])") is None
        time.sleep(0.5)
    machine.set_clock(ahead)
    workers[0].ask("str(queue.append({'n': 2}))")  # for which the second looks
    assert [found for worker in workers for found in worker.heard()[0]] == [1, 1]


def test_the_entry_of_one_that_was_killed_while_the_clock_was_ahead_is_run_a_lease_later(
        machine: FakeMachine, process: Callable[..., Asked]) -> None:
    one, other = process(), process()
    machine.set_clock(YEARS)
    sid = take(one)
    one.kill()
    machine.set_clock(0)
    began = time.monotonic()
    assert other.begin(WAITS) is None
    assert other.heard() is None
    found, ended = other.heard()
    assert found == [sid]
    assert LEASE <= ended - began < LEASE + 2


@pytest.mark.parametrize("how", ["read", "renew"])
def test_so_is_one_among_others_that_are_always_young(how: str, machine: FakeMachine,
                                                      process: Callable[..., Asked]) -> None:
    one, other = process(), process()
    young = take(other, "living")
    machine.set_clock(YEARS)
    sid = take(one)
    one.kill()
    machine.set_clock(0)
    deadline = time.monotonic() + LEASE + 3
    claimed: list[str] = []
    while sid not in claimed:
        assert time.monotonic() < deadline
        time.sleep(LEASE / 4)
        if how == "renew":
            other.ask(f"group.renew('living', {young!r})")
        else:
            next_one = take(other, "living")
            other.ask(f"group.ack({young!r})")
            young = next_one
        claimed += other.ask(IDLE)
    assert young not in claimed


def test_a_delivery_time_in_the_future_is_stored_as_now_by_the_first_scan(
        machine: FakeMachine, process: Callable[..., Asked]) -> None:
    one = process()
    machine.set_clock(YEARS)
    sid = take(one)
    machine.set_clock(0)
    assert one.ask(f"group.claim('other', {sid!r}, min_idle=1)") == []
    time.sleep(0.3)
    shown = one.ask("[(one.consumer, one.idle) for one in group.pending_entries()]")
    assert shown[0][0] == b"killed"
    assert 0.3 <= shown[0][1] < 5


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_compaction_takes_the_step_along(is_seen: bool, machine: FakeMachine, process: Callable[..., Asked]) -> None:
    one, other = process(), process()
    sid = take(one)
    other.ask("queue.delete(*queue.extend([{'n': b'x' * 9999}] * 300))")
    time.sleep(LEASE)
    began = time.monotonic()
    machine.set_clock(HOUR)
    if is_seen:
        assert other.ask(IDLE) == []
    assert other.ask("store.compact().generation") == 2
    assert taken_over(one) == [sid]
    assert time.monotonic() - began >= LEASE


# -- waits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", ["set", "suspended"])
@pytest.mark.parametrize("until", ["retry", "pause", "deferred"])
def test_a_wait_for_a_moment_ends_within_a_second_of_it(until: str, moved: str, machine: FakeMachine,
                                                        process: Callable[..., Asked]) -> None:
    one = process()
    if until == "retry":
        sid = take(one)
        one.ask(f"group.nack({sid!r}, delay=3600)")
    elif until == "pause":
        one.ask("queue.append({'n': 1}) and group.pause(datetime.now(UTC) + timedelta(hours=1))")
    else:
        one.ask("queue.defer({'n': 1}, delay=3600).token")
    assert one.ask(WAITS) is None
    time.sleep(0.5)
    began = time.monotonic()
    if moved == "set":
        machine.set_clock(2 * HOUR)
    else:
        machine.suspend(2 * HOUR)
    found, ended = one.heard()
    assert len(found) == 1
    assert ended - began < 3


# -- no step ---------------------------------------------------------------------------------


def test_a_suspend_is_no_step(machine: FakeMachine, process: Callable[..., Asked]) -> None:
    one, other = process(), process()
    sid = take(one)
    machine.suspend(HOUR)
    assert other.ask(IDLE) == [sid]


@pytest.mark.parametrize("ahead", [HOUR, 0])
def test_another_start_of_the_machine_is_no_step(ahead: int, machine: FakeMachine,
                                                 process: Callable[..., Asked]) -> None:
    one = process()
    sid = take(one)
    one.kill()
    machine.start_again(-1000)
    machine.set_clock(ahead)
    time.sleep(LEASE)
    assert process().ask(IDLE) == [sid]


def test_who_only_reads_judges_nothing_and_leaves_the_words_alone(machine: FakeMachine,
                                                                  process: Callable[..., Asked]) -> None:
    reader = process(readonly=True)
    one = process()
    sid = take(one)
    time.sleep(LEASE)
    machine.set_clock(HOUR)
    assert reader.ask("len(group.pending_entries())") == 1
    began = time.monotonic()
    assert taken_over(one) == [sid]
    assert time.monotonic() - began >= LEASE - 0.1


def test_of_two_containers_with_clocks_of_their_own_the_second_neither_judges_nor_disturbs(
        machine: FakeMachine, path: Path) -> None:
    for namespaces in ((100, 7000), (9000, 40)):  # begun anew, they have others
        with machine.process(path, namespace=namespaces[0]) as first, \
                machine.process(path, namespace=namespaces[1]) as second:
            sid = take(first)
            time.sleep(LEASE)
            assert second.ask(IDLE) == [sid], "it sees no step where there is none"
            first.ask(f"group.ack({sid!r})")
            sid = take(first)
            time.sleep(LEASE)
            assert first.ask(IDLE) == [sid], "nor has it written one"
            began = time.monotonic()
            machine.set_clock(HOUR + namespaces[0])
            assert second.ask(IDLE) == [sid], "what is left: see promises.md"
            assert taken_over(first) == [sid]
            assert time.monotonic() - began >= LEASE
            first.ask(f"group.ack({sid!r})")
