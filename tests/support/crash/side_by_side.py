"""Processes side by side on one store, for the explorer of schedules: each promise about other processes.

    SCENARIOS    by name: prepare(folder), the workloads, check(folder, acks)
    BESIDE       the same of limits and names that are kept beside the queue, by two steps: what must be found

What they append and read is acknowledged as an Operation of check_history, on the explorer's clock; other acks say what
was done to which entry. The ring has 16 KB, so entries of a few KB meet its end, and checkpoints come often.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import raxlog
from interrupted_steps import problems
from raxlog.crashtest import Operation, check_history, crash_point
from raxlog.storage.log import ring as log_ring
from raxlog.storage.log.log import Log
from raxlog.storage.log.ring import APPLIED, END, HEAD, Ring, unseal_applied
from raxlog.storage.log.transaction import Overlay

# A control runs in the processes of the workloads, as their environment says: on the plain sources.
_PLANTED = os.environ.get("RAXLOG_TEST_LOG", "")
if _PLANTED == "END moves before the write has returned":
    _pwrite = os.pwrite

    def _pwrite_late(descriptor: int, data: bytes, place: int) -> int:
        ring = _rings.get(descriptor)
        if ring is not None and len(data) > HEAD and place >= log_ring.HEADER:
            ring.words[END] = int.from_bytes(data[12:20], "little") + len(data)
            crash_point("control")
        return _pwrite(descriptor, data, place)

    _rings: dict[int, Any] = {}
    _ring_init = Ring.__init__

    def _noted_ring(self: Any, *args: Any, **options: Any) -> None:
        _ring_init(self, *args, **options)
        _rings.update({self.file: self, self.synced: self})

    Ring.__init__ = _noted_ring  # type: ignore[method-assign]
    os.pwrite = _pwrite_late  # type: ignore[assignment]
elif _PLANTED == "a checkpoint passes over a record":
    _follow, _changes, _passed = Log.follow_to_end, Overlay.changes, list[tuple[int, int]]()

    def _passing(self: Any, *args: Any) -> None:
        before = self.pos
        _follow(self, *args)
        _passed.append((before, self.pos))  # what it has just taken in, of others

    def _without(self: Any, after: int, upto: int) -> list[Any]:
        return [(key, value) for key, value in _changes(self, after, upto)
                if not any(low < self.rows[key].lsn <= high for low, high in _passed)]

    Log.follow_to_end = _passing  # type: ignore[method-assign]
    Overlay.changes = _without  # type: ignore[method-assign]
elif _PLANTED == "APPLIED is read after the snapshot":

    def _look_late(self: Any, raw: Any) -> tuple[int, int, int]:
        _, chain, _ = unseal_applied(raw.get(log_ring.APPLIED_KEY))
        crash_point("control")
        self.seen = raw.id(), max(unseal_applied(raw.get(log_ring.APPLIED_KEY))[0], self.ring.words[APPLIED]), chain
        return self.seen  # type: ignore[no-any-return]

    Log.look = _look_late  # type: ignore[method-assign]

Ack = Callable[[Any], None]
Check = Callable[[Path, list[Any]], None]
_LARGE = 3000  # bytes, of which five are a lap
_SOON = 1.0  # seconds of the explorer's clock in which what another process does must have been noticed


class Scenario(NamedTuple):
    """What runs side by side."""

    prepare: Callable[[Path], None]
    workloads: list[Callable[[Path, Ack], None]]
    check: Check


def opened(folder: Path, **options: Any) -> raxlog.Store:
    """The store of a scenario, by one of its processes: so what is set here is set in no other."""
    log_ring.RING = log_ring.LEAST = 1 << 14  # the least that a ring may have
    return raxlog.open(folder / "s.rax", **options)


def prepare(folder: Path, *, entries: int = 0, group: bool = False, size: int = 10) -> None:
    """A store with entries -1, -2 … in stream "a", which no history knows, and with a group."""
    with opened(folder) as store:
        if group:
            store.stream("a").create_group("g", start="0")
        for n in range(entries):
            store.stream("a").append({"v": -1 - n, "x": "x" * size})


# -- histories ---------------------------------------------------------------------------------


class Client:
    """One process' operations, each acknowledged once it has returned."""

    def __init__(self, process: int, ack: Ack) -> None:
        self.process = process
        self.ack = ack
        self._value = 1000 * process

    def do(self, work: Callable[[], dict[str, list[int]] | None], appends: dict[str, list[int]] | None = None) -> None:
        begin = time.monotonic()
        reads = work()
        self.ack(Operation(self.process, begin, time.monotonic(), appends or {}, reads or {}))

    def append(self, store: raxlog.Store, *names: str, size: int = 10, many: int = 1, flush: bool = False) -> None:
        """Append to one stream, or to several in a transaction, which also reads the first."""
        values = list(range(self._value, self._value + many))
        self._value += many
        rows = [{"v": value, "x": "x" * size} for value in values]

        def work() -> dict[str, list[int]] | None:
            if len(names) == 1:
                stream = store.stream(names[0])
                stream.append(rows[0]) if many == 1 else stream.extend(rows)
                if flush:
                    store.flush()
                return None
            with store.transaction() as tx:
                seen = _known(tx.stream(names[0]).range())
                for name in names:
                    tx.stream(name).extend(rows)
            return {names[0]: seen}

        self.do(work, dict.fromkeys(names, values))

    def read(self, store: raxlog.Store, *names: str) -> None:
        for name in names:
            self.do(lambda name=name: {name: _known(store.stream(name).range())})  # type: ignore[misc]


