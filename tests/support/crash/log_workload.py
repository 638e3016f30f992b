"""Workloads whose state is a function of the number of their commits, on a log of 64 KB; and ways to break the log."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import raxlog
from raxlog.storage.log import checkpoint, log

# A control runs in the process that performs the workload, as its environment says: on the plain sources.
_PLANTED = os.environ.get("RAXLOG_TEST_LOG", "")
if _PLANTED == "no flush":
    log.os.O_DSYNC = 0  # type: ignore[misc]
elif _PLANTED == "a ring that is used too early":
    checkpoint.Checkpoints.make_ring_room = lambda *_: None  # type: ignore[method-assign]
    checkpoint.Checkpoints.make = lambda *_: None  # type: ignore[method-assign]
elif _PLANTED == "a joining without a flush":
    _enter, _fdatasync = log.Log.enter, os.fdatasync

    def _enter_unflushed(self: log.Log) -> None:
        os.fdatasync = lambda _: None  # type: ignore[assignment, misc]
        _enter(self)
        os.fdatasync = _fdatasync

    log.Log.enter = _enter_unflushed  # type: ignore[method-assign]


def made(path: Path) -> Path:
    """A store with a small log."""
    raxlog.open(path, max_map_size=8 << 16, encoding=None).close()
    return path


def append(folder: Path, ack: Any, *, steps: int = 100) -> None:
    """Small commits, and now and then one that has no room in the log; a trim after two thirds."""
    draw = random.Random(5)
    with raxlog.open(made(folder / "s.rax"), map_size=1 << 20, encoding=None) as store:
        events = store.stream("s")
        ack(0)
        n = 0
        for step in range(steps):
            count = 40 if step % 20 == 19 else 1
            events.extend([{"n": n + i, "text": "x" * draw.randrange(1, 3000)} for i in range(count)])
            n += count
            ack(n)
            if step == steps * 2 // 3 - 1:
                events.trim(maxlen=10)
                ack(-n)


def hand_over(folder: Path, ack: Any, *, steps: int = 12) -> None:
    """Two processes commit in turn; after some steps one is killed, and another one joins."""
    draw = random.Random(9)
    path = made(folder / "s.rax")
    n = 0

    def commit(store: raxlog.Store) -> None:
        store.stream("s").append({"n": n, "text": "x" * draw.randrange(1, 3000)})

    for _ in range(3):
        asked, answered = os.pipe(), os.pipe()
        other = os.fork()
        if not other:
            with raxlog.open(path, encoding=None) as store:
                while True:
                    n = int.from_bytes(os.read(asked[0], 4), "little")
                    commit(store)
                    os.write(answered[1], b".")
        with raxlog.open(path, map_size=1 << 20, encoding=None) as store:
            for _ in range(steps):
                commit(store)
                n += 1
                ack(n)
                os.write(asked[1], n.to_bytes(4, "little"))
                os.read(answered[0], 1)
                n += 1
                ack(n)
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
            commit(store)
            n += 1
            ack(n)
        for end in (*asked, *answered):
            os.close(end)


def show(folder: Path, ack: Any) -> None:
    """Relaxed commits of a process that is killed at once; what another one shows of them is promised."""
    path = made(folder / "s.rax")
    for opening in range(6):
        writer = os.fork()
        if not writer:
            store = raxlog.open(path, durability="relaxed", encoding=None)
            for n in range(20 * opening, 20 * opening + 20):
                store.stream("s").append({"n": n, "text": "x" * 200})
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(writer, 0)
        with raxlog.open(path, encoding=None) as store:
            ack(len(store.stream("s")))
            store.state["opening"] = b"%d" % opening


def check(folder: Path, acks: list[Any]) -> None:
    """All that was promised is there, nothing is half there, and the store takes more."""
    if not (folder / "s.rax").exists():
        assert not acks, acks
        return
    with raxlog.open(folder / "s.rax", encoding=None) as store:
        events = store.stream("s")
        found = [int(entry.fields[b"n"]) for entry in events.range()]
        after = found[-1] + 1 if found else 0
        assert found == list(range(after - len(found), after)), found
        assert after >= max([0, *acks]), (after, acks)
        for trimmed in (-ack for ack in acks if ack < 0):
            assert found[0] == trimmed - 10, (found[0], trimmed)
        events.append({"n": after})
        assert len(events) == len(found) + 1


def consume(folder: Path, ack: Any, *, steps: int = 32) -> None:
    """A group reads and acknowledges without a check between."""
    with raxlog.open(made(folder / "q.rax"), map_size=1 << 20, encoding=None) as store:
        stream = store.stream("q")
        group = stream.create_group("g", "0", create_stream=True)
        stream.extend([{"n": n} for n in range(GIVEN * steps)])
        held: list[Any] = []
        for step in range(steps):
            if step % 3:
                given = group.read("w", GIVEN, ack=held)
            else:
                group.ack(*held)
                ack(2 * step)  # nothing is pending
                given = group.read("w", GIVEN)
            held = [entry.id for entry in given]
            ack(2 * step + 1)


GIVEN = 4


def check_consumed(folder: Path, acks: list[Any]) -> None:
    """The group is where one of its steps has left it, none before the last that was promised."""
    if not (folder / "q.rax").exists():
        assert not acks, acks
        return
    with raxlog.open(folder / "q.rax", encoding=None) as store:
        stream = store.stream("q")
        if "q" not in [name.decode() for name in store.streams()]:
            assert not acks, acks
            return
        group = stream.group("g")
        ids = [entry.id for entry in stream.range()]
        last = group.last_delivered_id
        given = ids.index(last) + 1 if last in ids else 0
        pending = [row.id for row in group.pending_entries("-", "+", 1000)]
        assert given % GIVEN == 0
        assert pending in ([], ids[given - GIVEN:given]), (given, pending)
        state = 2 * (given // GIVEN) - (1 if pending else 0)
        assert state >= max([0, *acks]), (state, acks)
        assert [entry.id for entry in group.read("w", GIVEN)] == ids[given:given + GIVEN]


def relax(folder: Path, ack: Any) -> None:
    """Relaxed commits of several keys each, now and then a flush, which promises what is before it."""
    draw = random.Random(7)
    names = "abc"
    for opening in range(3):
        with raxlog.open(made(folder / "s.rax"), map_size=1 << 20, durability="relaxed", encoding=None) as store:
            for step in range(opening * 50, opening * 50 + 50):
                with store.transaction() as tx:
                    for name in draw.sample(names, draw.randrange(1, 4)):
                        tx.stream(name).append({"n": step, "x": "y" * draw.choice([10, 600, 2500])})
                        tx.state[name] = b"%d" % step
                    tx.stream("all").append({"n": step})
                if draw.random() < 0.1:
                    store.flush()
                    ack(step + 1)
        ack(opening * 50 + 50)


def check_relaxed(folder: Path, acks: list[Any]) -> None:
    """A prefix of the commits, whole, and at least what was promised; and the store takes more."""
    if not (folder / "s.rax").exists():
        assert not acks, acks
        return
    with raxlog.open(folder / "s.rax", durability="relaxed", encoding=None) as store:
        there = [int(entry.fields[b"n"]) for entry in store.stream("all").range()]
        assert there == list(range(len(there))), there
        assert len(there) >= max([0, *acks]), (len(there), acks)
        draw = random.Random(7)
        wanted: dict[str, list[int]] = {name: [] for name in "abc"}
        for step in there:
            for name in draw.sample("abc", draw.randrange(1, 4)):
                draw.choice([10, 600, 2500])
                wanted[name].append(step)
            draw.random()
        for name, steps in wanted.items():
            found = [int(entry.fields[b"n"]) for entry in store.stream(name).range()]
            assert found == steps, (name, found, steps)
            assert store.state.get(name) == (b"%d" % steps[-1] if steps else None)
        store.stream("all").append({"n": len(there)})
