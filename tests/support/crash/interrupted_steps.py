"""Workloads whose process goes on after an exception: crash_steps' steps, and calls of every other kind.

    alone      the main thread: each step until it is done; forks, publishing and compactions in between
    crowd      threads that share their commits, a stream each
    buffered   appends committed behind their caller, and flushes
    opened     a store that is opened for each step and closed after it, to read in between

After an exception a workload asks the store how far it is. It must be as far as was promised, or one
step further, to the byte; anything else is lost, by half or there twice. The store stays open, for the
check runs beside it and must be able to write at once.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import buffered_workloads
import crash_steps as steps
import raxlog
from crash_facts import contents, told
from raxlog.crashtest import interrupted
from raxlog.recovery.check.check import perform
from raxlog.recovery.crashtest.run.interrupts import Interrupted
from raxlog.storage.locks import shared_file

Ack = Callable[[Any], None]
LOCK_TIMEOUT = 5.0  # seconds; what waits so long waits for a lock that was left behind
_AT_ONCE = 2.5  # seconds, on a busy machine
NUMBERS = "numbers"
SIDES = ("left", "right")  # streams that get every message
_open: list[raxlog.Store] = []  # open still when the check runs


def open_store(path: Path, **options: Any) -> raxlog.Store:
    _open.append(raxlog.open(path, lock_timeout=LOCK_TIMEOUT, max_readers=steps.READERS, **options, encoding=None))
    return _open[-1]


def until_done(work: Callable[[], None]) -> None:
    """Call it again as often as it is interrupted; any other error is raised."""
    while True:
        try:
            work()
            return
        except BaseException as error:
            if not interrupted(error):
                raise


def steps_there(store: raxlog.Store, name: str, said: int, known: tuple[bytes, ...]) -> int:
    """How many steps a stream holds: as many as were promised, or one more."""
    found = contents(store, name)
    for n in (said, said + 1):  # where that step changes nothing it may be done again
        if n < len(known) and known[n] == found:
            return n
    assert found not in known, f"LOST or TWICE: {name} holds {known.index(found)} steps, {said} were promised"
    raise AssertionError(f"HALF: what {name} holds is not what it held after any step around {said}")


def check_beside(path: Path) -> None:
    """The store is sound, and another process can write to it at once."""
    began = time.monotonic()
    with raxlog.open(path, lock_timeout=LOCK_TIMEOUT, encoding=None) as store:
        steps.usable(store)
    assert time.monotonic() - began < _AT_ONCE, "STUCK: the process that goes on holds up another one's write"
    assert not problems(path), f"DAMAGED: {problems(path)}"


def problems(path: Path) -> list[Any]:
    """What raxlog.check() finds, without the third of a second in which its process starts."""
    messages: list[dict[str, Any]] = []
    perform(messages.append, str(path), "walk", "")
    assert any("counts" in message for message in messages)
    return [message["problem"] for message in messages if "problem" in message]


# -- one thread ------------------------------------------------------------------------------


def alone(folder: Path, ack: Ack, *, known: tuple[bytes, ...], compacts: bool = False, forks: bool = True,
          spoil: Callable[[], None] | None = None) -> None:
    """Every step, until it is done; among them forks, messages published to two streams, compactions if asked for."""
    if spoil is not None:
        spoil()
    store = open_store(folder / "s.rax")
    for name in SIDES:
        store.bind("news.*", name)
    ack(("step", 0))
    said = 0

    def go_on() -> None:
        nonlocal said
        said = n = steps_there(store, "s", said, known)
        sent = published(store)
        while n < len(known) - 1:
            if n % 4 == 3 and n not in sent:
                store.publish(f"news.{n}", {"n": n, "x": b"x" * (n * 37 % 300)})
                ack(("published", n))
            if compacts and n % 11 == 5:
                store.compact()
            if forks and n % 13 == 6:
                in_a_child(functools.partial(until_done, functools.partial(next_step, store, n, known)))
            else:
                steps.step(store, "s", n)
            n += 1
            said = n
            ack(("step", n))

    until_done(go_on)


def next_step(store: raxlog.Store, n: int, known: tuple[bytes, ...]) -> None:
    if steps_there(store, "s", n, known) == n:
        steps.step(store, "s", n)


def published(store: raxlog.Store) -> list[int]:
    """The messages, in order. AssertionError where one stream has what the other has not."""
    left, right = ([(int(entry.fields[b"n"]), len(entry.fields[b"x"])) for entry in store.stream(name).range()]
                   for name in SIDES)
    assert left == right, f"HALF: a message is in one stream only: {left} {right}"
    found = [n for n, _ in left]
    assert found == sorted(set(found)), f"TWICE: {found}"
    return found


def in_a_child(work: Callable[[], None]) -> None:
    """Let a forked process do it, in good time."""
    pid = os.fork()
    if pid == 0:
        sys.settrace(None)  # the hooks of the fork were traced; to open the store anew is not
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    deadline = time.monotonic() + 20
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        assert time.monotonic() < deadline, "STUCK: a forked child does not come to its end"
        time.sleep(0.0005)
    assert ended[1] == 0, "a forked child has failed, and said why"


def check_alone(folder: Path, acks: list[tuple[str, int]], *, known: tuple[bytes, ...]) -> None:
    said = max((n for what, n in acks if what == "step"), default=0)
    path = folder / "s.rax"
    if not acks:
        return
    with raxlog.open(path, readonly=True, encoding=None) as store:
        n = steps_there(store, "s", said, known)
        steps.whole(told(store, "s"), "s", n)
        assert set(published(store)) >= {n for what, n in acks if what == "published"}, "LOST: a message"
        if n and n % 97 != 96:
            counted(store, "s")
    check_beside(path)


def counted(store: raxlog.Store, name: str) -> None:
    """All ways to count a stream agree."""
    stream = store.stream(name)
    ids = [entry.id for entry in stream.range()]
    assert ids == sorted(set(ids)), "WRONG: IDs do not ascend"
    assert len(stream) == stream.count() == len(ids), f"WRONG: {len(ids)} entries, {len(stream)} and {stream.count()}"
    assert [stream.rank(one) for one in ids] == list(range(len(ids))), "WRONG: ranks"


# -- several threads -------------------------------------------------------------------------


class Struck(BaseException, Interrupted):
    """Raised into threads from another one."""


def crowd(folder: Path, ack: Ack, *, known: tuple[bytes, ...], threads: int = 4, struck: int = 0,
          spoil: Callable[[], None] | None = None) -> None:
    """Threads, the main one among them, that go on from what they find, each with a stream of its own.

    ``struck`` asynchronous exceptions are raised into the others, at random moments, wherever they are.
    """
    if spoil is not None:
        spoil()
    store = open_store(folder / "s.rax")
    ack(("step", 0))
    wrong: list[str] = []
    busy = {f"t{number}" for number in range(threads)}
    striking = threading.Lock()

    def write(name: str) -> None:
        said = 0

        def go_on() -> None:
            nonlocal said
            store.stream("behind").append({"x": 1}, maxlen=1)  # a call left in another thread's batch is decided by now
            n = steps_there(store, name, said, known)
            noted = numbers(store, name)
            while n < len(known) - 1:
                said = n
                if n not in noted:
                    store.stream(NUMBERS).append({"who": name, "n": n})
                    noted.append(n)
                steps.step(store, name, n)
                n += 1
                said = n
                ack((name, n))
            ack((name, n))  # two in a row may have come just before that
            with striking:
                busy.discard(name)
            for _ in range(10):  # what was raised before that comes here
                pass

        try:
            until_done(lambda: until_done(lambda: until_done(go_on)))  # it may come a step too late
        except BaseException:
            wrong.append(traceback.format_exc())
            busy.discard(name)

    workers = {name: threading.Thread(target=write, args=(name,), daemon=True) for name in sorted(busy) if name != "t0"}
    for worker in workers.values():
        worker.start()
    if struck:
        threading.Thread(target=strike, args=(workers, busy, striking, struck, ack), daemon=True).start()
    write("t0")
    for worker in workers.values():
        worker.join()
    assert not wrong, wrong[0]


def numbers(store: raxlog.Store, name: str) -> list[int]:
    """What a thread has noted in the stream that all share, where the store makes the IDs."""
    entries = [entry.fields for entry in store.stream(NUMBERS).range()]
    found = [int(fields[b"n"]) for fields in entries if fields[b"who"] == name.encode()]
    assert len(found) == len(set(found)), f"TWICE: {found} of {name}"
    return found


def strike(workers: dict[str, threading.Thread], busy: set[str], striking: threading.Lock, many: int,
           ack: Ack) -> None:
    """Raise into threads that are busy."""
    rng = random.Random(many)
    for number in range(1, many + 1):
        time.sleep(rng.random() * 0.003)
        with striking:
            names = sorted(busy & set(workers))
            if not names:
                return
            ident = workers[rng.choice(names)].ident
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident or 0), ctypes.py_object(Struck))
            ack(("struck", number))


def check_crowd(folder: Path, acks: list[tuple[str, int]], *, known: tuple[bytes, ...], threads: int = 4,
                count: Path | None = None) -> None:
    path = folder / "s.rax"
    with raxlog.open(path, readonly=True, encoding=None) as store:
        for name in (f"t{number}" for number in range(threads)):
            n = steps_there(store, name, max((n for one, n in acks if one == name), default=0), known)
            assert n == len(known) - 1, f"LOST: {name} ended after {n} steps"
            steps.whole(told(store, name), name, n)
            assert sorted(numbers(store, name)) == list(range(n)), f"LOST: {numbers(store, name)} of {n}"
        counted(store, NUMBERS)
    check_beside(path)
    if count is not None:
        with count.open("a") as lines:
            lines.write(f"{max((n for what, n in acks if what == 'struck'), default=0)}\n")


# -- buffered --------------------------------------------------------------------------------


def buffered(folder: Path, ack: Ack, *, calls: int = 60) -> None:
    """buffered_workloads' calls, each until it is done, and flushes."""
    store = open_store(folder / "s.rax", durability="buffered", buffer_window=0.001)
    ack(0)
    made = 0

    def go_on() -> None:
        nonlocal made
        n = buffered_workloads.whole_calls(store)
        assert made <= n <= made + 1, f"LOST or TWICE: {made} calls had returned, {n} are there"
        made = n
        while made < calls:
            buffered_workloads.call(store, made)
            made += 1
            if made % 9 == 0:
                store.flush()
            ack(made)
        ack(made)  # of the last call, if it was struck once it had been taken

    until_done(go_on)
    until_done(store.flush)


