"""Commits that are in the journal only: whoever looks, and however, sees them, and no kill loses one."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog
from children import Child
from raxlog.storage import ahead, closing, journal

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))

pytestmark = pytest.mark.skipif(not journal.is_supported(), reason="every commit is LMDB's on this system")


def in_the_map(path: Path) -> int:
    """LMDB's transactions in the file, counted by LMDB alone."""
    with lmdb.open(str(path / "000001"), readonly=True, map_size=1 << 30, lock=False) as env:
        return int(env.info()["last_txnid"])


def numbers(store: raxlog.Store, name: str = "s") -> list[int]:
    return [int(entry.fields[b"n"]) for entry in store.stream(name).range()]


def write_alone(path: Path, say: Callable[[Any], None], commits: int) -> None:
    """Append without ever reading; then be killed."""
    store = raxlog.open(path)
    stream = store.stream("s")
    for n in range(commits):
        stream.append({"n": n})
        say(n)
    os.kill(os.getpid(), signal.SIGKILL)


def killed_after(work: Callable[[Callable[[Any], None]], None], path: Path) -> None:
    """Run work that says "done" and then kills itself, in a process of its own, on a new store."""
    raxlog.open(path).close()
    with Child(work) as child:
        assert child.all_heard() == ["done"]
        child.wait()


@pytest.fixture(params=[9, 12, 23, 60])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    """A store whose writer was killed after so many appends, and how many it had acknowledged."""
    path = tmp_path / "s.rax"
    raxlog.open(path).close()
    with Child(lambda say: write_alone(path, say, request.param)) as child:
        assert child.all_heard() == list(range(request.param))
        child.wait()
    return path, int(request.param)


def test_commits_cost_lmdb_less_than_one_transaction_each(killed: tuple[Path, int]) -> None:
    path, commits = killed
    assert in_the_map(path) < commits


def test_the_next_writer_finds_what_a_killed_one_left_in_the_journal(killed: tuple[Path, int]) -> None:
    path, commits = killed
    for _ in range(2):
        with raxlog.open(path) as store:
            assert numbers(store) == list(range(commits))
        assert raxlog.check(path).ok
    with raxlog.open(path) as store:
        store.stream("s").append({"n": commits})
    with raxlog.open(path, readonly=True) as store:
        assert numbers(store) == list(range(commits + 1))


@pytest.mark.parametrize("options", [{"readonly": True}, {"durability": "relaxed"}, {"durability": "buffered"},
                                     {"uses_journal": False}])
def test_so_does_whoever_opens_it_in_another_way(killed: tuple[Path, int], options: dict[str, Any]) -> None:
    path, commits = killed
    with raxlog.open(path, **options) as store:
        assert numbers(store) == list(range(commits))
    with raxlog.open(path) as store:
        assert store.last_end.how == ("killed" if "readonly" in options else "clean")
        assert numbers(store) == list(range(commits))


def test_a_reader_is_told_that_the_writer_was_killed(killed: tuple[Path, int]) -> None:
    path, _ = killed
    with raxlog.open(path, readonly=True) as store:
        assert store.last_end.how == "killed"