def _known(entries: Any) -> list[int]:
    return [value for entry in entries if (value := int(entry.fields["v"])) >= 0]


def check_all(folder: Path, acks: list[Any]) -> None:
    """What was acknowledged has one order, the store is whole, and it holds all of it."""
    with raxlog.open(folder / "s.rax") as store:
        end = time.monotonic() + 1e6  # the explorer's clock may be ahead
        found = {name: _known(store.stream(name).range()) for name in ("a", "b")}
        check_history([*(one for one in acks if isinstance(one, Operation)), Operation("end", end, end, {}, found)])
    assert problems(folder / "s.rax") == []


def appends(folder: Path, ack: Ack, process: int, *, size: int = 10, durability: str = "commit") -> None:
    with opened(folder, durability=durability) as store:
        client, flush = Client(process, ack), durability == "buffered"
        client.append(store, "a", size=size, flush=flush)
        client.read(store, "b", "a")
        if not flush:
            client.append(store, "b", "a", size=size)
        client.append(store, "a", many=2, size=size, flush=flush)
        client.read(store, "b")


def laps(folder: Path, ack: Ack, process: int, *, durability: str = "commit") -> None:
    with opened(folder, durability=durability) as store:
        client = Client(process, ack)
        for n in range(6):
            client.append(store, "ab"[n % 2], size=_LARGE)
        client.read(store, "a", "b")


def large(folder: Path, ack: Ack, process: int) -> None:
    with opened(folder) as store:
        client = Client(process, ack)
        client.append(store, "a", many=4, size=_LARGE)  # has no place in the ring
        client.append(store, "a")
        client.append(store, "b", "a", many=3, size=_LARGE)


def reads(folder: Path, ack: Ack, process: int, *, readonly: bool = False, times: int = 5) -> None:
    with opened(folder, readonly=readonly) as store:
        client = Client(process, ack)
        for _ in range(times):
            client.read(store, "a", "b")


def openings(folder: Path, ack: Ack, process: int) -> None:
    client = Client(process, ack)
    for _ in range(3):
        with opened(folder) as store:
            client.append(store, "a")
            client.read(store, "a")


def compacts(folder: Path, ack: Ack) -> None:
    with opened(folder) as store:
        store.compact()


