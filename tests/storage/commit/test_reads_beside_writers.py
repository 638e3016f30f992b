"""A read waits for no writer, in whatever process, and sees all that was acknowledged before it began."""

from __future__ import annotations

import mmap
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
import raxlog.store  # before times are taken: raxlog.open is imported with its first call
from children import Child, wait_until_stopped
from raxlog.storage.tree import tree

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
AT_ONCE = 0.5  # seconds
OPENERS = int(os.environ.get("RAXLOG_OPENERS", "20"))  # 200 in the long form


def holding(path: Path, seconds: float) -> Callable[[Callable[[Any], None]], None]:
    """A process that appends alone, then has a transaction open for a while."""

    def work(say: Callable[[Any], None]) -> None:
        with raxlog.open(path) as store:
            for n in range(30):
                store.stream("s").append({"n": n})
            with store.transaction() as tx:
                tx.stream("s").append({"n": "in the transaction"})
                say("inside")
                time.sleep(seconds)

    return work


@pytest.mark.parametrize("options", [{}, {"readonly": True}], ids=["for writing", "readonly"])
def test_a_store_is_opened_and_read_at_once_beside_a_transaction(path: Path, options: dict[str, Any]) -> None:
    with Child(holding(path, 5)) as child:
        assert child.heard() == "inside"
        began = time.monotonic()
        with raxlog.open(path, **options) as store:
            assert len(store.stream("s")) == 30
            assert sum(1 for _ in store.stream("s").range()) == 30
            longest = time.monotonic() - began
    print(f"opened and read in {longest * 1000:.1f} ms")
    assert longest < AT_ONCE


def test_a_process_that_has_just_written_reads_at_once_beside_anothers_transaction(path: Path) -> None:
    with raxlog.open(path) as store:
        for n in range(20):
            store.stream("s").append({"n": n})

        def hold(say: Callable[[Any], None]) -> None:
            with raxlog.open(path) as other, other.transaction() as tx:
                tx.state["k"] = b"v"
                say("inside")
                time.sleep(5)

        with Child(hold) as child:
            assert child.heard() == "inside"
            longest = 0.0
            for _ in range(50):
                began = time.monotonic()
                assert len(store.stream("s")) == 20
                longest = max(longest, time.monotonic() - began)
    print(f"longest read {longest * 1000:.1f} ms")
    assert longest < AT_ONCE


@pytest.mark.parametrize("options", [{}, {"readonly": True}], ids=["for writing", "readonly"])
def test_reads_beside_a_process_that_was_stopped_with_the_lock_of_lmdb_s_readers_name_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """A process has it while it takes a slot in the table of readers, or looks for those of dead ones."""
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
    monkeypatch.setattr(tree, "_PATIENCE", 0.3)
    locked = tmp_path / "locked"

    def open_in_vain(say: Callable[[Any], None]) -> None:
        while not locked.exists():
            time.sleep(0.001)
        try:
            raxlog.open(path, **options)
        except raxlog.LockTimeout as error:
            say(str(error))

    with Child(lambda say: os.kill(os.getpid(), signal.SIGSTOP)) as stopped, Child(open_in_vain) as opener, \
            raxlog.open(path, **options) as store:
        wait_until_stopped(stopped.pid)
        named = f"process or thread {stopped.pid} has their lock"
        if not options:
            store.stream("s").append({"n": 1})
        many = len(store.stream("s"))
        with open(path / "000001" / "lock.mdb", "r+b") as file, mmap.mmap(file.fileno(), 4096) as table:
            assert table[8:12] == bytes(4)  # the lock's word: the number of the thread that has it
            table[8:12] = stopped.pid.to_bytes(4, "little")
            with pytest.raises(raxlog.LockTimeout, match=named):
                len(store.stream("s"))
            locked.touch()
            assert re.search(named, opener.heard())
            if not options:
                store.stream("s").append({"n": 2})
                many += 1
            freeing = threading.Timer(0.1, table.__setitem__, (slice(8, 12), bytes(4)))
            freeing.start()
            assert len(store.stream("s")) == many
            freeing.join()


