"""Calls to the system that fail: each call of raxlog's ends in an error of its own, and works again with the system."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import raxlog
import raxlog.aio
from children import Child
from descriptors import descriptors_taken
from raxlog.recovery import subprocess_task

FUNCTIONS = ("pread", "pwrite", "fdatasync", "fsync", "fstat", "stat", "lseek", "open", "rename", "unlink", "scandir",
             "listdir", "statvfs", "posix_fallocate", "read", "mkdir", "ftruncate", "pipe", "fcntl")
ERRORS = (errno.EIO, errno.EROFS, errno.EMFILE, errno.ENOSPC)


@contextlib.contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, function: str, number: int) -> Iterator[None]:
    """Have each call of a function of the system fail."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl if function == "fcntl" else os, function, fail)
        yield


def exhaust(steps: Iterable[object]) -> None:
    """Run all of them."""
    for _ in steps:
        pass


@pytest.fixture
def ended_threads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What threads have died of, unseen by any caller."""
    found: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", found.append)
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


def calls(store: raxlog.Store, path: Path, turn: str, added: list[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """The public calls, with files of this turn's own; what has been acknowledged is added to ``added``."""
    stream, group = store.stream("q"), store.stream("q").group("g")
    to, first = path.with_name(turn), path.with_name("first")
    to.mkdir()

    def append(size: int) -> None:
        added.append(str(stream.append({"x": "x" * size})))

    def transact() -> None:
        with store.transaction() as tx:
            sid = str(tx.stream("q").append({"x": "x" * 200_000}))
            tx.state[b"k"] = b"v"
        added.append(sid)

    yield "append", lambda: append(10)
    yield "append of a large entry", lambda: append(600_000)
    yield "many appends", lambda: [append(4000) for _ in range(200)]
    yield "extend", lambda: added.extend(map(str, stream.extend([{"x": "y" * 2000}] * 200)))
    yield "range", lambda: list(stream.range(count=10))
    yield "group read", lambda: group.read("c", count=3)
    yield "ack", lambda: group.ack("1-1")
    yield "transaction", transact
    yield "wait", lambda: store.read({"q": "$"}, timeout=0.01)
    yield "subscribe", lambda: store.subscribe("a.*").close()
    yield "durable subscription", lambda: store.subscribe_durable("a.*", durable="d").close()
    yield "publish", lambda: store.publish("a.b", {"n": 1})
    yield "status", store.status
    yield "readers", store.readers
    yield "flush", store.flush
    yield "compact", store.compact
    yield "check", lambda: raxlog.check(path)
    yield "snapshot", lambda: store.snapshot(to / "snapshot")
    yield "increment", lambda: store.snapshot(to / "more", incremental_to=first)
    yield "restore", lambda: raxlog.restore(first, to / "restored")
    yield "verify", lambda: raxlog.verify(first)
    yield "salvage", lambda: raxlog.salvage(path, to / "salvaged")
    yield "open another", lambda: raxlog.open(to / "another").close()
    yield "close", store.close
    yield "open", lambda: raxlog.open(path).close()
    yield "open to read", lambda: raxlog.open(path, readonly=True).close()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_where_the_system_fails_each_call_ends_in_an_error_of_raxlog_and_works_again_with_it(
    path: Path, function: str, monkeypatch: pytest.MonkeyPatch, ended_threads: list[Any],
) -> None:
    added: list[str] = []
    wrong: list[str] = []
    if function in ("pipe", "read"):  # by which an interpreter is started
        monkeypatch.setattr(subprocess_task, "subprocess", subprocess)
    store = raxlog.open(path)
    store.stream("q").append({"x": "first"}, id="1-1")
    store.stream("q").create_group("g", start="0")
    store.snapshot(path.with_name("first"))
    for number in ERRORS:
        turn = errno.errorcode[number]
        for name, call in calls(store, path, turn, added):
            with failing(monkeypatch, function, number):
                try:
                    call()
                except raxlog.RaxlogError:
                    pass
                except BaseException as error:
                    wrong.append(f"{name}, {turn}: {error!r}")
        store.close()
        store = raxlog.open(path)
    store.close()
    with raxlog.open(path) as again:
        added.append(str(again.stream("q").append({"x": "last"})))
        there = {str(entry.id) for entry in again.stream("q").range()}
        assert [sid for sid in added if sid not in there] == []
        again.compact()
    assert raxlog.check(path).ok
    assert wrong == []
    assert ended_threads == []