def snapshots(folder: Path, ack: Ack, process: int) -> None:
    with opened(folder) as store:
        client = Client(process, ack)

        def work() -> dict[str, list[int]]:
            place = folder / "copy"
            store.snapshot(place)
            with raxlog.open(place, readonly=True) as copy:
                return {name: _known(copy.stream(name).range()) for name in ("a", "b")}

        client.do(work)


def follows(folder: Path, ack: Ack, process: int, *, until: int) -> None:
    """What a follower has seen, all see from then on; it may be behind, so its read begins at 0."""
    with opened(folder, readonly=True) as store:
        seen: list[int] = []
        for entry in store.stream("a").follow("0", timeout=60.0):
            seen.append(int(entry.fields["v"]))
            whole = len(seen) - 1
            while whole and seen[whole] == seen[whole - 1] + 1:  # what came last may be a part of an extend()
                whole -= 1
            ack(Operation(process, 0.0, time.monotonic(), {}, {"a": seen[:whole]}))
            if len(seen) == until:
                return
        raise AssertionError(f"the follower has seen {seen}, and no more has come for a minute")


def dies_while_writing(folder: Path, ack: Ack, process: int, *, at: int) -> None:
    """Killed right behind the write of a record: nothing was acknowledged of it, and it counts or does not."""
    store = opened(folder)
    client, pwrite, count = Client(process, ack), os.pwrite, 0

    def killed(descriptor: int, data: Any, place: int) -> int:
        nonlocal count
        written = pwrite(descriptor, data, place)
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/log"):
            count += 1
            if count == at:
                os._exit(0)
        return written

    os.pwrite = killed
    begin = time.monotonic()
    values = [1000 * process + n for n in range(at)]
    for _ in values[:-1]:
        client.append(store, "a")
    ack(Operation(process, begin, None, {"a": [values[-1]]}))
    store.stream("a").append({"v": values[-1], "x": ""})


def deletes(folder: Path, ack: Ack) -> None:
    """Two streams are made in one transaction, one is renamed, and they are deleted, again and again."""
    with opened(folder) as store:
        for n in range(2):
            with store.transaction() as tx:
                tx.stream("e").append({"n": n})
                tx.stream("d").append({"n": n})
            store.rename_stream("e", "c")
            store.delete_stream("c")
            store.delete_stream("d")


def looks_at_both(folder: Path, ack: Ack) -> None:
    """c and e are one stream, which is never there without d, nor twice."""
    with opened(folder) as store:
        for _ in range(5):
            names = store.streams()
            assert not {"c", "e"} & set(names) or "d" in names, names
            assert not {"c", "e"} <= set(names), names


# -- groups ------------------------------------------------------------------------------------


def produces(folder: Path, ack: Ack, *, count: int = 4, pause: float = 0.0) -> None:
    with opened(folder) as store:
        for n in range(count):
            ack(("made", store.stream("a").append({"v": n})))
            if pause:
                time.sleep(pause)


def consumes(folder: Path, ack: Ack, name: str, *, times: int = 3, block: float = 0.0, fused: bool = False) -> None:
    """Read and acknowledge; each delivery is acknowledged to the test as well."""
    with opened(folder) as store:
        group = store.stream("a").group("g")
        for _ in range(times):
            began = time.monotonic()
            for entry in group.read(name, count=1, timeout=block):
                ack(("got", entry.id, name, time.monotonic() - began))
                if fused:
                    with store.transaction() as tx:
                        tx.group("a", "g").ack(entry.id, consumer=name)
                        tx.stream("b").append({"v": entry.fields["v"]})
                    ack(("acked", entry.id, name))
                elif group.ack(entry.id, consumer=name):
                    ack(("acked", entry.id, name))


