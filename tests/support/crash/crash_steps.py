"""All kinds of operations on a stream, as steps: what the store holds after n steps depends on n alone.

    golden(n)     digests of what a stream holds after 0, 1, … n undisturbed steps
    mixed         one stream, step by step; several_writers: processes and threads, a stream each
    check_…       what is there must be the digest after as many steps as were promised, or one more

Each step is one commit, and says its number when the call has returned. Clocks are kept out of it: IDs are given, idle
times are not looked at.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import raxlog
from crash_facts import SHARED, Facts, contents, known_or_told, markers, told
from raxlog.storage.format import keys
from raxlog.storage.log import ring

ring.RING = ring.LEAST  # it is used again after some steps, and an image is small

Ack = Callable[[Any], None]
GROUPS = ("g", "h")
READERS = 126  # of one writer; with the default the lock file would be the larger part of an image
KINDS = ("append", "extend", "read", "ack", "claim", "transaction", "nack", "delete", "capped append", "trim",
         "group", "read of the other group")


def value(n: int, k: int = 0) -> bytes:
    return b"%d.%d." % (n, k) + bytes([n % 256]) * ((n * 37 + k * 101) % 400)


def step(store: raxlog.Store, name: str, n: int, wide: int = 1) -> None:
    """Step n of a stream. ``wide`` multiplies the sizes."""
    stream = store.stream(name)
    kind = KINDS[n % len(KINDS)]
    if n == 0:
        with store.transaction() as tx:
            tx.stream(name).append({"n": value(0)}, id="1-1")
            for group in GROUPS:
                tx.stream(name).create_group(group, "0")
        return
    if n % 97 == 96:
        store.delete_stream(name)
        return
    if n > 96 and n % 97 < 2:
        stream.append({"n": value(n)}, id=f"{n + 1}-1")
        return
    if n > 96 and n % 97 == 2:
        with store.transaction() as tx:
            for group in GROUPS:
                tx.stream(name).create_group(group, "0")
        return
    group = stream.group("g")
    pending = [row.id for row in group.pending_entries("-", "+", 100)] if kind in ("ack", "claim", "nack") else []
    if kind == "extend":
        stream.extend([{"n": value(n, k) * wide} for k in range(8)], ids=[f"{n + 1}-{k}" for k in range(8)])
    elif kind == "read":
        group.read("c1", count=4)
    elif kind == "ack" and pending:
        group.ack(*pending[: len(pending) // 2 + 1])
    elif kind == "claim" and pending and n < len(KINDS):
        group.claim("c2", *pending)
    elif kind == "claim":
        group.autoclaim("c2", count=3)
    elif kind == "nack" and len(pending) > 1:
        group.nack(pending[-1])
    elif kind == "delete":
        stream.delete(*[f"{n - 5}-{k}" for k in (0, 2, 7)], f"{n}-1")
    elif kind == "capped append":
        stream.append({"n": value(n)}, id=f"{n + 1}-1", maxlen=40)
    elif kind == "trim":
        stream.trim(maxlen=30)
    elif kind == "group":
        stream.group("h").set_id(f"{n - 6}-0")
    elif kind == "read of the other group":
        stream.group("h").read("c3", count=3)
    elif kind == "transaction":
        with store.transaction() as tx:
            entries = tx.group(name, "g").read("c1", count=2)
            tx.stream(name).append({"n": value(n), "read": len(entries)}, id=f"{n + 1}-1")
            if entries:
                tx.group(name, "g").ack(entries[0].id)
            tx.state[name.encode()] = b"%d" % n
            tx.stream(SHARED).append({"who": name, "n": n})
    else:
        stream.append({"n": value(n)}, id=f"{n + 1}-1")


@functools.cache
def golden(count: int, wide: int = 1) -> tuple[bytes, ...]:
    """The digests after 0 … count steps, undisturbed."""
    shared = os.environ.get("RAXLOG_CRASHTEST_SCRATCH", "/dev/shm")
    place = tempfile.mkdtemp(prefix="raxlog-golden-", dir=shared if os.path.isdir(shared) else None)
    try:
        with raxlog.open(Path(place, "s.rax"), encoding=None) as store:
            digests = [contents(store, "s")]
            for n in range(count):
                step(store, "s", n, wide)
                digests.append(contents(store, "s"))
        return tuple(digests)
    finally:
        shutil.rmtree(place)


def there(facts: Facts, name: str, said: int, known: tuple[bytes, ...]) -> int:
    """How many steps the store holds; it must be as many as were said, or one more."""
    for n in (said, said + 1):
        if n < len(known) and known[n] == facts.digest:
            return n
    for n in range(said - 1, max(-1, said - 20), -1):
        assert known[n] != facts.digest, f"LOST: {name} holds {n} steps, {said} were promised"
    raise AssertionError(f"HALF: what {name} holds is not what it held after any step around {said}")


def whole(facts: Facts, name: str, n: int) -> None:
    """The shared stream and the state tell of the same transactions as the stream itself."""
    made = transactions(n)
    assert facts.marks == made, f"HALF: {name} has made the transactions {made}, the marks differ"
    last = made[-1] if made else None
    assert facts.state == last, f"HALF: the state of {name} says {facts.state}, the stream {last}"


@functools.cache
def transactions(n: int) -> list[int]:
    """Which of n steps are transactions that leave a mark."""
    return [i for i in range(1, n)
            if KINDS[i % len(KINDS)] == "transaction" and i % 97 != 96 and not (i > 96 and i % 97 < 3)]


def usable(store: raxlog.Store) -> None:
    """A write goes through, and is read back."""
    sid = store.stream("probe").append({"x": 1})
    assert store.stream("probe").get(sid) is not None


# -- one writer ------------------------------------------------------------------------------


def mixed(folder: Path, ack: Ack, *, steps: int = 60, durability: str = "commit", wide: int = 1,
          map_size: int | None = None, early: bool = False) -> None:
    options = {} if map_size is None else {"map_size": map_size}
    with raxlog.open(folder / "s.rax", durability=durability, max_readers=READERS, **options, encoding=None) as store:
        for n in range(steps):
            if early:
                ack(n + 1)
            step(store, "s", n, wide)
            if not early:
                ack(n + 1)


def check_mixed(folder: Path, acks: list[int], *, known: tuple[bytes, ...], lossy: bool = False) -> None:
    said = acks[-1] if acks else 0
    path = folder / "s.rax"
    if not path.exists():
        assert not said, f"LOST: the store is gone, {said} steps were promised"
        return
    with raxlog.open(path, max_readers=READERS, encoding=None) as store:
        facts = known_or_told(store, "s")
        if lossy:
            assert facts.digest in known[: said + 2], "HALF: what is there was never there"
            said = max(n for n, digest in enumerate(known[: said + 2]) if digest == facts.digest)
        whole(facts, "s", there(facts, "s", said, known))
        if said % 3 == 0:
            usable(store)


# -- several writers -------------------------------------------------------------------------


def several_writers(folder: Path, ack: Ack, *, known: tuple[bytes, ...], processes: int = 2, threads: int = 2,
                    early: bool = False) -> None:
    """Processes and threads, a stream each, which go on from what they find."""
    path = folder / "s.rax"
    raxlog.open(path, encoding=None).close()

    def write(store: raxlog.Store, name: str) -> None:
        found = contents(store, name)
        start = _absent(store, name)
        if found != b"absent":
            start = max(n for n, digest in enumerate(known) if digest == found)
        if start:
            ack((name, start))  # the last life may have ended between its commit and its word
        for n in range(start, len(known) - 1):
            if early:
                ack((name, n + 1))
            step(store, name, n)
            if not early:
                ack((name, n + 1))

    def process(number: int) -> None:
        with raxlog.open(path, encoding=None) as store:
            workers = [threading.Thread(target=write, args=(store, f"p{number}t{thread}")) for thread in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    for number in range(1, processes):
        if os.fork() == 0:
            try:
                process(number)
            finally:
                os._exit(0)
    process(0)
    for _ in range(1, processes):
        with contextlib.suppress(ChildProcessError):
            os.wait()


def _absent(store: raxlog.Store, name: str) -> int:
    """Where a stream is absent: at the start, or where step 96 (193, …) has deleted it."""
    made = markers(store, name) if SHARED.encode() in store.streams() else []
    return 0 if not made else made[-1] - made[-1] % 97 + 97


def check_several(folder: Path, acks: list[tuple[str, int]], *, known: tuple[bytes, ...]) -> None:
    path = folder / "s.rax"
    last: dict[str, int] = {}
    for name, n in acks:
        last[name] = n
    if not path.exists():
        assert not last, "LOST: the store is gone"
        return
    with raxlog.open(path, encoding=None) as store:
        for name in ("p0t0", "p0t1", "p1t0", "p1t1"):
            facts = told(store, name)
            whole(facts, name, there(facts, name, last.get(name, 0), known))
        usable(store)


# -- one bug planted -------------------------------------------------------------------------


def split_transaction(folder: Path, ack: Ack, *, steps: int = 30) -> None:
    """What belongs into one transaction is done in two."""
    with raxlog.open(folder / "s.rax", encoding=None) as store:
        for n in range(steps):
            if KINDS[n % len(KINDS)] == "transaction":
                name = "s"
                stream = store.stream(name)
                entries = stream.group("g").read("c1", count=2)
                stream.append({"n": value(n), "read": len(entries)}, id=f"{n + 1}-1")
                if entries:
                    stream.group("g").ack(entries[0].id)
                with store.transaction() as tx:
                    tx.state[name.encode()] = b"%d" % n
                    tx.stream(SHARED).append({"who": name, "n": n})
            else:
                step(store, "s", n)
            ack(n + 1)


def unflushed(folder: Path, ack: Ack, *, steps: int = 30) -> None:
    """Every commit goes without its flush: LMDB runs without sync."""
    import lmdb  # noqa: PLC0415 - in the child that is to be spoilt

    real = lmdb.open
    lmdb.open = lambda *args, **options: real(*args, **{**options, "sync": False})
    try:
        mixed(folder, ack, steps=steps)
    finally:
        lmdb.open = real


# -- snapshots and compaction among the steps -------------------------------------------------


def tidied(folder: Path, ack: Ack, *, steps: int = 40, every: int = 8, snapshots: bool = True) -> None:
    """Steps, and now and then a compaction (into a new generation) and a snapshot."""
    with raxlog.open(folder / "s.rax", max_readers=READERS, encoding=None) as store:
        for n in range(steps):
            step(store, "s", n)
            ack(("step", n + 1))
            if n % every == every - 1:
                if snapshots and n // every % 2 == 0:
                    store.snapshot(folder / f"snapshot-{n + 1}")
                    ack(("snapshot", n + 1))
                else:
                    store.compact()
                    ack(("compact", n + 1))


def check_tidied(folder: Path, acks: list[tuple[str, int]], *, known: tuple[bytes, ...]) -> None:
    check_mixed(folder, [n for what, n in acks if what == "step"], known=known)
    promised = {f"snapshot-{n}" for what, n in acks if what == "snapshot"}
    present = {entry.name for entry in folder.glob("snapshot-*") if ".creating-" not in entry.name}
    assert promised <= present, f"LOST: the snapshots {promised - present} were promised"
    for name in present:
        with raxlog.open(folder / name, readonly=True, encoding=None) as store:
            digest = known_or_told(store, "s").digest
            assert digest == known[int(name.partition("-")[2])], f"HALF: {name} is not what was copied"


# -- errors, minded --------------------------------------------------------------------------


def minding(folder: Path, ack: Ack, *, steps: int, known: tuple[bytes, ...]) -> None:
    """A program that minds errors: it tries again in the same process, and after that opens anew.

    An error of raxlog's leaves open whether the step was done (after a failed flush it cannot
    be known); it looks, as any program must.
    """
    store: raxlog.Store | None = None
    n = failures = 0
    while n < steps:
        try:
            if store is None:
                store = raxlog.open(folder / "s.rax", encoding=None)
            if failures and contents(store, "s") == known[n + 1] != known[n]:
                n += 1
                ack(n)
                continue
            step(store, "s", n)
        except raxlog.RaxlogError:
            failures += 1
            if failures > 6:
                raise
            if failures > 3 and store is not None:
                store.close()
                store = None
            continue
        n += 1
        ack(n)
    if store is not None:
        store.close()


def full_map(folder: Path, ack: Ack, *, ceiling: int = 1 << 20) -> None:
    """A store that may not grow: it fills up, says so, is emptied, and is used on."""
    with raxlog.open(folder / "s.rax", max_map_size=ceiling, encoding=None) as store:
        stream = store.stream("s")
        n = 0
        full = 0
        while full < 3:
            try:
                stream.append({"n": n, "x": bytes([n % 256]) * 9000}, id=f"{n + 1}-1")
            except raxlog.StoreFull:
                full += 1
                ack(("full", n))
                first = next(iter(stream.range())).id
                stream.trim(minid=f"{n - 10}-1")
                ack(("trimmed", n - 10))
                assert next(iter(stream.range())).id != first
                continue
            n += 1
            ack(("step", n))


def check_full_map(folder: Path, acks: list[tuple[str, int]]) -> None:
    if not (folder / "s.rax").exists():
        assert not acks
        return
    said = max((n for what, n in acks if what == "step"), default=0)
    with raxlog.open(folder / "s.rax", encoding=None) as store:
        numbers = [int(entry.fields[b"n"]) for entry in store.stream("s").range()]
        assert not numbers or numbers == list(range(numbers[0], numbers[-1] + 1)), "HALF"
        last = numbers[-1] + 1 if numbers else 0
        assert said <= last <= said + 1, f"LOST: {last} are there, {said} were promised"
        usable(store)


def forgetful(folder: Path, ack: Ack, *, steps: int = 4) -> None:
    """Every row that leads from a consumer to its pending entries is forgotten."""

    def forget(txn: Any) -> None:
        for key in [bytes(key) for key in txn.cursor().iternext(values=False) if key[8] == keys.PENDING_BY_CONSUMER]:
            txn.delete(key)

    def forget_first(n: int) -> None:
        with raxlog.open(folder / "s.rax", max_readers=READERS, encoding=None) as store:
            store._env.commits.submit(forget, 30.0)
        ack(n)

    mixed(folder, forget_first, steps=steps)


def check_invariants(folder: Path, acks: list[int]) -> None:
    """Every invariant of the store, as raxlog.check() walks them."""
    report = raxlog.check(folder / "s.rax")
    assert report.ok, f"INVARIANT: {report.problems[:3]}"