def test_a_checkpoint_that_cannot_read_is_logged_once_and_made_once_it_can(
    path: Path, monkeypatch: pytest.MonkeyPatch, ended_threads: list[Any], caplog: pytest.LogCaptureFixture,
) -> None:
    with raxlog.open(path) as store:
        stream = store.stream("q")
        entries = [{"x": "x" * 1000}]
        with failing(monkeypatch, "pread", errno.EIO), pytest.raises(raxlog.StoreError, match="Input/output error"):
            exhaust(stream.append(entry) for entry in entries * 3000)
        before = len(stream)
        stream.append({"x": "x" * 600_000})
        assert len(stream) == before + 1
    assert raxlog.check(path).ok
    assert ended_threads == []
    assert sum("no checkpoint" in record.getMessage() for record in caplog.records) <= 1


@pytest.mark.parametrize("bad", ["\0", "a\0b", "\ud800", "", None, b"store"])
def test_a_path_that_can_name_no_folder_is_refused_as_an_argument(bad: Any, path: Path) -> None:
    raxlog.open(path).close()
    for call in (lambda: raxlog.open(bad), lambda: raxlog.check(bad), lambda: raxlog.salvage(bad, path),
                 lambda: raxlog.salvage(path, bad), lambda: raxlog.restore(bad, path),
                 lambda: raxlog.restore(path, bad), lambda: raxlog.open(path).snapshot(bad)):
        with pytest.raises(raxlog.InvalidArgument):
            call()


def test_without_a_free_descriptor_a_store_is_neither_taken_for_none_nor_harmed(path: Path) -> None:
    raxlog.open(path).close()
    with descriptors_taken() as taken:
        for call in (lambda: raxlog.open(path), lambda: raxlog.open(path, readonly=True), lambda: raxlog.check(path),
                     lambda: raxlog.salvage(path, path.with_name("new"))):
            with pytest.raises(raxlog.StoreError, match=r"[Tt]oo many open files") as caught:
                call()
            assert not isinstance(caught.value, raxlog.NotAStore)
            os.close(taken.pop())  # each further step of an opening has its own first failure
    with raxlog.open(path) as store:
        store.stream("q").append({"n": 1})
    assert raxlog.check(path).ok