def check_deliveries(folder: Path, acks: list[Any], *, once: bool = True, all_of: int = 0) -> None:
    """Each entry was delivered once, acknowledged once, and what is pending is what was not acknowledged."""
    got = [one[1] for one in acks if one[0] == "got"]
    acked = Counter(one[1] for one in acks if one[0] == "acked")
    assert not once or len(set(got)) == len(got), got
    assert max(acked.values(), default=0) <= 1, acked
    with raxlog.open(folder / "s.rax") as store:
        stream = store.stream("a")
        group = stream.group("g")
        pending = {entry.id for entry in group.pending_entries()}
        assert pending == set(got) - set(acked), (pending, got, acked)
        made = [entry.id for entry in stream.range()]
        assert group.lag == len(made) - len(set(got)), (group.lag, made, got)
        assert len(acked) >= all_of, acked
    assert problems(folder / "s.rax") == []


def check_woken(folder: Path, acks: list[Any]) -> None:
    """A consumer that waits is woken by what comes, not by the end of its patience."""
    check_deliveries(folder, acks, all_of=3)
    late = [one for one in acks if one[0] == "got" and one[3] > 0.2 + _SOON]
    assert not late, late


def takes_and_sleeps(folder: Path, ack: Ack, *, seconds: float, renews: bool) -> None:
    """A worker with a lease of a minute, whose job takes longer."""
    with opened(folder) as store:
        group = store.stream("a").group("g")
        for entry in group.read("slow", count=1):
            ack(("got", entry.id, "slow", 0.0))
            for _ in range(6):
                time.sleep(seconds / 6)
                if renews:
                    group.renew("slow", entry.id)
            try:
                group.ack(entry.id, consumer="slow")
            except raxlog.NotOwner:
                continue  # taken over
            ack(("acked", entry.id, "slow"))


def takes_over(folder: Path, ack: Ack, *, seconds: float) -> None:
    """Takes over what has been idle for a minute."""
    with opened(folder) as store:
        group = store.stream("a").group("g")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for entry in group.autoclaim("other", min_idle=60.0).entries:
                ack(("got", entry.id, "other", 0.0))
                if group.ack(entry.id, consumer="other"):
                    ack(("acked", entry.id, "other"))
            time.sleep(7.0)


def defers(folder: Path, ack: Ack, *, count: int = 2) -> None:
    with opened(folder) as store:
        for n in range(count):
            store.stream("a").defer({"v": n}, delay=5.0)


def plans(folder: Path, ack: Ack, name: str) -> None:
    """Makes a schedule, as each program does that starts, and consumes its ticks."""
    with opened(folder) as store:
        store.stream("a").schedule("beat", {"v": 0}, every=2.0, coalesce="all")
    consumes(folder, ack, name, times=2, block=10.0)


def check_ticks(folder: Path, acks: list[Any]) -> None:
    check_deliveries(folder, acks, all_of=2)
    with raxlog.open(folder / "s.rax") as store:
        times = [entry.scheduled for entry in store.stream("a").range()]
        assert all(None not in pair and pair[1] - pair[0] == timedelta(seconds=2) for pair in pairwise(times)), times


def takes_names(folder: Path, ack: Ack, *, count: int = 3) -> None:
    """Append under one name; what came of it goes to stream "log" in the same commit."""
    with opened(folder) as store:
        for n in range(count):
            with store.transaction() as tx:
                made = tx.stream("a").append({"v": n}, unique="x")
                tx.stream("log").append({"what": "new" if made.is_new else "kept", "id": str(made)})
            ack(("appended", str(made)))


def ends_names(folder: Path, ack: Ack, *, times: int = 4) -> None:
    with opened(folder) as store:
        for _ in range(times):
            for entry in store.stream("a").group("g").read("one", count=1):
                with store.transaction() as tx:
                    tx.group("a", "g").ack(entry.id)
                    tx.stream("log").append({"what": "done", "id": str(entry.id)})
                ack(("done", str(entry.id)))


