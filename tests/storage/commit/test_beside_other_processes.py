"""Processes that change the same streams in turn: each call does what it does in a process alone.

What a process keeps from one commit to the next must not outlive what another one has changed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import raxlog

SEED = int(os.environ.get("RAXLOG_SEED", "0")) or random.randrange(1, 1 << 30)
NAMES = ("a", "b", "c")
FORK = multiprocessing.get_context("fork")
Step = tuple[Any, ...]


def drawn(chance: random.Random, n: int) -> Step:
    """A call, by its name and what it is given; IDs and names are such that most of them do something."""
    name, group, consumer = chance.choice(NAMES), chance.choice("gh"), chance.choice("xy")
    some = [chance.randrange(1, n + 1) for _ in range(chance.randrange(1, 8))]
    return chance.choices([
        ("append", name, n, chance.randrange(200)), ("extend", name, n, chance.randrange(1, 60)),
        ("delete", name, some), ("trim", name, chance.randrange(80)), ("set_id", name, n),
        ("rename", name, chance.choice(NAMES)), ("delete_stream", name), ("group", name, group),
        ("destroy", name, group), ("read", name, group, consumer, chance.randrange(1, 9)),
        ("ack", name, group, some), ("claim", name, group, consumer, some), ("ack_delete", name, group, some),
        ("force", name, group, consumer, some), ("nack", name, group, some[:1]),
        ("history", name, group, consumer), ("drop", name, group, consumer), ("publish", n),
        ("configure", name, chance.choice(["none", "zstd"])), ("compact",),
    ], [30, 12, 6, 3, 2, 2, 1, 6, 1, 16, 8, 5, 4, 3, 3, 3, 1, 6, 2, 1])[0]


def perform(store: raxlog.Store, step: Step) -> Any:
    """What the call gives, without times; the name of its error where it is refused."""
    what, *given = step
    try:
        stream = store.stream(given[0]) if what not in ("publish", "compact") else None
        if what == "append":
            return str(stream.append({"n": given[1], "x": "y" * given[2]}, id=f"{given[1]}-0"))
        if what == "extend":
            n, many = given[1:]
            return len(stream.extend([{"n": i} for i in range(many)], [f"{n}-{i + 1}" for i in range(many)]))
        if what == "delete":
            return stream.delete(*[f"{n}-0" for n in given[1]])
        if what == "trim":
            return stream.trim(maxlen=given[1])
        if what == "set_id":
            return stream.set_id(f"{given[1]}-0")
        if what == "rename":
            return store.rename_stream(*given)
        if what == "delete_stream":
            return store.delete_stream(given[0])
        if what == "configure":
            return stream.configure(compression=given[1]) and None
        if what == "publish":
            return store.publish("news", {"n": given[0]}) and None
        if what == "compact":
            return store.compact() and None
        if what == "group":
            return stream.create_group(given[1], "0") and None
        group = stream.group(given[1])
        if what == "destroy":
            return group.destroy()
        if what == "read":
            return [(str(entry.id), entry.pairs) for entry in group.read(given[2], count=given[3])]
        if what == "ack":
            return group.ack(*[f"{n}-0" for n in given[2]])
        if what == "ack_delete":
            return [one.name for one in group.ack_delete(*[f"{n}-0" for n in given[2]])]
        if what == "force":
            return [str(entry.id) for entry in group.claim(given[2], *[f"{n}-0" for n in given[3]], force=True)]
        if what == "nack":
            return group.nack(*[f"{n}-0" for n in given[2]])
        if what == "history":
            return [str(entry.id) for entry in group.read(given[2], ids="0")]
        if what == "claim":
            return [str(entry.id) for entry in group.claim(given[2], *[f"{n}-0" for n in given[3]])]
        return group.delete_consumer(given[2])
    except raxlog.RaxlogError as error:
        return type(error).__name__


def contents(store: raxlog.Store) -> Any:
    """All a user can see, without times."""
    return [
        (name, store.stream(name).last_id, [(str(entry.id), entry.pairs) for entry in store.stream(name).range()],
         [(group.name, group.last_delivered_id, group.entries_read, group.lag,
           [(str(row.id), row.consumer, row.deliveries) for row in store.stream(name).group(group.name).pending_entries(
               count=10_000)],
           [(one.name, one.pending) for one in store.stream(name).group(group.name).consumers()])
          for group in store.stream(name).groups()])
        for name in store.streams()
    ]


def serve(path: Path, line: Connection) -> None:
    """A process that performs what it is given, with the store open all the time."""
    store = raxlog.open(path)
    while (step := line.recv()) is not None:
        line.send(perform(store, step))
    store.close()


@contextmanager
def another(path: Path) -> Iterator[Connection]:
    """A process that serves."""
    line, far = FORK.Pipe()
    process = FORK.Process(target=serve, args=(path, far), daemon=True)
    process.start()
    try:
        yield line
    finally:
        line.send(None)
        process.join(20)


def test_what_another_process_claims_is_counted_with_its_new_owner(path: Path) -> None:
    """The group's record is the same afterwards, byte by byte; those of the consumers are not."""
    with another(path) as other, raxlog.open(path) as store:
        stream = store.stream("a")
        for n in range(1, 5):
            stream.append({"n": n}, id=f"{n}-0")
        group = stream.create_group("g", "0")
        assert len(group.read("x")) == 4
        group.claim("y", "4-0")
        other.send(("claim", "a", "g", "y", [1, 2]))
        assert other.recv() == ["1-0", "2-0"]
        assert group.ack("1-0", "3-0") == 2
        assert [(one.name, one.pending) for one in group.consumers()] == [("x", 0), ("y", 2)]
    assert raxlog.check(path).ok


def test_an_entry_that_another_process_makes_pending_is_not_deleted(path: Path) -> None:
    """In the place of one that it acknowledges: the group's record is the same afterwards."""
    with another(path) as other, raxlog.open(path) as store:
        stream = store.stream("a")
        for n in range(1, 6):
            stream.append({"n": n}, id=f"{n}-0")
        group = stream.create_group("g", "0")
        assert len(group.read("x")) == 5
        assert group.ack("1-0", "2-0") == 2
        assert [one.name for one in stream.delete_ex("1-0", refs="acked")] == ["DELETED"]
        other.send(("ack", "a", "g", [5]))
        other.send(("force", "a", "g", "x", [2]))
        assert [other.recv(), other.recv()] == [1, ["2-0"]]
        assert [one.name for one in stream.delete_ex("2-0", refs="acked")] == ["REFERENCED"]
    assert raxlog.check(path).ok


@pytest.mark.parametrize("run", range(4))
def test_calls_of_three_processes_in_turn_do_what_they_do_in_one(tmp_path: Path, run: int) -> None:
    print(f"RAXLOG_SEED={SEED}")
    chance = random.Random(SEED + run)
    together = tmp_path / "together.rax"
    raxlog.open(together).close()
    with ExitStack() as stack:
        lines = []
        for _ in range(3):
            lines.append(stack.enter_context(another(together)))
        alone = stack.enter_context(raxlog.open(tmp_path / "alone.rax"))
        for n in range(1, 400):
            step = drawn(chance, n)
            line = chance.choice(lines)
            line.send(step)
            assert perform(alone, step) == line.recv(), (n, step)
        with raxlog.open(together, readonly=True) as store:
            assert contents(store) == contents(alone)
    assert raxlog.check(together).ok