def test_a_file_system_that_can_only_write_by_way_of_its_cache_does_as_well(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    raxlog.open(path).close()

    def work(say: Callable[[Any], None]) -> None:
        del os.O_DIRECT
        write_alone(path, say, 23)

    with Child(work) as child:
        assert child.all_heard() == list(range(23))
        child.wait()
    assert in_the_map(path) < 23
    with raxlog.open(path) as store:
        assert numbers(store) == list(range(23))


def test_a_read_of_the_same_process_sees_each_commit(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    print(f"RAXLOG_SEED={SEED}")
    with raxlog.open(tmp_path / "s.rax") as store:
        stream = store.stream("s")
        n = 0
        for _ in range(60):
            for _ in range(draw.randrange(30)):
                stream.append({"n": n, "x": "x" * draw.choice((1, 500, 5000, 70_000 if draw.random() < 0.1 else 1))})
                n += 1
            assert numbers(store) == list(range(n))
        assert len(stream) == n


def test_other_threads_see_a_commit_as_soon_as_it_is_acknowledged(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        stream = store.stream("s")
        stream.append({"n": 0})
        acknowledged = 1
        ended = threading.Event()
        wrong: list[tuple[int, int]] = []

        def look() -> None:
            while not ended.is_set():
                promised = acknowledged
                seen = len(stream)
                if seen < promised:
                    wrong.append((seen, promised))
                time.sleep(0.003)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        for n in range(1, 1500):
            stream.append({"n": n})
            acknowledged = n + 1
        ended.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert numbers(store) == list(range(1500))


def visits(path: Path, rounds: int, readonly: bool) -> list[tuple[int, int]]:
    """A writer that never reads, and processes that come, look, and go; what they saw too little of."""
    store = raxlog.open(path)
    stream = store.stream("s")
    counter = os.memfd_create("acknowledged")
    os.pwrite(counter, (0).to_bytes(8, "little"), 0)
    ended = threading.Event()

    def write() -> None:
        n = 0
        while not ended.is_set():
            stream.append({"n": n})
            n += 1
            os.pwrite(counter, n.to_bytes(8, "little"), 0)

    def look(say: Callable[[Any], None]) -> None:
        draw = random.Random(SEED)
        for _ in range(rounds):
            time.sleep(draw.random() * 0.004)
            with raxlog.open(path, readonly=readonly) as other:
                for _ in range(draw.randrange(1, 4)):
                    promised = int.from_bytes(os.pread(counter, 8, 0), "little")
                    seen = len(other.stream("s"))
                    if seen < promised:
                        say((seen, promised))

    with Child(look) as child:
        writer = threading.Thread(target=write)
        writer.start()
        wrong = child.finish()
        ended.set()
        writer.join()
    assert numbers(store) == list(range(len(stream)))
    store.close()
    os.close(counter)
    return wrong


@pytest.mark.parametrize("readonly", [False, True])
def test_a_process_that_comes_sees_all_that_was_acknowledged_before(tmp_path: Path, readonly: bool) -> None:
    print(f"RAXLOG_SEED={SEED}")
    assert visits(tmp_path / "s.rax", 150, readonly) == []


def test_a_writer_that_does_not_look_whether_it_is_alone_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing.Presence, "is_alone", lambda _: True)
    monkeypatch.setattr(ahead, "_FEWEST", 0)
    assert visits(tmp_path / "s.rax", 150, readonly=True)


def test_nobody_runs_ahead_while_another_process_has_the_store_open(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    raxlog.open(path).close()

    def stay(say: Callable[[Any], None]) -> None:
        with raxlog.open(path, readonly=True) as other:
            for file in path.iterdir():  # as a program does that copies the folder
                if file.is_file():
                    file.read_bytes()
            say(None)
            for wanted in range(1, 121):
                deadline = time.monotonic() + 20
                while len(other.stream("s")) < wanted and time.monotonic() < deadline:
                    time.sleep(0.0005)
                say(len(other.stream("s")))

    with Child(stay) as child, raxlog.open(path) as store:
        child.heard()
        for n in range(120):
            store.stream("s").append({"n": n})
            assert child.heard() == n + 1
        child.finish()


def test_a_fork_in_between_loses_nothing(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        stream = store.stream("s")
        for n in range(20):
            stream.append({"n": n})

        def go_on(say: Callable[[Any], None]) -> None:
            say(len(stream))
            for n in range(20, 40):
                stream.append({"n": n})
            say(numbers(store))

        with Child(go_on) as child:
            assert child.finish() == [20, list(range(40))]
        for n in range(40, 60):
            stream.append({"n": n})
        assert numbers(store) == list(range(60))


def undone(store: raxlog.Store) -> None:
    """A transaction that appends, and then does what is refused."""
    with store.transaction() as tx:
        tx.stream("s").append({"n": -2})
        tx.stream("s").append({})


def test_what_fails_or_is_undone_leaves_those_before_it(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        stream = store.stream("s")
        n = 0
        for step in range(80):
            stream.append({"n": n})
            n += 1
            if step % 7 == 3:
                with pytest.raises(raxlog.RaxlogError):
                    stream.append({"n": -1}, id="0-1")
            if step % 11 == 5:
                with pytest.raises(raxlog.InvalidFields):
                    undone(store)
            if step % 13 == 7:
                with store.transaction() as tx:
                    tx.stream("s").append({"n": n})
                    tx.state[b"last"] = b"%d" % n
                n += 1
        assert numbers(store) == list(range(n))


def test_the_map_grows_beneath_it(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", map_size=1 << 16) as store:
        stream = store.stream("s")
        for n in range(600):
            stream.append({"n": n, "x": bytes(900)})
        assert numbers(store) == list(range(600))
    with raxlog.open(tmp_path / "s.rax") as store:
        assert numbers(store) == list(range(600))


def test_changes_that_cancel_out_use_their_number_up(tmp_path: Path) -> None:
    """Else the next commit's record would stand before old ones of the same number."""
    path = tmp_path / "s.rax"

    def work(say: Callable[[Any], None]) -> None:
        store = raxlog.open(path)
        for _ in range(40):
            store.state[b"key"] = b"here"
            del store.state[b"key"]
        store.state[b"key"] = b"here"
        say("done")
        os.kill(os.getpid(), signal.SIGKILL)

    killed_after(work, path)
    for _ in range(2):
        with raxlog.open(path) as store:
            assert dict(store.state) == {b"key": b"here"}


@pytest.mark.parametrize("at", [0, 9, 17, 25])
def test_a_record_that_is_damaged_ends_what_is_applied(tmp_path: Path, at: int) -> None:
    """Those before it count; it, and those behind it, do not: each one's checksum is seeded by the one before."""
    path = tmp_path / "s.rax"
    raxlog.open(path).close()
    with Child(lambda say: write_alone(path, say, 14)) as child:
        child.all_heard()
        child.wait()
    data = path / "000001" / "data.mdb"
    content = bytearray(data.read_bytes())
    slots = content.index(b"raxlog journal") // 4096 * 4096 + 4096
    slot = slots + (in_the_map(path) + 1) % journal.SLOTS * journal.SLOT_BYTES
    records = 0
    while any(content[slot + 4096 * records : slot + 4096 * records + 20]):
        records += 1
    assert records >= 4
    content[slot + 4096 * (records - 2) + at] ^= 4
    data.write_bytes(content)
    with raxlog.open(path) as store:
        assert numbers(store) == list(range(12))


def test_calls_that_change_nothing_leave_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"

    def work(say: Callable[[Any], None]) -> None:
        store = raxlog.open(path)
        group = store.stream("s").create_group("g", "$", create_stream=True)
        for n in range(9):
            store.state[b"%d" % n] = b"here"
            for _ in range(20):
                group.read("w")
        say("done")
        os.kill(os.getpid(), signal.SIGKILL)

    killed_after(work, path)
    assert in_the_map(path) < 12
    with raxlog.open(path) as store:
        assert len(store.state) == 9


def test_a_full_chain_is_published_by_the_way(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    raxlog.open(path).close()
    before = in_the_map(path)
    with raxlog.open(path) as store:
        for n in range(400):
            store.stream("s").append({"n": n})
    assert 400 // 16 <= in_the_map(path) - before < 100