def check_names(folder: Path, acks: list[Any]) -> None:
    """One entry at a time has the name: no second one comes before it is done, none is refused after that."""
    holder = ""
    with raxlog.open(folder / "s.rax") as store:
        for step in store.stream("log").range():
            what, sid = step.fields["what"], step.fields["id"]
            assert what in ("kept", "done") if holder else what == "new", (what, sid, holder)
            assert what == "new" or sid == holder, (what, sid, holder)
            holder = {"new": sid, "kept": holder, "done": ""}[what]
    assert problems(folder / "s.rax") == []


def prepare_limits(folder: Path, keys: str = "xxyx", **limits: Any) -> None:
    """Four entries of two keys, for a group with limits."""
    prepare(folder, group=True)
    with opened(folder) as store:
        store.stream("a").extend([{"v": n, "k": key} for n, key in enumerate(keys)])
        store.stream("a").group("g").configure(**limits)


def works(folder: Path, ack: Ack, name: str, *, times: int = 4, retries: bool = False) -> None:
    """Work for a while on each entry; the first time, where it ``retries``, in vain."""
    with opened(folder) as store:
        group = store.stream("a").group("g")
        for _ in range(times):
            for entry in group.read(name, count=2, timeout=30.0, claim_idle=1000.0):
                began, [row] = time.monotonic(), group.pending_entries(entry.id, entry.id)
                delivered = time.time() - (row.idle or 0.0)
                time.sleep(0.01)
                ack(("worked", entry.id, entry.fields["k"], began, time.monotonic(), delivered))
                if retries and entry.deliveries == 1:
                    group.nack(entry.id, consumer=name, delay=1.0)
                elif group.ack(entry.id, consumer=name):
                    ack(("acked", entry.id))


def works_beside(folder: Path, ack: Ack, name: str) -> None:
    """Work on one entry, once its key is marked in the state: a look, and then the mark."""
    with opened(folder) as store:
        group = store.stream("a").group("g")
        for entry in group.read(name, count=1):
            while "busy" in store.state:
                time.sleep(0.01)
            store.state["busy"] = name
            began = time.monotonic()
            time.sleep(0.01)
            ack(("worked", entry.id, entry.fields["k"], began, time.monotonic(), began))
            store.state.pop("busy", None)
            if group.ack(entry.id, consumer=name):
                ack(("acked", entry.id))


def takes_names_beside(folder: Path, ack: Ack) -> None:
    """Append under a name, once it is not found in the state: a look, and then the entry."""
    with opened(folder) as store:
        if "x" not in store.state:
            with store.transaction() as tx:
                tx.state["x"] = made = str(tx.stream("a").append({"v": 0}))
                tx.stream("log").append({"what": "new", "id": made})


def check_limits(folder: Path, acks: list[Any], *, by_key: bool, seconds: float = 0.0, in_order: bool = True) -> None:
    """Two entries, or two of one key, were delivered in their order, and worked on one after the other.

    With a rate they need not be the latter, but were delivered so many seconds apart.
    """
    runs = sorted((one for one in acks if one[0] == "worked"), key=lambda one: one[5])
    for (_, sid, key, _, ended, delivered), (_, other, of, began, _, at) in combinations(runs, 2):
        if not by_key or key == of:
            assert sid <= other or not in_order, runs
            assert at - delivered >= seconds - 0.002 if seconds else ended <= began, runs
    acked = [one[1] for one in acks if one[0] == "acked"]
    with raxlog.open(folder / "s.rax") as store:
        assert sorted(acked) == [entry.id for entry in store.stream("a")]
        assert store.stream("a").group("g").pending().total == 0
    assert problems(folder / "s.rax") == []


