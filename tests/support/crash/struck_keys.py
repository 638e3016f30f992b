"""A group with a key in a process that goes on: an exception at a bytecode of one of its calls, in the plain kernels.

    python struck_keys.py FOLDER LIMITS SAMPLE SEED [FAULT]     of these; SAMPLE places are struck in each call, 0: all

Each round, entries of a few keys are appended, and some read and acknowledged, so that the group remembers rows of its
keys. Then comes the call that is struck. It is done, or nothing has changed, for this process and for one that opens
the store anew; the store is whole; and this process or the other one, in turns, works off what there is: never two
of a key at once, in their order where the group has one, none left over.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import raxlog
from raxlog.recovery.crashtest.run.interrupts import leaving
from raxlog.storage.log import ring
from raxlog.storage.log.transaction import WriteTransaction
from raxlog.stream.group.state import ConsumerState, GroupState
from stored_nodes import problems

ring.RING = ring.LEAST  # it is used again after some rounds
LIMITS: dict[str, tuple[type[BaseException], dict[str, Any]]] = {  # with what is raised
    "key": (raxlog.RaxlogError, {"key": "k"}),  # raxlog's own errors undo nothing where nothing has been changed
    "order": (KeyboardInterrupt, {"key": "k", "order": True}),
    "order, in flight": (raxlog.RaxlogError, {"key": "k", "order": True, "max_in_flight": 3}),
}
KEYS = "aaabb.cab"  # of the entries of a round, whose names are a1 a2 a3 b1 …
_RENEWED = 200  # rounds after which a stream is made anew: it remembers for a year what was cancelled
TRIES = 4  # of a place: how a call goes has to do with the pace of the machine, too
_OWN = re.compile(r"/stream/group/")
Place = tuple[CodeType, int]
State = tuple[Any, ...]


class Round:
    """The entries of a round, and what a group has made of them."""

    def __init__(self, store: raxlog.Store, limits: dict[str, Any], number: int) -> None:
        jobs = store.stream("jobs")
        if number % _RENEWED == 0:
            store.delete_stream("jobs")
            store.delete_stream("jobs.w.dead")
            jobs.create_group("w").configure(**limits)
            for consumer in "xyz":  # so that a call makes none, before all that it does
                jobs.group("w").create_consumer(consumer)
        self.group = jobs.group("w")
        ids = jobs.extend([{"n": 1} if key == "." else {"k": key} for key in KEYS], maxlen=len(KEYS))
        self.keys = {str(sid): key for sid, key in zip(ids, KEYS, strict=True)}
        self.name_of = {sid: f"{key}{KEYS[:n].count(key) + 1}" for n, (sid, key) in enumerate(self.keys.items())}
        self.id_of = dict(zip(self.name_of.values(), ids, strict=True))

    def seen(self, shown: list[Any]) -> State:
        """What show() says, by the names of the entries."""
        pending, lag, letters = shown
        return tuple((self.name_of[sid], *rest) for sid, *rest in pending), lag, [
            self.name_of[sid] for sid in letters if sid in self.name_of]


def show(store: raxlog.Store) -> list[Any]:
    """The pending entries, how many are new, and the letters."""
    group = store.stream("jobs").group("w")
    pending = [(str(row.id), row.consumer, row.parked, row.deliveries) for row in group.pending_entries()]
    held = sorted((one.name, one.pending) for one in group.consumers())
    assert sum(count for _, count in held) == sum(row[1] is not None for row in pending), held
    assert group.pending().parked == sum(row[2] for row in pending)
    return [pending, group.lag, [str(letter.origin) for letter in group.dead_letters]]


def held(now: Round) -> None:
    """Hold a1, behind which a2 and a3 are parked, and have b1 done."""
    now.group.read("x", count=2)
    now.group.ack(now.id_of["b1"])


def given_back(now: Round) -> None:
    """The same, and a1 waits for a retry."""
    held(now)
    now.group.nack(now.id_of["a1"], consumer="x")


def one_given_back(now: Round) -> None:
    """Hold a1, and have b1 wait for a retry, for whose key nothing else does."""
    now.group.read("x", count=2)
    now.group.nack(now.id_of["b1"], consumer="x")


CALLS: dict[str, tuple[Callable[[Round], object], Callable[[Round], object]]] = {  # what comes before it, and the call
    "read": (held, lambda now: now.group.read("x", count=9)),
    "ack": (held, lambda now: now.group.ack(now.id_of["a1"])),
    "read and ack": (held, lambda now: now.group.read("x", count=9, ack=[now.id_of["a1"]])),
    "cancel of what runs": (held, lambda now: now.group.cancel(now.id_of["a1"])),
    "cancel of the parked": (held, lambda now: now.group.cancel(now.id_of["a2"])),
    "cancel of the new": (held, lambda now: now.group.cancel(now.id_of["c1"])),
    "nack": (held, lambda now: now.group.nack(now.id_of["a1"], consumer="x")),
    "retry": (given_back, lambda now: now.group.read("y", count=9, claim_idle=1000)),
    "retry that parks none": (one_given_back, lambda now: now.group.read("y", count=1, claim_idle=1000)),
}


def work_off(store: raxlog.Store, keys: dict[str, str], limits: dict[str, Any]) -> None:
    """Take and acknowledge all that is left."""
    group = store.stream("jobs").group("w")
    done: list[raxlog.StreamID] = []
    for _ in range(len(keys) + 1):
        group.read("z", count=9, claim_idle=1000)
        held = [row.id for row in group.pending_entries() if row.consumer]
        names = [keys[str(sid)] for sid in held if keys[str(sid)] != "."]
        assert len(names) == len(set(names)), f"two of a key at once: {names}"
        assert len(held) <= limits.get("max_in_flight", len(held)), f"{len(held)} at once"
        if not held:
            break
        assert group.ack(*held) == len(held)
        done += held
    pending = group.pending()
    assert (pending.total, pending.parked, group.lag) == (0, 0, 0), f"left over: {pending}, {group.lag}; done: {done}"
    for key in {*keys.values()} - {"."} if "order" in limits else ():
        own = [sid for sid in done if keys[str(sid)] == key]
        assert own == sorted(own), f"not in their order: {done}"


class Another:
    """A process that opens the store anew for all that it is asked."""

    def __init__(self, path: Path, limits: dict[str, Any]) -> None:
        self._here, there = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._here.close()
            serve(there, path, limits)

    def show(self) -> list[Any]:
        """What it is shown."""
        return self._ask(None)

    def work_off(self, keys: dict[str, str]) -> None:
        """Have it work off what is left."""
        self._ask(keys)

    def end(self) -> None:
        """Let it go."""
        self._here.close()
        os.waitpid(self.pid, 0)

    def _ask(self, what: Any) -> Any:
        self._here.send(what)
        found, wrong = self._here.recv()
        assert not wrong, f"in another process: {wrong}"
        return found


def serve(asked: Connection, path: Path, limits: dict[str, Any]) -> None:
    """Answer until no question comes any more."""
    while True:
        try:
            keys = asked.recv()
        except EOFError:
            os._exit(0)
        try:
            with raxlog.open(path, readonly=keys is None) as store:  # else what is warm in the other process is not
                asked.send((show(store) if keys is None else work_off(store, keys, limits), ""))
        except BaseException as error:
            asked.send((None, repr(error)))


class Strike:
    """Makes calls, and raises in one before a bytecode of raxlog's: at a place, when it has come there so often."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind
        self._place: Place | None = None
        self._left = 0
        self.times = Counter[Place]()  # by place, in a call that is not struck
        self.where = ""

    def __call__(self, call: Callable[[Round], object], now: Round, place: Place | None, left: int = 1) -> str:
        """Make a call; the error it has raised."""
        self._place, self._left, self.where = place, left, ""
        self.times = Counter()
        sys.settrace(self._enter)
        try:
            call(now)
        except (raxlog.RaxlogError, KeyboardInterrupt) as error:
            return repr(error)
        finally:
            sys.settrace(None)
        return ""

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if not str(frame.f_globals.get("__name__")).startswith("raxlog.") or (
                self._place is not None and frame.f_code is not self._place[0]):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            place = frame.f_code, frame.f_lasti
            if self._place is None:
                self.times[place] += 1
            elif place == self._place:
                self._left -= 1
                if self._left == 0:
                    self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} (byte {frame.f_lasti})"
                    raise self._kind("raised by a test")
        return self._step


