"""A process that copies the folder of its own open store takes the locks of no process by it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child, wait_until_stopped
from copying import Copying, digest

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
LONG = os.environ.get("RAXLOG_LONG") == "1"
Say = Callable[[Any], None]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a copy drops the locks")


def copy(path: Path) -> None:
    """Open, read and close every file of the folder, as a backup does."""
    shutil.copytree(path, path.with_name(f"copy-{os.urandom(4).hex()}"))


def churn(store: raxlog.Store, times: int = 40) -> None:
    """Write so that pages which no read sees any more are used again."""
    for _ in range(times):
        store.stream("churn").extend([{"x": os.urandom(100)} for _ in range(100)], maxlen=300)


@pytest.mark.storm
def test_a_store_copied_by_its_own_process_beside_others_that_come_and_go_loses_nothing(tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    copying = Copying(tmp_path / "s.rax", SEED, **({} if LONG else {"pause": 0.02, "held": 1.5}))
    copying.run(60.0 if LONG else 4.0)
    assert copying.lost() == []
    assert copying.copies[0] >= 3
    assert copying.reads[0] >= 1
    assert min(copying.opened[i] for i in range(4)) >= 1


def test_a_copy_leaves_the_writers_lock_where_it_is_and_a_timeout_names_the_holder(path: Path) -> None:
    def hold(say: Say) -> None:
        with raxlog.open(path) as store, store.transaction() as tx:
            tx.stream("s").append({"n": 0})
            copy(path)
            say("copied")
            signal.pause()

    raxlog.open(path).close()
    with Child(hold) as holder:
        assert holder.heard() == "copied"
        with raxlog.open(path, lock_timeout=0.2) as store:
            with pytest.raises(raxlog.LockTimeout, match=rf"process {holder.pid} \(.*python"):
                store.stream("s").append({"n": 1})
            assert store._env.files.lock is not None
            assert store._env.files.lock.holder_pid() == holder.pid
            assert not store._env.files.lock.is_awaited()
            holder.kill()
            store.stream("s").append({"n": 2})
            assert [entry.fields for entry in store.stream("s").range()] == [{"n": "2"}]


def test_who_waits_for_the_writers_lock_is_seen_by_the_one_that_holds_it(path: Path) -> None:
    def wait(say: Say) -> None:
        with raxlog.open(path) as store:
            say("open")
            store.stream("s").append({"n": 1})

    with raxlog.open(path) as store:
        lock = store._env.files.lock
        assert lock is not None
        with Child(wait) as waiting:
            with store.transaction() as tx:
                tx.stream("s").append({"n": 0})
                waiting.heard()
                deadline = time.monotonic() + 10
                while not lock.is_awaited():
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
                assert lock.holder_pid() == waiting.pid  # of its place in line, for the lock is this process's
            waiting.finish()
        assert not lock.is_awaited()
        assert lock.holder_pid() is None
        assert len(store.stream("s")) == 2


def test_a_read_of_a_process_that_has_copied_is_seen_by_others_and_its_pages_are_kept(path: Path) -> None:
    def read(say: Say) -> None:
        with raxlog.open(path, readonly=True) as store, store._env.read() as txn:
            before = digest(txn)
            copy(path)
            say("copied")
            signal.sigwait({signal.SIGUSR1})
            say(digest(txn) == before)

    def die_in_a_write(say: Say) -> None:
        with raxlog.open(path) as store, store.transaction() as tx:
            tx.stream("s").append({"n": 1})
            os.kill(os.getpid(), signal.SIGKILL)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with raxlog.open(path) as store:
            churn(store)
            with Child(read) as reader:
                reader.heard()
                with Child(die_in_a_write) as dying:  # LMDB clears the readers that it takes for dead after it
                    dying.wait()
                churn(store)
                assert [one.pid for one in store.readers()] == [reader.pid]
                churn(store)
                reader.send(signal.SIGUSR1)
                assert reader.finish() == [True]
            assert store.readers() == []
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    assert raxlog.check(path).ok


def test_a_store_copied_while_it_is_opened_is_not_taken_over(path: Path) -> None:
    """The one that copies never stops doing so; those that open the store find each other all the same."""

    def copy_all_the_time(say: Say) -> None:
        import threading  # noqa: PLC0415 - in the child only

        def touch() -> None:
            while True:
                for file in [*path.iterdir(), *(path / "000001").iterdir()]:
                    if file.is_file():
                        file.open("rb").close()

        threading.Thread(target=touch, daemon=True).start()
        for n in range(60):
            with raxlog.open(path, durability="relaxed") as store:
                store.stream("a").append({"n": n})
        say("done")

    raxlog.open(path, durability="relaxed").close()
    with Child(copy_all_the_time) as child:
        for n in range(60):
            with raxlog.open(path, durability="relaxed") as store:
                store.stream("b").append({"n": n})
                churn(store, 1)
        assert child.finish() == ["done"]
    with raxlog.open(path, readonly=True) as store:
        assert [len(store.stream(name)) for name in ("a", "b")] == [60, 60]
    assert raxlog.check(path).ok


@pytest.mark.parametrize("where", ["between writes", "in a transaction"])
def test_an_idle_child_of_a_killed_process_holds_nothing_of_its_parents(path: Path, where: str) -> None:
    def parent(say: Say) -> None:
        store = raxlog.open(path)
        live = store.subscribe("a")
        store.stream("s").append({"n": 0})
        if where == "in a transaction":
            store.transaction().__enter__().stream("s").append({"n": 1})
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, b"%d" % os.getpid())
            signal.pause()
        say(int(os.read(reading, 20)))
        signal.pause()
        live.close()

    raxlog.open(path).close()
    with Child(parent) as child:
        grandchild = child.heard()
        try:
            child.kill()
            began = time.monotonic()
            with raxlog.open(path, lock_timeout=5) as store:
                assert store.last_end == raxlog.LastEnd("killed", (child.pid,), ())
                store.stream("s").append({"n": 2})
                assert [entry.fields["n"] for entry in store.stream("s").range()] == ["0", "2"]
                assert store.publish("a", {"n": 3}) == 0
                assert store.readers() == []
            assert time.monotonic() - began < 2
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_a_fork_takes_nothing_from_its_parent(path: Path) -> None:
    with raxlog.open(path, lock_timeout=0.2) as store, store.transaction() as tx:
        tx.stream("s").append({"n": 0})
        with Child(lambda say: say("gone")) as child:
            child.finish()

        def write(say: Say) -> None:
            with raxlog.open(path, lock_timeout=0.2) as other:
                try:
                    other.stream("s").append({"n": 1})
                except raxlog.LockTimeout as error:
                    say(f"process {os.getppid()}" in str(error))

        with Child(write) as other:
            assert other.finish() == [True]


def test_opening_waits_for_no_process_that_was_stopped_with_the_store_open(path: Path) -> None:
    def stay(say: Say) -> None:
        with raxlog.open(path) as store:
            store.stream("s").append({"n": 0})
            copy(path)
            say("open")
            signal.pause()

    with Child(stay) as stopped:
        stopped.heard()
        stopped.send(signal.SIGSTOP)
        wait_until_stopped(stopped.pid)
        for readonly in (False, True):
            began = time.monotonic()
            with raxlog.open(path, readonly=readonly) as store:
                assert len(store.stream("s")) == 1
            assert time.monotonic() - began < 0.5
