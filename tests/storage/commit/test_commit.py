"""Group commit: who shares a commit, who fails alone, who waits for whom."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog
from children import Child, wait_until_stopped
from commit_cases import HeldBatch, in_threads, put, stored, submit
from counting import commits_of
from raxlog.storage import crash_point
from raxlog.storage.log.transaction import WriteTransaction

# -- sharing -------------------------------------------------------------------------------


def test_sixteen_threads_share_commits_and_each_keeps_its_order(store: raxlog.Store) -> None:
    """Each commit takes 2 ms, as on a disk: in memory threads may run one after the other, with nothing to share."""
    stream = store.stream("s")
    before = commits_of(store)

    def append(thread: int) -> None:
        last = None
        for n in range(50):
            sid = stream.append({"thread": thread, "n": n})
            assert last is None or sid > last
            last = sid

    crash_point.listen(lambda name: time.sleep(0.002) if name == "commit.before" else None)
    try:
        assert in_threads(16, append) == []
    finally:
        crash_point.listen(None)
    seen: dict[str, list[int]] = {}
    for entry in stream.range():
        seen.setdefault(entry.fields["thread"], []).append(int(entry.fields["n"]))
    assert len(seen) == 16
    assert all(numbers == list(range(50)) for numbers in seen.values())
    commits = commits_of(store) - before
    assert commits < 800 / 2, f"{commits} commits for 800 appends: they hardly share"


def test_calls_that_gathered_behind_a_leader_are_one_commit(store: raxlog.Store) -> None:
    held = HeldBatch(store)
    before = commits_of(store)
    calls = [threading.Thread(target=submit, args=(store, put(b"%d" % n))) for n in range(10)]
    for call in calls:
        call.start()
    held.wait_for_queue(10)
    held.let_go()
    for call in calls:
        call.join(10)
    assert all(stored(store, b"%d" % n) for n in range(10))
    assert commits_of(store) == before + 1


@pytest.mark.parametrize("changes_first", [False, True], ids=["before it changed", "after it changed"])
@pytest.mark.parametrize("bad", [ValueError("mine"), lmdb.BadValsizeError("mine")], ids=["python", "lmdb"])
def test_a_bad_call_fails_alone_and_gets_its_own_error(
    store: raxlog.Store, changes_first: bool, bad: Exception,
) -> None:
    held = HeldBatch(store)
    raised: dict[int, BaseException] = {}

    def call(number: int) -> None:
        def operation(txn: WriteTransaction) -> int:
            if number == 4:
                if changes_first:
                    put(b"half")(txn)
                raise bad
            put(b"%d" % number)(txn)
            return number * 10

        try:
            assert submit(store, operation) == number * 10
        except BaseException as error:
            raised[number] = error

    calls = [threading.Thread(target=call, args=(n,)) for n in range(9)]
    for thread in calls:
        thread.start()
    held.wait_for_queue(9)
    held.let_go()
    for thread in calls:
        thread.join(10)
    assert list(raised) == [4]
    assert "mine" in str(raised[4])
    assert isinstance(raised[4], ValueError | raxlog.StoreError)
    assert stored(store, b"half") is None
    assert all(stored(store, b"%d" % n) for n in range(9) if n != 4)


def test_an_operation_too_large_for_lmdb_leaves_no_lmdb_error_behind(store: raxlog.Store) -> None:
    with pytest.raises(raxlog.StoreError):
        submit(store, lambda txn: txn.put(b"k" * 600, b""))
    assert submit(store, put(b"after"))


# -- a full map ----------------------------------------------------------------------------


def test_a_map_that_is_full_in_the_middle_of_a_group_grows_unnoticed(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", map_size=1 << 16) as store:

        def append(thread: int) -> None:
            stream = store.stream(f"t{thread}")
            for n in range(60):
                stream.append({"n": n, "x": bytes(3000)})

        assert in_threads(8, append) == []
        for thread in range(8):
            numbers = [int(entry.fields["n"]) for entry in store.stream(f"t{thread}").range()]
            assert numbers == list(range(60))
        assert store._env.map._size() > 1 << 16


def test_at_the_ceiling_only_what_does_not_fit_fails(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", max_map_size=1 << 20) as store:
        submit(store, put(b"fill", bytes(600_000)))
        held = HeldBatch(store)
        raised: dict[int, BaseException] = {}

        def call(number: int) -> None:
            try:
                submit(store, put(b"%d" % number, bytes(900_000 if number == 3 else 100)))
            except BaseException as error:
                raised[number] = error

        calls = [threading.Thread(target=call, args=(n,)) for n in range(8)]
        for thread in calls:
            thread.start()
        held.wait_for_queue(8)
        held.let_go()
        for thread in calls:
            thread.join(10)
        assert list(raised) == [3]
        assert isinstance(raised[3], raxlog.StoreFull)
        assert all(stored(store, b"%d" % n) for n in range(8) if n != 3)


# -- timeouts ------------------------------------------------------------------------------


def test_a_stopped_writer_of_another_process_costs_a_timeout_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    raxlog.open(path).close()

    def stop_inside(say: Callable[[Any], None]) -> None:
        with raxlog.open(path) as theirs:

            def operation(txn: WriteTransaction) -> None:
                put(b"theirs")(txn)
                say("inside")
                os.kill(os.getpid(), signal.SIGSTOP)

            submit(theirs, operation)
            say("done")

    with Child(stop_inside) as child:
        assert child.heard() == "inside"
        wait_until_stopped(child.pid)
        with raxlog.open(path, lock_timeout=0.3) as store:
            began = time.monotonic()
            with pytest.raises(raxlog.LockTimeout, match=f"process {child.pid}"):
                store.stream("s").append({"never": "1"})
            assert 0.25 < time.monotonic() - began < 3
            assert [e.fields for e in store.stream("s").range()] == []  # reading never waits

            raised: list[type] = []

            def append(n: int) -> None:
                try:
                    store.stream("s").append({"never": n})
                except raxlog.LockTimeout as error:
                    raised.append(type(error))

            assert in_threads(6, append, 20) == []
            assert raised == [raxlog.LockTimeout] * 6

            child.send(signal.SIGCONT)
            assert child.heard() == "done"
            store.stream("s").append({"after": "1"})
            assert [e.fields for e in store.stream("s").range()] == [{"after": "1"}]
            assert stored(store, b"theirs") == b"v"


def test_a_killed_writer_frees_the_lock_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    raxlog.open(path).close()

    def stop_inside(say: Callable[[Any], None]) -> None:
        def operation(txn: WriteTransaction) -> None:
            put(b"theirs")(txn)
            say("inside")
            time.sleep(60)

        submit(raxlog.open(path), operation)

    with Child(stop_inside) as child, raxlog.open(path, lock_timeout=10) as store:
        assert child.heard() == "inside"
        threading.Timer(0.2, child.kill).start()
        store.stream("s").append({"a": "1"})
        assert stored(store, b"theirs") is None


def test_a_thread_behind_a_stuck_leader_times_out_and_is_never_applied(store: raxlog.Store) -> None:
    held = HeldBatch(store)
    began = time.monotonic()
    with pytest.raises(raxlog.LockTimeout, match="other threads"):
        submit(store, put(b"never"), timeout=0.2)
    assert 0.15 < time.monotonic() - began < 3
    with pytest.raises(raxlog.LockTimeout):
        submit(store, put(b"never"), timeout=0)
    held.let_go()
    submit(store, put(b"after"))
    assert stored(store, b"never") is None
    assert stored(store, b"after") == b"v"


def test_an_endless_timeout_is_allowed(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", lock_timeout=float("inf")) as store:
        assert in_threads(4, lambda n: store.stream("s").append({"n": n})) == []
        assert len(store.stream("s")) == 4


# -- several processes ---------------------------------------------------------------------


def test_processes_that_write_without_pause_all_get_their_share(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    raxlog.open(path).close()
    starting, start = os.pipe()

    def write(say: Callable[[Any], None]) -> None:
        with raxlog.open(path) as store:
            stream = store.stream("s")
            say(os.getpid())
            os.read(starting, 1)
            stop = time.monotonic() + 1.5
            n = 0
            while time.monotonic() < stop or n < 30:
                stream.append({"pid": os.getpid()})
                n += 1
            say(n)

    with Child(write) as a, Child(write) as b, Child(write) as c:
        pids = [child.heard() for child in (a, b, c)]
        os.write(start, b"all")
        written = [child.finish()[0] for child in (a, b, c)]
    os.close(starting)
    os.close(start)
    with raxlog.open(path) as store:
        writers = [int(entry.fields["pid"]) for entry in store.stream("s").range()]
    assert [writers.count(pid) for pid in pids] == written
    # They begin together, but what is written after one of them has ended is shared by two or by none.
    one_ended = min(len(writers) - writers[::-1].index(pid) for pid in pids)
    counts = [writers[:one_ended].count(pid) for pid in pids]
    print(f"appends of three processes until one of them has ended: {counts}; {len(writers)} in all")
    assert min(counts) > sum(counts) / 12


def test_closing_while_threads_write_waits_for_them_and_refuses_the_rest(tmp_path: Path) -> None:
    store = raxlog.open(tmp_path / "s.rax")
    stream = store.stream("s")
    acknowledged = []

    def append(number: int) -> None:
        if number == 0:
            time.sleep(0.3)
            store.close()
            return
        for n in range(100_000):
            acknowledged.append(stream.append({"n": n}))

    raised = in_threads(8, append, 20)
    assert len(raised) == 7
    assert {type(error) for error in raised} == {raxlog.StoreClosed}
    with raxlog.open(tmp_path / "s.rax") as reopened:
        assert set(acknowledged) <= {entry.id for entry in reopened.stream("s").range()}


def test_a_store_is_not_closed_inside_its_own_transaction(store: raxlog.Store) -> None:
    with store.transaction() as tx:
        tx.stream("s").append({"a": "b"})
        with pytest.raises(raxlog.TransactionError):
            store.close()
    assert len(store.stream("s")) == 1
