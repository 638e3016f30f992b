"""Workloads with durability="buffered" for crash tests: calls numbered in order, and bugs planted in the buffer.

    poured        call n is an append or an extend to one of two streams, now and then something else;
                  what it says is how many calls a flush() that has returned was behind
    check_poured  what is there is what the first m calls did, for an m no smaller than was said
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import raxlog
from raxlog import StreamID
from raxlog.stream.entries import write_buffer
from raxlog.stream.entries.write_buffer import WriteBuffer

Ack = Callable[[Any], None]
STREAMS = ("a", "b")


def call(store: raxlog.Store, n: int) -> None:
    """Call n. Everything it appends bears its number."""
    stream = store.stream(STREAMS[n % 3 == 0])
    kind = n % 10
    if kind == 3:
        stream.extend([{"n": n, "k": k, "of": 5} for k in range(5)])
    elif kind == 6:
        stream.append([("n", n), ("k", 0), ("of", 1), ("x", b"x" * (n * 37 % 900))], id=f"{stream_ms(stream)}-*")
    elif kind == 8:
        stream.append({"n": n, "k": 0, "of": 1}, maxlen=1 << 30)
    elif kind == 9 and n % 40 == 29:
        with store.transaction() as tx:
            for name in STREAMS:
                tx.stream(name).append({"n": n, "k": STREAMS.index(name), "of": 2})
            tx.state[b"n"] = b"%d" % n
    else:
        stream.append({"n": n, "k": 0, "of": 1})


def stream_ms(stream: raxlog.Stream) -> int:
    """A millisecond that no ID of the stream is beyond: read without committing what is buffered."""
    return int(time.time() * 1000) + 60_000


def pour(store: raxlog.Store, ack: Ack, start: int, stop: int, every: int = 9) -> None:
    """Calls start … stop, a flush now and then, pauses in which windows end by themselves."""
    for n in range(start, stop):
        call(store, n)
        if n % every == every - 1:
            store.flush()
            ack(n + 1)
        elif n % 11 == 5:
            time.sleep(0.003)


def poured(folder: Path, ack: Ack, *, calls: int = 60, every: int = 9, bug: str = "", **options: Any) -> None:
    with planted(bug), raxlog.open(folder / "s.rax", durability="buffered", buffer_window=0.001, **options,
                                   encoding=None) as store:
        pour(store, ack, 0, calls, every)


def whole_calls(store: raxlog.Store) -> int:
    """How many calls the store holds: the first so many, each whole and in order. AssertionError else."""
    parts: dict[int, set[int]] = {}
    wanted: dict[int, int] = {}
    for name in STREAMS:
        before = -1
        for entry in store.stream(name).range():
            n, k, of = (int(entry.fields[field]) for field in (b"n", b"k", b"of"))
            assert n >= before, f"ORDER: call {n} stands behind call {before} in {name}"
            before = n
            assert k not in parts.setdefault(n, set()), f"TWICE: call {n}"
            parts[n].add(k)
            wanted[n] = of
    for n, found in parts.items():
        assert len(found) == wanted[n], f"HALF: of call {n} there are {found}"
    assert sorted(parts) == list(range(len(parts))), f"GAP: the calls {gaps(parts)} are missing"
    return len(parts)


def gaps(parts: Any) -> list[int]:
    return [n for n in range(max(parts)) if n not in parts]


def check_poured(folder: Path, acks: list[int]) -> None:
    said = acks[-1] if acks else 0
    path = folder / "s.rax"
    if not path.exists():
        assert not said, "LOST: the store is gone"
        return
    with raxlog.open(path, durability="buffered", encoding=None) as store:
        there = whole_calls(store)
        assert there >= said, f"LOST: {there} calls are there, {said} were flushed"
        state = store.state.get(b"n")
        made = [n for n in range(there) if n % 40 == 29]
        assert state == (b"%d" % made[-1] if made else None), f"HALF: the state says {state!r}, {made[-1:]} was made"
        call(store, there)
    with raxlog.open(path, encoding=None) as store:
        assert whole_calls(store) == there + 1, "a call after the crash is not there"


def minding(folder: Path, ack: Ack, *, calls: int = 40) -> None:
    """A program that minds errors: told of a loss it looks what is there, and goes on from that.

    Commits come when the buffer is full, not when time has passed: each run makes the same ones.
    """
    write_buffer.MOST_ENTRIES = 5
    store: raxlog.Store | None = None
    n = failures = 0
    while n < calls:
        try:
            if store is None:
                store = raxlog.open(folder / "s.rax", durability="buffered", buffer_window=50, encoding=None)
                n = whole_calls(store)
            call(store, n)
            n += 1
            if n % 9 == 0:
                store.flush()
                ack(n)
        except raxlog.RaxlogError:
            failures += 1
            if failures > 8:
                raise
            n = _after_an_error(store, n)
            if failures > 4 and store is not None:
                with contextlib.suppress(raxlog.RaxlogError):
                    store.close()
                store = None
    if store is not None:
        store.close()
        ack(calls)


def _after_an_error(store: raxlog.Store | None, n: int) -> int:
    """Let the loss be told, and see how many calls have been done."""
    if store is None:
        return n
    with contextlib.suppress(raxlog.AppendsLost):
        store.flush()
    return whole_calls(store)


def careless(folder: Path, ack: Ack, *, calls: int = 40) -> None:
    """The control: an AppendsLost of flush() is taken for a yes."""
    write_buffer.MOST_ENTRIES = 5
    with contextlib.suppress(raxlog.RaxlogError), \
            raxlog.open(folder / "s.rax", durability="buffered", buffer_window=50, encoding=None) as store:
        for n in range(calls):
            with contextlib.suppress(raxlog.RaxlogError):
                call(store, n)
            if n % 9 == 8:
                with contextlib.suppress(raxlog.RaxlogError):
                    store.flush()
                ack(n + 1)


def committed(path: Path, name: str = "s") -> list[StreamID]:
    """What another process sees. Not a forked one: a fork commits what is buffered."""
    opened = f"raxlog.open({str(path)!r}, readonly=True, encoding=None)"
    script = f"import raxlog; print(*[entry.id for entry in {opened}.stream({name!r}).range()])"
    seen = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return [StreamID(sid) for sid in seen.stdout.split()]


# -- bugs --------------------------------------------------------------------------------------


@contextlib.contextmanager
def planted(bug: str) -> Any:
    """The buffer with one bug in it: "reordered" (each stream's share of a batch is a commit of its own),
    "early" (flush() does not wait), or none."""
    commit, flush = WriteBuffer._commit, WriteBuffer.flush

    def reordered(buffer: WriteBuffer, batcher: Any, batch: list[Any]) -> Any:
        for name in {item.name: None for item in batch}:
            commit(buffer, batcher, [item for item in batch if item.name == name])
            time.sleep(0.001)

    def early(buffer: WriteBuffer, report: bool = False) -> None:
        if not report:
            flush(buffer, report)

    changed = {"reordered": ("_commit", reordered), "early": ("flush", early)}
    name, instead = changed.get(bug, ("flush", flush))
    setattr(WriteBuffer, name, instead)
    try:
        yield
    finally:
        WriteBuffer._commit, WriteBuffer.flush = commit, flush  # type: ignore[method-assign]