@pytest.mark.storm
def test_readonly_openers_beside_stopped_writers_see_all_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in some hundred is stopped while it has the lock of LMDB's readers; then the error names it."""
    monkeypatch.setattr(tree, "_PATIENCE", 1.0)
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)
    longest = 0.0
    number = with_lock = 0
    while number < OPENERS:
        number += 1
        path = tmp_path / f"{number}-{with_lock}.rax"

        def write(say: Callable[[Any], None], path: Path = path) -> None:
            with raxlog.open(path) as store:
                for n in range(100_000):
                    store.stream("s").append({"n": n})
                    say(n)

        with Child(write) as child:
            for _ in range(20):
                child.heard()
            time.sleep(rng.random() * 0.02)
            child.send(signal.SIGSTOP)
            wait_until_stopped(child.pid)
            tasks = os.listdir(f"/proc/{child.pid}/task")
            began = time.monotonic()
            try:
                store = raxlog.open(path, readonly=True)
            except raxlog.LockTimeout as error:
                named = re.search(r"process or thread (\d+) has their lock", str(error))
                if named is None or named[1] not in tasks:
                    raise
                with_lock += 1
                assert with_lock <= 1 + OPENERS // 20, "stopped with that lock again and again"
                number -= 1
                continue
            with store:
                seen = len(store.stream("s"))
                longest = max(longest, time.monotonic() - began)
                child.kill()
                acknowledged = len(child.all_heard()) + 20
                assert acknowledged <= seen <= acknowledged + 1
    print(f"longest opening and read {longest * 1000:.1f} ms; {with_lock} stopped with the lock of LMDB's readers")
    assert longest < AT_ONCE


def stopped_behind_its_record(path: Path) -> Callable[[Callable[[Any], None]], None]:
    """A writer that stands still once its record is in the log, and before that counts."""

    def work(say: Callable[[Any], None]) -> None:
        store = raxlog.open(path)
        write = os.pwrite

        def write_and_stop(file: int, content: bytes, at: int) -> int:
            done = write(file, content, at)
            if b"not returned" in content:
                os.pwrite = write
                say("recorded")
                os.kill(os.getpid(), signal.SIGSTOP)
            return done

        os.pwrite = write_and_stop
        store.stream("s").append({"n": "not returned"})
        say("committed")
        store.close()

    return work


@pytest.mark.parametrize("options", [{}, {"readonly": True}], ids=["for writing", "readonly"])
def test_a_record_of_a_call_that_has_not_returned_is_neither_waited_for_nor_shown(
    path: Path, options: dict[str, Any]
) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": "acknowledged"})
    with Child(stopped_behind_its_record(path)) as child:
        assert child.heard() == "recorded"
        wait_until_stopped(child.pid)
        began = time.monotonic()
        with raxlog.open(path, **options) as store:
            assert len(store.stream("s")) == 1
            assert time.monotonic() - began < AT_ONCE
            child.send(signal.SIGCONT)
            assert child.heard() == "committed"
            assert len(store.stream("s")) == 2
        child.finish()
    assert raxlog.check(path).ok


@pytest.mark.parametrize("options", [{}, {"readonly": True}], ids=["for writing", "readonly"])
def test_what_a_killed_call_left_does_not_come_after_an_opening_that_did_not_show_it(
    path: Path, options: dict[str, Any]
) -> None:
    """Another process has it open all the time, and has seen nothing of it: the next opening takes it in for all."""
    with raxlog.open(path) as store:
        store.stream("s").append({"n": "acknowledged"}, id="1-0")

    def stay(say: Callable[[Any], None]) -> None:
        with raxlog.open(path) as other:
            say(len(other.stream("s")))
            signal.sigwait({signal.SIGUSR1})
            say(len(other.stream("s")))
            other.stream("s").append({"n": "more"})

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with Child(stay) as other:
            assert other.heard() == 1
            with Child(stopped_behind_its_record(path)) as child:
                assert child.heard() == "recorded"
                wait_until_stopped(child.pid)
                child.kill()
            with raxlog.open(path, **options) as store:
                assert len(store.stream("s")) == 2
                other.send(signal.SIGUSR1)
                assert other.finish() == [2]
                assert len(store.stream("s")) == 3
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    with raxlog.open(path) as store:
        assert len(store.stream("s")) == 3
    assert raxlog.check(path).ok
