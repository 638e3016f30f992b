"""durability="buffered": what happens to appends on their way when a commit fails, at Ctrl-C, at the end, at a fork.

    a loss            is told before anything goes on, and what is left is what came before
    threads, signals  no append that has returned is lost to them, nor to the interpreter's end
    processes         no ID is given twice, nobody is shut out, a fork inherits nothing
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
from buffered_workloads import committed
from children import Child, wait_until_stopped
from commit_cases import listening
from counting import commits_of
from raxlog import StreamID
from raxlog.storage import crash_point
from raxlog.stream.entries import write_buffer
from raxlog.stream.entries.write_buffer import WriteBuffer

LONG = bool(os.environ.get("RAXLOG_LONG"))
SEED = int(os.environ.get("RAXLOG_SEED", "7"))
Say = Callable[[Any], None]


@pytest.fixture
def store(path: Path) -> Iterator[raxlog.Store]:
    """A window that no test waits for: what is committed, a flush has committed."""
    with raxlog.open(path, durability="buffered", buffer_window=30, encoding=None) as opened:
        yield opened


# -- a loss ----------------------------------------------------------------------------------


def test_a_loss_is_told_before_anything_goes_on_and_what_is_left_is_what_came_before(path: Path) -> None:
    with raxlog.open(path, durability="buffered", max_map_size=1 << 20, buffer_window=0.002, encoding=None) as store:
        given = []
        with pytest.raises(raxlog.AppendsLost) as caught:  # noqa: PT012 - it is the one that finds it out
            for n in range(5000):
                given.append(store.stream("s").append({"n": n, "x": b"x" * 2000}))
        assert isinstance(caught.value.__cause__, raxlog.StoreFull)
        for call in (lambda: store.stream("t").append({"n": 1}), lambda: len(store.stream("s")),
                     lambda: store.stream("s").trim(maxlen=0), store.flush):
            with pytest.raises(raxlog.AppendsLost) as again:
                call()
            assert again.value.lost == caught.value.lost
        (lost,) = again.value.lost
        assert not again.value.visible
        ids = [entry.id for entry in store.stream("s").range()]
        assert ids + given[len(ids):] == given
        assert (lost.stream, lost.first, lost.last) == (b"s", given[len(ids)], given[-1])
        assert lost.entries == len(given) - len(ids) > 0
        store.stream("s").trim(maxlen=10)
        sid = store.stream("s").append({"n": "again"})
        store.flush()
        assert sid > given[-1]
        assert [entry.id for entry in store.stream("s").range()] == [*ids[-10:], sid]
    assert raxlog.check(path).ok


def full(point: str) -> None:
    if point.startswith("commit."):
        raise raxlog.StoreFull("no room, for a test.")


@pytest.mark.parametrize("encoding", [None, "utf-8"])
def test_close_tells_a_loss_that_nobody_was_told_and_the_store_is_closed(path: Path, encoding: Any) -> None:
    shown = (lambda name: name.decode()) if encoding else bytes
    store = raxlog.open(path, durability="buffered", buffer_window=30, encoding=encoding)
    kept = store.stream("s").append({"n": 1})
    store.flush()
    ids = store.stream("s").extend([{"n": 2}, {"n": 3}])
    other = store.stream("t").append({"n": 1})
    with (listening(full),
          pytest.raises(raxlog.AppendsLost, match="3 buffered appends") as told):
        store.close()
    assert told.value.lost == (
        raxlog.Lost(shown(b"s"), ids[0], ids[1], 2), raxlog.Lost(shown(b"t"), other, other, 1))
    with pytest.raises(raxlog.StoreClosed):
        store.streams()
    store.close()
    assert committed(path) == [kept]


STRUCK = """
import sys, threading, time
import raxlog
from raxlog.recovery.crashtest.run.interrupts import leaving
from raxlog.storage import crash_point
from raxlog.stream.entries import write_buffer

path, fails, every, first = sys.argv[1], False, *map(int, sys.argv[3:])
left = 0

class Struck(BaseException):
    pass

def full(point):
    if fails and point.startswith("commit."):
        raise raxlog.StoreFull("no room, for a test.")

def trace(frame, event, _):
    if frame.f_code.co_filename != write_buffer.__file__ or left <= 0:
        return None
    frame.f_trace_opcodes = True
    return step