def forget_nothing() -> None:
    """A fault: what is remembered of the keys' rows outlives the call that is undone."""
    kept: dict[tuple[int, int], Any] = {}
    begin = GroupState.__init__

    def begun(self: GroupState, number: int, group: int, name: bytes) -> None:
        begin(self, number, group, name)
        self.key_rows = kept.setdefault((number, group), self.key_rows)

    GroupState.__init__ = begun  # type: ignore[method-assign]


def remember_first() -> None:
    """A fault: rows of keys are remembered before the group is marked as changed.

    Nor does a consumer's seen-time mark it, which is written where rounds are slow.
    """
    changed = GroupState.changed

    def late(self: GroupState, txn: WriteTransaction, consumer: ConsumerState | None = None) -> None:
        if sys._getframe(1).f_code.co_name not in ("write", "set_seen"):
            changed(self, txn, consumer)

    GroupState.changed = late  # type: ignore[method-assign]


FAULTS: dict[str, tuple[Callable[[], None], str, str]] = {  # with the call and the function that are struck
    "forgets nothing": (forget_nothing, "", ""),
    "remembers first": (remember_first, "retry that parks none", "write"),
}


def drawn(times: dict[str, Counter[Place]], sample: int, chance: random.Random) -> list[tuple[str, Place, int]]:
    """Where to strike, of how often each call comes to each place: in a call, at a place, at one of these times.

    A sample in each call, or all places of the group's own code, and then those of the layers below that any call has.
    """
    found: list[tuple[str, Place]] = []
    below: dict[Place, str] = {}
    for about, places in times.items():
        struck = [place for place in places if place[1] not in leaving(place[0])]
        if sample:
            struck = chance.sample(struck, sample)
        else:
            below |= {place: about for place in struck if not _OWN.search(place[0].co_filename)}
            struck = [place for place in struck if place not in below]
        found += [(about, place) for place in struck]
    found += [(about, place) for place, about in below.items()]
    return [(about, place, chance.randint(1, times[about][place])) for about, place in found]


