"""The writer's lock among processes: those that wait sleep, are served in order, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
import raxlog
from children import Child, wait_until_stopped
from commit_cases import in_threads, listening
from crowd import Notes
from raxlog.storage import disk, kernels
from raxlog.storage.locks import ofd_lock, writer_lock
from raxlog.storage.locks.writer_lock import WriterLock

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
Say = Callable[[Any], None]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="two locks of one process do not exclude each other")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.write_bytes(bytes(4096))
    return path


def in_line(file: Path) -> list[int]:
    """The processes that stand in line, the first of them first."""
    found, start = [], 1 << 33
    opened = disk.open_file(file)
    with contextlib.closing(opened):
        while (one := ofd_lock.find(opened, start, 0)) is not None:
            found.append(one)
            start = one[1] + 1
    return [last - first for first, last in found]


def until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextlib.contextmanager
def waiting(file: Path, many: int, served: Notes) -> Iterator[list[Child]]:
    """So many processes that came for the lock one after the other. ``served``: how many had it, then each's turn."""

    def work(say: Say, i: int) -> None:
        lock = WriterLock(file)
        lock.acquire(20)
        served[0] += 1
        served[i + 1] = served[0]
        lock.release()

    with contextlib.ExitStack() as stack:
        children = []
        for i in range(many):
            children.append(stack.enter_context(Child(lambda say, i=i: work(say, i))))  # type: ignore[misc]
            until(lambda: in_line(file) == [child.pid for child in children])
        yield children