def step(frame, event, _):
    global left
    if event == "opcode" and left > 0 and frame.f_lasti not in leaving(frame.f_code):
        left -= 1
        if left == 0:
            raise Struck
    return step

threading.settrace(trace)
crash_point.listeners.append(full)
wanted, longest = first, 0.0
rest = 0
while rest <= 0:
    with raxlog.open(path, durability="buffered", buffer_window=0.001) as store:
        stream = store.stream("s")
        stream.append({"n": len(stream)})
        store.flush()
        n = len(stream)
        fails, left = sys.argv[2] == "fails", wanted
        began, said = time.monotonic(), False
        try:
            stream.append({"n": n})
            stream.append({"n": n + 1})
            store.flush()
            said = True
        except (raxlog.AppendsLost, raxlog.StoreFull, Struck):
            pass
        left, fails, rest, visible = 0, False, left, False
        try:
            store.flush()
        except raxlog.AppendsLost as error:
            visible = error.visible
            assert not said, "said to be on disk, and lost"
            assert sum(lost.entries for lost in error.lost) <= 2, error
        longest = max(longest, time.monotonic() - began)
        found = [int(entry.fields["n"]) for entry in stream.range()]
        assert found == list(range(len(found))), found
        assert len(found) in ([n + 2] if said else [n, n + 1, n + 2]), (wanted, found)
        assert len(found) > n or not visible, "said to be readable, and not there"
        try:
            stream.append({"n": len(found)})
            store.flush()
        except (Struck, raxlog.AppendsLost):  # it came while that was broken off: refused, or lost and reported
            assert len(stream) == len(found)
            stream.append({"n": len(found)})  # it goes on
            store.flush()
        assert [int(entry.fields["n"]) for entry in stream.range()] == list(range(len(found) + 1))
    wanted += every