def main(folder: Path, name: str, sample: int, seed: int, fault: str = "") -> dict[str, int]:
    """Strike all calls; how many exceptions each has met."""
    (kind, limits), chance, path = LIMITS[name], random.Random(seed), folder / "s.rax"
    raxlog.open(path).close()
    another, strike, met = Another(path, limits), Strike(kind), Counter[str]()
    plant, only, within = FAULTS.get(fault, (lambda: None, "", ""))
    plant()
    sys.unraisablehook = lambda found: None  # a destructor lets nothing out
    with raxlog.open(path, durability="relaxed") as store:
        states: dict[str, tuple[State, State]] = {}
        times: dict[str, Counter[Place]] = {}
        for about, (prepare, call) in CALLS.items():
            for number in range(2):  # the second one finds loaded what the first one loads
                now = Round(store, limits, number)
                prepare(now)
                before = now.seen(show(store))
                assert strike(call, now, None) == ""
                states[about] = before, now.seen(show(store))
                work_off(store, now.keys, limits)
            if only in ("", about):
                times[about] = Counter({place: many for place, many in strike.times.items()
                                        if within in ("", place[0].co_name)})
            assert states[about][0] != states[about][1], about
        places, said = drawn(times, sample, chance), "not struck"
        rounds = deque((*each, TRIES) for each in places)
        for number in count():
            if not rounds:
                break
            about, place, left, tries = rounds.popleft()
            prepare, call = CALLS[about]
            try:
                now = Round(store, limits, number)
                prepare(now)
                assert now.seen(show(store)) == states[about][0], "it goes on in another way"
                error = strike(call, now, place, left)
                said = f"{about}: {error} at time {left} in {strike.where}"
                met[about] += bool(strike.where)
                if tries > 1 and not strike.where:  # behind a commit of the other process a call goes another way
                    rounds.appendleft((about, place, left, tries - 1))
                found, theirs = now.seen(show(store)), now.seen(another.show())
                assert found == theirs, f"this process sees {found}, another one {theirs}"
                assert found in states[about][not error:], f"{found}, not one of {states[about]}"
                assert problems(path) == []
                if number % 3 or not strike.where:
                    work_off(store, now.keys, limits)
                else:
                    another.work_off(now.keys)
            except BaseException as wrong:
                raise AssertionError(f"{said}: {wrong!r}") from wrong
            if number % 1000 == 999:
                print(number + 1, "of", len(places), dict(met), file=sys.stderr, flush=True)
        another.end()
    assert met.total() > 0.9 * len(places), f"{met} of {len(places)} places were come to again"
    assert problems(path) == []
    return dict(met)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])))