def test_a_snapshot_is_not_called_damaged_for_want_of_descriptors(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("q").append({"n": 1})
        store.snapshot(path.with_name("first"))
    raxlog.verify(path.with_name("first"))
    errors: list[str] = []
    for free in range(8):
        with descriptors_taken(free):
            for call in (partial(raxlog.restore, path.with_name("first"), path.with_name(f"restored{free}")),
                         partial(raxlog.verify, path.with_name("first"))):
                try:
                    found = call()
                    assert getattr(found, "ok", True), found
                except raxlog.StoreError as error:
                    errors.append(str(error))
    assert all("oo many open files" in error for error in errors)
    assert errors


def test_what_is_loaded_late_is_an_error_of_raxlog_where_no_descriptor_is_free(path: Path) -> None:
    raxlog.open(path).close()
    program = """
import contextlib, os, resource, sys
import raxlog
path = sys.argv[1]
store = raxlog.open(path) if len(sys.argv) > 2 else None
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
with contextlib.suppress(OSError):
    while True:
        os.open("/dev/null", os.O_RDONLY)
calls = [lambda: raxlog.open(path), lambda: raxlog.check(path), lambda: raxlog.salvage(path, path + ".new"),
         lambda: raxlog.verify(path), lambda: raxlog.redis_client] if store is None else [
         store.status, store.compact, lambda: store.snapshot(path + ".snapshot")]
assert store is None or store.readers() == [], "for this nothing more is loaded"
for call in calls:
    try:
        call()
    except raxlog.RaxlogError as error:
        assert "oo many open files" in str(error), error
    else:
        raise SystemExit("no error")
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))  # the end of a thread loads libgcc_s: glibc aborts without one
"""
    for more in ([], ["open"]):
        done = subprocess.run([sys.executable, "-c", program, str(path), *more], capture_output=True, text=True,
                              check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def waits(store: raxlog.Store) -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls for which a thread begins."""
    group = store.stream("q").group("g")
    called = threading.Event()

    def call_back() -> None:
        with store.subscribe("a.*", callback=lambda message: called.set()):
            store.publish("a.b", {"n": 1})
            assert called.wait(10)

    async def awaited() -> None:
        async with await raxlog.aio.open(store.path) as other:
            await other.stream("q").append({"n": 1})
            await other.read({"q": "$"}, timeout=0.01)

    async def work_in_a_loop() -> None:
        async def handle(entry: raxlog.Entry) -> None:
            pass

        async with await raxlog.aio.open(store.path) as other:
            await other.stream("q").group("g").worker(handle).run(burst=True)

    def buffered() -> None:
        with raxlog.open(store.path.with_name("buffered.rax"), durability="buffered") as other:
            other.stream("q").append({"n": 1})

    yield "buffered", buffered
    yield "read", lambda: store.read({"q": "$"}, timeout=0.01)
    yield "subscribe", lambda: store.subscribe("a.*").close()
    yield "durable", lambda: store.subscribe_durable("a.*", durable="d").close()
    yield "worker", lambda: group.worker(lambda entry: None).run(burst=True)
    yield "await", lambda: asyncio.run(awaited())
    yield "worker in a loop", lambda: asyncio.run(work_in_a_loop())
    yield "callback", call_back


@pytest.mark.parametrize("first", [1, 2, 3, 4, 5])
def test_where_the_system_gives_no_thread_each_call_ends_in_an_error_of_raxlog_and_works_again_with_one(
    path: Path, first: int, ended_threads: list[Any],
) -> None:
    def work(say: Callable[[Any], None]) -> None:  # in a process of its own: stores that a loop cannot close stay open
        begin, begun = threading.Thread.start, 0

        def start(thread: threading.Thread) -> None:
            nonlocal begun
            begun += 1
            if begun >= first:
                raise RuntimeError("can't start new thread")
            begin(thread)

        with raxlog.open(path) as store:
            names = [name for name, _ in waits(store)]
        for name in names:
            begun = 0
            with raxlog.open(path) as store:
                store.stream("q").create_group("g", create_stream=True, exist_ok=True)
                store.stream("q").append({"x": "y"})
                call = dict(waits(store))[name]
                if name != "callback" or first == 1:  # whose thread another one begins
                    with pytest.MonkeyPatch.context() as patched:
                        patched.setattr(threading.Thread, "start", start)
                        try:
                            call()
                        except raxlog.StoreError as error:
                            say(str(error))
                call()
        say([str(one) for one in ended_threads])

    with Child(work) as child:
        *errors, ended = child.all_heard()
    assert ended == []
    assert errors or first > 3
    assert all("gives no thread" in error for error in errors), errors


def test_no_file_is_left_to_the_collector(tmp_path: Path) -> None:
    program = """
import sys, raxlog, warnings
path = sys.argv[1]
for turn in range(2):
    with raxlog.open(path + "/s") as store:
        store.stream("q").append({"n": turn})
        store.snapshot(f"{path}/snap{turn}")
        store.compact()
        list(store.subscribe("a.*").get(0) or ())
    raxlog.open(path + "/s", readonly=True).close()
assert raxlog.check(path + "/s").ok
raxlog.verify(path + "/snap0")
raxlog.restore(path + "/snap0", path + "/restored").kind
raxlog.salvage(path + "/s", path + "/salvaged")
raxlog.open(path + "/snap0", readonly=True).close()
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", program, str(tmp_path)],
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