print(wanted, longest)
assert longest < 10, longest
"""


@pytest.mark.parametrize("how", ["commits", "fails"])
def test_an_exception_at_any_bytecode_of_the_thread_that_commits_loses_nothing_in_silence_and_holds_nothing_up(
    path: Path, how: str
) -> None:
    """Also where it ends that thread: what waits starts another."""
    every, first = (1, 1) if LONG else (7, random.Random(SEED).randint(1, 7))
    print(f"RAXLOG_SEED={SEED}")
    done = forkserver.run([sys.executable, "-c", STRUCK, str(path), how, str(every), str(first)], capture_output=True,
                          text=True, check=False, timeout=300, env={**os.environ, "RAXLOG_PURE": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert int(done.stdout.split()[0]) > 200
    assert raxlog.check(path).ok


def test_where_the_system_gives_no_other_thread_an_append_raises_and_the_store_closes(
    store: raxlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise raxlog.StoreError("no thread, for a test.")

    store.stream("s").append({"n": 1})
    store.flush()
    (thread,) = [one for one in threading.enumerate() if one.name.startswith("raxlog buffer")]
    ident, struck = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemError)
    with monkeypatch.context() as patched:
        patched.setattr(write_buffer, "start", refuse)
        while thread in threading.enumerate():  # again, where it was not at rest: of a commit it outlives any exception
            time.sleep(0.1)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, struck)  # of one that has ended by now it finds none
            with suppress(raxlog.StoreError, SystemError):
                store.stream("s").append({"n": 2})
                store.flush()
            time.sleep(0.01)
        with pytest.raises(raxlog.StoreError, match="no thread"):
            store.stream("s").append({"n": 2})
        store.close()
    assert not thread.is_alive()


def test_each_thread_is_told_of_its_loss_by_a_flush_of_its_own(store: raxlog.Store) -> None:
    told: list[str] = []
    turn = threading.Barrier(2, timeout=30)

    def other() -> None:
        store.stream("s").append({"n": 1})
        turn.wait()
        turn.wait()
        for _ in range(2):
            try:
                store.flush()
                told.append("fine")
            except raxlog.AppendsLost:
                told.append("lost")

    thread = threading.Thread(target=other)
    thread.start()
    turn.wait()
    with listening(full), pytest.raises(raxlog.AppendsLost):
        store.flush()
    store.flush()
    turn.wait()
    thread.join()
    assert told == ["lost", "fine"]
    store.stream("s").append({"n": 2})
    store.flush()
    assert [entry.fields for entry in store.stream("s").range()] == [{b"n": b"2"}]


@contextmanager
def slow_disk(fail_at: threading.Event | None = None) -> Iterator[threading.Event]:
    """Each commit takes 80 ms more, in which the event is set; or it fails once ``fail_at`` is set."""
    under_way = threading.Event()

    def told(point: str) -> None:
        if point == "commit.before":
            under_way.set()
            if fail_at is None:
                time.sleep(0.08)
            else:
                fail_at.wait(20)
            under_way.clear()
            if fail_at is not None:
                raise raxlog.StoreFull("no room, for a test.")

    crash_point.listen(told)
    try:
        yield under_way
    finally:
        crash_point.listen(None)


def test_a_slow_disk_is_not_waited_for_and_what_comes_meanwhile_is_the_next_commit(path: Path) -> None:
    given: list[StreamID] = []
    ahead = 0
    with raxlog.open(path, durability="buffered", buffer_window=0.002,
                     encoding=None) as store, slow_disk() as under_way:
        for n in range(300):
            given.append(store.stream("s").append({"n": n}))
            given += store.stream("s").extend([{"n": n}], ids=[given[-1] + 1])
            ahead += under_way.is_set()
            time.sleep(0.0005)
        assert [entry.id for entry in store.stream("s").range()] == given
        assert ahead > 10


def test_an_append_that_reads_its_header_while_the_commit_ends_is_not_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let in beside the commit, it comes back once the lead has been left: its items are of no batch that is taken."""
    read_head, lead = WriteBuffer._read_head, WriteBuffer._lead
    under_way, reads, is_left, returned = (threading.Event() for _ in range(4))

    def reading(buffer: WriteBuffer, name: bytes, *more: Any) -> None:
        read_head(buffer, name, *more)
        if name == b"late" and not reads.is_set():
            reads.set()
            assert is_left.wait(20)

    def leading(buffer: WriteBuffer) -> None:
        lead(buffer)
        is_left.set()
        if reads.is_set():
            returned.wait(0.3)

    def slow(point: str) -> None:
        if point == "commit.before":
            under_way.set()
            reads.wait(20)

    monkeypatch.setattr(WriteBuffer, "_read_head", reading)
    monkeypatch.setattr(WriteBuffer, "_lead", leading)
    with listening(slow), raxlog.open(path, durability="buffered", buffer_window=0.002, encoding=None) as store:
        given = {"soon": [store.stream("soon").append({"n": 0})], "late": []}
        assert under_way.wait(20)
        for n in range(3):
            given["late"].append(store.stream("late").append({"n": n}))
            returned.set()
            time.sleep(0.05)  # longer than a window: each append is of a hold of its own
        store.flush()
        assert {name: [entry.id for entry in store.stream(name).range()] for name in given} == given


def test_a_commit_that_fails_takes_what_came_meanwhile_with_it(path: Path) -> None:
    with raxlog.open(path, durability="buffered", buffer_window=0.002, encoding=None) as store:
        told = threading.Event()
        with slow_disk(fail_at=told) as under_way:
            given = [store.stream("s").append({"n": 0})]
            assert under_way.wait(20)
            given += [store.stream("s").append({"n": n}) for n in range(1, 20)]
            told.set()
            with pytest.raises(raxlog.AppendsLost) as caught:
                store.flush()
        assert caught.value.lost == (raxlog.Lost(b"s", given[0], given[-1], len(given)),)
        assert store.streams() == []


def test_an_append_that_would_get_another_id_than_it_was_given_is_no_append(store: raxlog.Store) -> None:
    """What cannot be, unless the buffer is wrong: it is told, and nothing is in the store."""
    store.stream("s").append({"n": 1})
    buffer = store._source.buffer
    assert buffer is not None
    buffer._batch[b"s"].items[0].seq = 5
    with pytest.raises(raxlog.AppendsLost, match="would not get the ID"):
        store.flush()
    assert store.streams() == []


# -- threads, signals, the end ---------------------------------------------------------------