SCENARIOS: dict[str, Scenario] = {
    "append": Scenario(prepare, [partial(appends, process=n) for n in (1, 2, 3)], check_all),
    "relaxed": Scenario(prepare, [partial(appends, process=1, durability="relaxed"), partial(appends, process=2),
                                  partial(reads, process=3)], check_all),
    "buffered": Scenario(prepare, [partial(appends, process=1, durability="buffered"), partial(appends, process=2)],
                         check_all),
    "laps": Scenario(prepare, [partial(laps, process=1), partial(laps, process=2, durability="relaxed"),
                               partial(reads, process=3)], check_all),
    "large": Scenario(prepare, [partial(large, process=1), partial(laps, process=2), partial(reads, process=3)],
                      check_all),
    "readonly": Scenario(prepare, [partial(laps, process=1), partial(reads, process=2, readonly=True),
                                   partial(reads, process=3, readonly=True)], check_all),
    "follow": Scenario(prepare, [partial(appends, process=1), partial(appends, process=2),
                                 partial(follows, process=3, until=8)], check_all),
    "openings": Scenario(prepare, [partial(openings, process=n) for n in (1, 2, 3)], check_all),
    "compaction": Scenario(partial(prepare, entries=20, size=500),
                           [compacts, partial(appends, process=1), partial(reads, process=2, times=3)], check_all),
    "snapshot": Scenario(prepare, [partial(snapshots, process=1), partial(laps, process=2)], check_all),
    "orphan": Scenario(prepare, [partial(dies_while_writing, process=1, at=2), partial(openings, process=2),
                                 partial(reads, process=3)], check_all),
    "deletion": Scenario(prepare, [deletes, looks_at_both, partial(appends, process=1)], check_all),
    "group": Scenario(partial(prepare, entries=3, group=True),
                      [produces, partial(consumes, name="one"), partial(consumes, name="two")], check_deliveries),
    "read and append": Scenario(partial(prepare, entries=3, group=True),
                                [partial(consumes, name="one", fused=True), partial(consumes, name="two", fused=True)],
                                check_deliveries),
    "waking": Scenario(partial(prepare, group=True),
                       [partial(produces, count=3, pause=0.2), partial(consumes, name="one", block=30.0)], check_woken),
    "lease": Scenario(partial(prepare, entries=1, group=True),
                      [partial(takes_and_sleeps, seconds=120.0, renews=True), partial(takes_over, seconds=100.0)],
                      check_deliveries),
    "lease lost": Scenario(partial(prepare, entries=1, group=True),
                           [partial(takes_and_sleeps, seconds=120.0, renews=False), partial(takes_over, seconds=100.0)],
                           partial(check_deliveries, once=False)),
    "deferred": Scenario(partial(prepare, group=True),
                         [defers, partial(consumes, name="one", block=10.0), partial(consumes, name="two", block=10.0)],
                         partial(check_deliveries, all_of=2)),
    "schedule": Scenario(partial(prepare, group=True), [partial(plans, name="one"), partial(plans, name="two")],
                         check_ticks),
    "unique": Scenario(partial(prepare, group=True), [takes_names, takes_names, ends_names], check_names),
    "keys": Scenario(partial(prepare_limits, key="k", order=True),
                     [partial(works, name="one", retries=True), partial(works, name="two", retries=True)],
                     partial(check_limits, by_key=True)),
    "limit": Scenario(partial(prepare_limits, max_in_flight=1),
                      [partial(works, name="one"), partial(works, name="two")], partial(check_limits, by_key=False)),
    "rate": Scenario(partial(prepare_limits, rate=(1, 5.0)), [partial(works, name="one"), partial(works, name="two")],
                     partial(check_limits, by_key=False, seconds=4.98)),
    "rate by key": Scenario(partial(prepare_limits, rate=(1, 5.0), rate_key="k"),
                            [partial(works, name="one"), partial(works, name="two")],
                            partial(check_limits, by_key=True, seconds=4.98)),
}
BESIDE: dict[str, Scenario] = {
    "keys": Scenario(partial(prepare_limits, keys="xx"),
                     [partial(works_beside, name="one"), partial(works_beside, name="two")],
                     partial(check_limits, by_key=True, in_order=False)),
    "unique": Scenario(partial(prepare, group=True), [takes_names_beside, takes_names_beside], check_names),
}