def check_buffered(folder: Path, acks: list[int]) -> None:
    path = folder / "s.rax"
    with raxlog.open(path, readonly=True, encoding=None) as store:
        n = buffered_workloads.whole_calls(store)
        assert n == max(acks), f"LOST: {n} calls are there, {max(acks)} were flushed"
    check_beside(path)


# -- opened and closed -----------------------------------------------------------------------


def opened(folder: Path, ack: Ack, *, known: tuple[bytes, ...]) -> None:
    """Every step in a store that is opened for it, now and then buffered; read before in one that cannot write.

    What is struck while it opens or closes is dropped as it is, and opened anew in another way.
    """
    path = folder / "s.rax"
    raxlog.open(path, encoding=None).close()
    ack(("step", 0))
    said = 0

    def go_on() -> None:
        nonlocal said
        while said < len(known) - 1:
            with raxlog.open(path, lock_timeout=LOCK_TIMEOUT, readonly=True, encoding=None) as store:
                n = steps_there(store, "s", said, known)
            if n == said:
                durability: Any = "buffered" if n % 3 == 2 else "commit"
                with raxlog.open(path, lock_timeout=LOCK_TIMEOUT, durability=durability, encoding=None) as store:
                    steps.step(store, "s", n)
            said = max(n, said + 1)
            ack(("step", said))

    until_done(go_on)


def check_opened(folder: Path, acks: list[tuple[str, int]], *, known: tuple[bytes, ...]) -> None:
    path = folder / "s.rax"
    assert shared_file.find_user(path) is None, "LEFT: a slot is locked by a store that is closed"
    with raxlog.open(path, readonly=True, encoding=None) as store:
        n = steps_there(store, "s", max(n for what, n in acks if what == "step"), known)
        steps.whole(told(store, "s"), "s", n)
    check_beside(path)