def test_threads_keep_their_order_and_share_the_commits(path: Path) -> None:
    given: list[list[StreamID]] = [[] for _ in range(6)]
    with raxlog.open(path, durability="buffered", buffer_window=0.001, encoding=None) as store:

        def work(place: int) -> None:
            stream = store.stream("s")
            for n in range(400):
                given[place].append(stream.append({"who": place, "n": n}))
                if n % 90 == place:
                    assert stream.get(given[place][-1]) is not None
                if n % 150 == place:
                    store.state[b"%d" % place] = b"%d" % n

        threads = [threading.Thread(target=work, args=(place,)) for place in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with raxlog.open(path, encoding=None) as store:
        found = [(int(entry.fields[b"who"]), int(entry.fields[b"n"]), entry.id) for entry in store.stream("s").range()]
    assert [sid for _, _, sid in found] == sorted(sid for ids in given for sid in ids)
    for place in range(6):
        assert [(n, sid) for who, n, sid in found if who == place] == list(enumerate(given[place]))


SEAMS = {"_read_head": 0.5, "_commit": 0.5, "_lead": 0.5, "_become_idle": 0.03, "_take": 0.03, "_start_items": 0.03,
         "_leave_queue": 0.03, "_enqueue": 0.03}  # and how often there is a pause


def with_pauses(chance: random.Random) -> None:
    """The buffer, in this process, with random pauses before and behind its steps."""
    def pausing(step: Callable[..., Any], often: float) -> Callable[..., Any]:
        def pause() -> None:
            if chance.random() < often:
                time.sleep(chance.choice([0, 0.0001, 0.001, 0.003, 0.01]) * chance.random() * 2)

        def call(*args: Any, **more: Any) -> Any:
            pause()
            try:
                return step(*args, **more)
            finally:
                pause()

        return call

    for name, often in SEAMS.items():
        setattr(WriteBuffer, name, pausing(getattr(WriteBuffer, name), often))


def test_pauses_at_any_step_lose_no_append_and_change_no_id(tmp_path: Path) -> None:
    """Threads that append to old and new streams; in every other store another process writes between them."""
    print("seed", SEED)

    def append(store: raxlog.Store, chance: random.Random, many: int) -> list[tuple[str, StreamID]]:
        given: list[tuple[str, StreamID]] = []
        for _ in range(many):
            name = f"s{chance.randrange(6)}" if chance.random() < 0.7 else f"n{chance.randrange(1000)}"
            kind = chance.random()
            if kind < 0.1:
                given += [(name, sid) for sid in store.stream(name).extend([{"n": 1}] * 3)]
            elif kind < 0.15:
                with store.transaction() as tx:
                    given.append((name, tx.stream(name).append({"n": 1})))
            elif kind < 0.2:
                store.flush()
            else:
                given.append((name, store.stream(name).append({"n": 1}, maxlen=1000 if kind < 0.3 else None)))
            if chance.random() < 0.3:
                time.sleep(chance.random() * 0.006)
        return given

    def work(say: Say, path: Path, seed: int, threads: int) -> None:
        signal.alarm(60)  # ends a process that hangs
        chance = random.Random(seed)
        with_pauses(chance)
        given: list[tuple[str, StreamID]] = []
        with raxlog.open(path, durability="buffered", buffer_window=chance.choice([0.0002, 0.001, 0.004]),
                         encoding=None) as store:
            running = [threading.Thread(target=lambda of: given.extend(append(store, of, 40)),
                                        args=(random.Random(seed + place),)) for place in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            store.flush()
            say(given)

    until = time.monotonic() + (120 if LONG else 4)
    number = 0
    while time.monotonic() < until:
        number += 1
        path, seed = tmp_path / f"{number}.rax", SEED * 100_000 + number * 10
        with Child(partial(work, path=path, seed=seed, threads=1 + number % 3)) as one, \
                Child(partial(work, path=path, seed=seed + 5, threads=number % 2)) as two:
            given = one.finish()[0] + two.finish()[0]
        with raxlog.open(path, encoding=None) as store:
            found = [(name.decode(), entry.id) for name in store.streams() for entry in store.stream(name).range()]
        assert sorted(found) == sorted(given), f"seed {seed}"


def test_threads_that_wait_are_let_in_one_by_one_and_each_in_its_turn(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, turns = 40, 8
    counts: Counter[str] = Counter()
    let_in: Counter[str] = Counter()
    enqueue, enter = WriteBuffer._enqueue, WriteBuffer._leave_queue

    def enqueueing(buffer: WriteBuffer, *ticket: Any, **pauses: bool) -> Any:
        counts["waits"] += 1
        return enqueue(buffer, *ticket, **pauses)

    def entering(buffer: WriteBuffer, ticket: Any) -> None:
        let_in[threading.current_thread().name] += 1
        enter(buffer, ticket)

    monkeypatch.setattr(WriteBuffer, "_enqueue", enqueueing)
    monkeypatch.setattr(WriteBuffer, "_leave_queue", entering)
    with raxlog.open(path, durability="buffered", encoding=None) as store:
        stream = store.stream("s")
        until = time.monotonic() + 60

        def work() -> None:
            while let_in.total() < threads * turns and time.monotonic() < until:
                stream.append({"n": 1})

        running = [threading.Thread(target=work) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        store.flush()
        commits = commits_of(store)
    assert len(let_in) == threads
    assert min(let_in.values()) >= 2  # of 8; whatever is woken first would starve some
    assert counts["waits"] < commits * 15  # a handful sleep anew for each commit, not all


def test_ctrl_c_at_any_step_loses_no_append_that_has_returned(path: Path) -> None:
    def work(say: Say) -> None:
        given, broken = [], 0
        inside = False

        def interrupt(_number: int, _frame: Any) -> None:
            nonlocal inside
            if inside:
                inside = False
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
        with raxlog.open(path, durability="buffered", buffer_window=0.001, encoding=None) as store:
            stream = store.stream("s")
            stream.append({"n": 0})
            say("go")
            n = 0
            until = time.monotonic() + (20 if LONG else 2)
            while time.monotonic() < until:
                n += 1
                sid = None
                try:
                    inside = True
                    sid = stream.append({"n": n})
                    if n % 97 == 5:
                        store.flush()
                    if n % 101 == 7:
                        len(stream)
                    inside = False
                except KeyboardInterrupt:
                    broken += 1
                if sid is not None:
                    given.append((n, sid))
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        say((given, broken))

    with Child(work) as child:
        child.heard()
        chance = random.Random(SEED)
        sent = threading.Event()

        def bother() -> None:
            while not sent.wait(chance.random() * 0.01):
                child.send(signal.SIGINT)

        thread = threading.Thread(target=bother)
        thread.start()
        try:
            given, broken = child.heard()
        finally:
            sent.set()
            thread.join()
    with raxlog.open(path, encoding=None) as store:
        found = {int(entry.fields[b"n"]): entry.id for entry in store.stream("s").range()}
        assert list(found) == sorted(found)
    assert broken > 10
    assert all(found.get(n) == sid for n, sid in given)
    assert len(found) - 1 - len(given) <= broken


@pytest.mark.parametrize("how", ["", "sys.exit(3)", "raise RuntimeError", "threading.Thread(target=more).start()",
                                 "import atexit; atexit.register(more)"])
def test_an_interpreter_that_ends_without_close_commits_what_is_buffered(path: Path, how: str) -> None:
    script = f"""
        import sys, threading
        import raxlog

        def more():
            store.stream("s").append({{"n": "more"}})

        import atexit; atexit.register(more)
        store = raxlog.open({str(path)!r}, durability="buffered", buffer_window=50, encoding=None)
        for n in range(10):
            store.stream("s").append({{"n": n}})
        {how}
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60,
                           check=False)
    assert "more" not in ended.stderr, ended.stderr
    assert len(committed(path)) == 11 + ("more" in how), ended.stderr


# -- processes -------------------------------------------------------------------------------


def test_a_fork_inherits_no_append_and_both_go_on(path: Path) -> None:
    with raxlog.open(path, durability="buffered", buffer_window=0.5, encoding=None) as store:
        stream = store.stream("s")
        given = [stream.append({"n": n}) for n in range(5)]

        def go_on(say: Say) -> None:
            say([entry.id for entry in stream.range()])
            say([stream.append({"n": "child"}) for _ in range(5)])
            store.close()

        for _ in range(3):
            given.append(stream.append({"n": "parent"}))
            with Child(go_on) as child:
                found, theirs = child.finish()
            assert found == given
            given += theirs
        assert [entry.id for entry in stream.range()] == given
    with raxlog.open(path, encoding=None) as store:
        assert [entry.id for entry in store.stream("s").range()] == given


def test_a_fork_in_the_middle_of_other_threads_appends_is_no_bad_moment(path: Path) -> None:
    with raxlog.open(path, durability="buffered", buffer_window=0.001, encoding=None) as store:
        given: list[StreamID] = []
        done = threading.Event()

        def work() -> None:
            while not done.is_set():
                given.append(store.stream("s").append({"n": len(given)}))

        thread = threading.Thread(target=work)
        thread.start()
        theirs = []
        try:
            for _ in range(8):
                def append(say: Say) -> None:
                    say(store.stream("s").append({"n": "child"}))
                    store.close()

                with Child(append) as child:
                    theirs += child.finish()
        finally:
            done.set()
            thread.join()
        assert [entry.id for entry in store.stream("s").range()] == sorted(given + theirs)


@pytest.mark.storm
def test_two_processes_never_give_out_the_same_id_and_neither_is_shut_out(path: Path) -> None:
    rounds = 20_000 if LONG else 1500

    def work(say: Say, durability: Any) -> None:
        ids = []
        with raxlog.open(path, durability=durability, buffer_window=0.001, lock_timeout=20, encoding=None) as store:
            say("open")
            for n in range(rounds if durability == "buffered" else 30):
                ids.append(store.stream("s").append({"n": n}))
                if n % 200 == 7:
                    ids += store.stream("s").extend([{"n": n}] * 3)
        say(ids)

    raxlog.open(path, encoding=None).close()
    with Child(partial(work, durability="buffered")) as one, Child(partial(work, durability="buffered")) as two, \
            Child(partial(work, durability="commit")) as three:
        given = [child.finish()[1] for child in (one, two, three)]
    for ids in given:
        assert ids == sorted(ids)
    with raxlog.open(path, encoding=None) as store:
        assert [entry.id for entry in store.stream("s").range()] == sorted(sid for ids in given for sid in ids)


@pytest.mark.parametrize("asked", ["5-*", "*"])
def test_after_a_kill_only_ids_whose_entries_were_lost_are_given_again(path: Path, asked: str) -> None:
    """IDs that flush() has made safe stay those of their entries; the last window's entries and IDs go together."""
    safe: dict[raxlog.StreamID, int] = {}

    def work(say: Say, first: int) -> None:
        store = raxlog.open(path, durability="buffered", buffer_window=0.5, encoding=None)
        stream = store.stream("s")
        flushed = [(stream.append({"n": n}, id=asked), n) for n in range(first, first + 20)]
        store.flush()
        say(flushed)
        say([(stream.append({"n": n}, id=asked), n) for n in range(first + 20, first + 40)])
        os.kill(os.getpid(), signal.SIGKILL)

    raxlog.open(path, encoding=None).close()
    given_again = 0
    for round_no in range(8):
        with Child(partial(work, first=100 * round_no)) as child:
            flushed, lost = child.heard(), child.heard()
            child.wait()
        assert not {sid for sid, _ in flushed} & safe.keys()
        safe |= dict(flushed)
        with raxlog.open(path, encoding=None) as store:
            stored = {entry.id: int(entry.fields[b"n"]) for entry in store.stream("s").range()}
            assert {sid: stored[sid] for sid in safe} == safe
            assert all(stored.get(sid, n) == n for sid, n in lost)
            sid = store.stream("s").append({"n": 9_999_999}, id=asked)
        assert sid not in safe
        safe[sid] = 9_999_999
        given_again += sid in {one for one, _ in lost}
    print(f"{given_again} IDs of lost entries were given again")


def test_a_process_that_is_stopped_in_its_window_costs_others_a_lock_timeout_with_its_name(path: Path) -> None:
    def work(say: Say) -> None:
        store = raxlog.open(path, durability="buffered", buffer_window=50, encoding=None)
        say(store.stream("s").append({"n": 1}))
        time.sleep(60)

    with Child(work) as child:
        child.heard()
        child.send(signal.SIGSTOP)
        wait_until_stopped(child.pid)
        with raxlog.open(path, durability="buffered", lock_timeout=0.1, encoding=None) as store:
            with pytest.raises(raxlog.LockTimeout, match=str(child.pid)):
                store.stream("s").append({"n": 2})
            child.kill()
            store.stream("s").append({"n": 2})
            assert [entry.fields for entry in store.stream("s").range()] == [{b"n": b"2"}]