@pytest.mark.parametrize("futex", [True, False])
def test_processes_are_served_in_the_order_in_which_they_came(
    file: Path, futex: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not futex:
        monkeypatch.setattr(writer_lock, "_CALL", None)  # as on a system that has none
    lock, served = WriterLock(file), Notes(7)
    lock.acquire(0)
    with waiting(file, 6, served) as children:
        assert lock.is_awaited()
        assert lock.holder_pid() == children[0].pid
        lock.release()
        for child in children:
            child.finish()
    assert [served[i + 1] for i in range(6)] == [1, 2, 3, 4, 5, 6]
    assert not lock.is_awaited()
    lock.acquire(0)


def test_a_writer_that_comes_back_stands_behind_the_ones_that_wait(file: Path) -> None:
    lock, served = WriterLock(file), Notes(4)
    lock.acquire(0)
    with waiting(file, 3, served) as children:
        lock.release()
        lock.acquire(10)
        assert served[0] == 3
        for child in children:
            child.finish()
    lock.release()


def test_those_that_are_killed_in_line_hold_up_no_other(file: Path) -> None:
    lock, served = WriterLock(file), Notes(7)
    lock.acquire(0)
    with waiting(file, 6, served) as children:
        for i in (0, 2, 3):
            children[i].kill()
        lock.release()
        for i in (1, 4, 5):
            children[i].finish()
    assert [served[i + 1] for i in range(6)] == [0, 1, 0, 0, 2, 3]


def test_the_first_in_line_has_the_lock_of_a_holder_that_was_killed(file: Path) -> None:
    def hold(say: Say) -> None:
        lock = WriterLock(file)
        lock.acquire(0)
        say("holds")
        time.sleep(60)

    served = Notes(4)
    with Child(hold) as holder:
        assert holder.heard() == "holds"
        with waiting(file, 3, served) as children:
            holder.kill()
            for child in children:
                child.finish()
    assert [served[i + 1] for i in range(3)] == [1, 2, 3]


def test_one_that_was_stopped_in_line_is_passed_and_served_once_it_goes_on(file: Path) -> None:
    lock, served = WriterLock(file), Notes(5)
    lock.acquire(0)
    with waiting(file, 4, served) as children:
        children[0].send(signal.SIGSTOP)
        wait_until_stopped(children[0].pid)
        lock.release()
        for child in children[1:]:
            child.finish()
        lock.acquire(10)
        lock.release()
        assert served[1] == 0
        children[0].send(signal.SIGCONT)
        children[0].finish()
    assert served[1] == 4


def test_a_stopped_holder_costs_all_a_timeout_with_its_name_and_then_none_is_left_in_line(file: Path) -> None:
    def hold(say: Say) -> None:
        lock = WriterLock(file)
        lock.acquire(0)
        say("holds")
        os.kill(os.getpid(), signal.SIGSTOP)
        lock.release()

    def wait(say: Say) -> None:
        try:
            WriterLock(file).acquire(0.2)
        except raxlog.LockTimeout as error:
            say(str(error))

    with Child(hold) as holder, contextlib.ExitStack() as stack:
        assert holder.heard() == "holds"
        wait_until_stopped(holder.pid)
        for child in [stack.enter_context(Child(wait)) for _ in range(3)]:
            assert f"process {holder.pid} " in child.finish()[0]
        assert in_line(file) == []
        holder.send(signal.SIGCONT)
        holder.finish()
        WriterLock(file).acquire(0)


def test_ctrl_c_ends_a_wait_at_once_and_leaves_no_place_in_line(path: Path) -> None:
    def wait(say: Say) -> None:
        with raxlog.open(path) as store:
            try:
                store.stream("s").append({"n": 1})
            except KeyboardInterrupt:
                say("interrupted")
                time.sleep(60)

    with raxlog.open(path) as store, store.transaction() as tx:
        tx.stream("s").append({"n": 0})
        with Child(wait) as child:
            until(lambda: in_line(path / "shared") == [child.pid])
            time.sleep(0.2)
            began = time.monotonic()
            child.send(signal.SIGINT)
            assert child.heard() == "interrupted"
            print(f"{(time.monotonic() - began) * 1000:.1f} ms from Ctrl-C to KeyboardInterrupt")
            assert time.monotonic() - began < 10  # not lock_timeout
            until(lambda: in_line(path / "shared") == [])


def test_a_wait_whose_file_a_signals_handler_closes_ends_and_locks_no_other_file(file: Path, tmp_path: Path) -> None:
    """A handler that forks closes it in the child: the descriptor's number may be another file's by then."""
    opened = []

    def close_and_open(number: int, frame: FrameType | None) -> None:
        lock.close()
        opened.extend(disk.open_file(one, os.O_RDWR) for one in others)

    others = [tmp_path / f"other {n}" for n in range(5)]
    for one in others:
        one.write_bytes(bytes(10))
    lock, other = WriterLock(file), WriterLock(file)
    other.acquire(0)
    before = signal.signal(signal.SIGALRM, close_and_open)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        with pytest.raises(raxlog.StoreError, match="was closed during a wait"):
            lock.acquire(10)
        assert time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [in_line(one) for one in (file, *others)] == [[]] * 6
    other.release()
    other.acquire(0)
    for each in (other, *opened):
        each.close()


def test_a_process_that_forks_while_a_thread_waits_writes_on_and_so_does_the_child(path: Path) -> None:
    def hold(say: Say) -> None:
        with raxlog.open(path) as store, store.transaction() as tx:
            tx.stream("s").append({"by": "holder"})
            say("holds")
            signal.sigwait({signal.SIGUSR1})

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with Child(hold) as holder, raxlog.open(path) as store:
            assert holder.heard() == "holds"
            thread = threading.Thread(target=lambda: store.stream("s").append({"by": "thread"}))
            thread.start()
            # The holder may have had to wait for the opening here: it keeps its place in line while it holds the lock.
            until(lambda: in_line(path / "shared")[-1:] == [os.getpid()])
            with Child(lambda say: say(len(store.stream("s").append({"by": "child"})))) as child:
                until(lambda: in_line(path / "shared")[-2:] == [os.getpid(), child.pid])
                holder.send(signal.SIGUSR1)
                holder.finish()
                child.finish()
            thread.join(10)
            assert [entry.fields["by"] for entry in store.stream("s").range()] == ["holder", "thread", "child"]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


# What is compiled cannot be replaced or struck: .ci/run runs these on the plain sources.
plain = pytest.mark.skipif(kernels.speed() == "compiled", reason="of the plain sources")


@plain
def test_eight_equal_writers_wait_for_twenty_commits_of_the_others_at_most(path: Path) -> None:
    raxlog.open(path).close()
    waits = compete(path, 8, 2.0, 0)
    print(f"longest wait of each, in commits of the others: {waits}")
    assert max(waits) <= 20


@plain
def test_writers_beside_others_that_are_killed_all_the_time_wait_no_longer(path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    raxlog.open(path).close()
    waits = compete(path, 5, 3.0, 2)
    print(f"longest wait of each, in commits of the others: {waits}")
    assert max(waits) <= 20


def compete(path: Path, many: int, seconds: float, victims: int) -> list[int]:
    """The longest wait of each writer; beside them others that are killed, and begin again.

    A wait begins in the line: a busy machine may keep a process from running before it stands there.
    """
    commits, longest = Notes(many + victims), Notes(many)
    chance = random.Random(SEED)

    def write(say: Say, i: int, seconds: float) -> None:
        with raxlog.open(path, lock_timeout=5) as store:
            stream = store.stream("s")
            end = time.monotonic() + seconds
            before = 0

            def others() -> int:
                return sum(commits[k] for k in range(many + victims) if k != i)

            def stand_in_line(lock: WriterLock) -> int:
                nonlocal before
                place = stand(lock)
                before = others()
                return place

            def wait(lock: WriterLock, *limits: float) -> None:
                sleep(lock, *limits)
                if i < many:
                    longest[i] = max(longest[i], others() - before)

            def flush_slowly(name: str) -> None:
                if name == "commit.before":
                    time.sleep(0.001)  # a disk in memory commits 50 times while a process that was woken gets to run

            stand, sleep = WriterLock._enter_line, WriterLock._wait
            with (
                patch.multiple(WriterLock, _enter_line=stand_in_line, _wait=wait),
                listening(flush_slowly),
            ):
                while time.monotonic() < end:
                    stream.append({"n": i})
                    commits[i] += 1

    with contextlib.ExitStack() as stack:
        end = time.monotonic() + seconds
        writers = [stack.enter_context(Child(lambda say, i=i: write(say, i, seconds)))  # type: ignore[misc]
                   for i in range(many)]
        while victims and time.monotonic() < end:
            i = many + chance.randrange(victims)
            with Child(lambda say, i=i: write(say, i, 60)):  # type: ignore[misc]
                time.sleep(chance.uniform(0.02, 0.2))
        for writer in writers:
            writer.finish()
    assert min(commits[i] for i in range(many)) > 0
    return [longest[i] for i in range(many)]


# -- exceptions --------------------------------------------------------------------------------


class Struck(BaseException):
    pass


def strike(at: int, call: Callable[[], None], on_sleep: Callable[[], None] = lambda: None) -> bool:
    """Raise before that bytecode of the lock's code that ``call`` runs; whether it has come so far."""
    left = at

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if "/storage/" not in frame.f_code.co_filename:
            return None
        if event == "call":
            frame.f_trace_opcodes = True
            if frame.f_code.co_name == "sleep":
                on_sleep()
        elif event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Struck
        return trace

    def run() -> None:
        sys.settrace(trace)
        with contextlib.suppress(Struck, raxlog.LockTimeout):
            call()

    # Struck where it begins or ends to handle an exception, a thread has that as the context of all that it raises.
    assert in_threads(1, lambda _: run()) == []
    return left < 0


@plain
@pytest.mark.parametrize("case", ["free", "held", "handed over", "given up"])
def test_no_bytecode_is_a_bad_one_for_an_exception(file: Path, case: str) -> None:
    """Struck in acquire() or release(): after release(), as the committer does it, nothing is held, and all goes on."""
    lock, other, third = WriterLock(file), WriterLock(file), WriterLock(file)
    with disk.open_file(file) as opened:
        words = writer_lock.TurnWords(opened)
    slept: list[int] = []
    at = 0
    struck = True
    while struck or (case == "held" and at not in slept):  # the machine was too busy for it to come so far
        waiter = threading.Thread(target=third.acquire, args=(10,))
        if case == "given up":
            lock.acquire(0)
            waiter.start()
            until(lambda: words.last[0] > 0)  # not only in line: release() looks there
            struck = strike(at, lock.release)
        elif case == "held":
            other.acquire(0)
            struck = strike(at, lambda: lock.acquire(0.002), partial(slept.append, at))
        elif case == "handed over":
            other.acquire(0)
            struck = strike(at, lambda: lock.acquire(10), other.release)
        else:
            struck = strike(at, lambda: lock.acquire(0))
        lock.release()
        if case == "given up":
            waiter.join(10)
            assert not waiter.is_alive()
        for one in (other, third):
            one.release()
        assert in_line(file) == []
        for one in (lock, other):
            one.acquire(0)
            one.release()
        at += struck
    print(f"{at} bytecodes")
    assert at > {"free": 15, "held": 80, "handed over": 80, "given up": 40}[case]
