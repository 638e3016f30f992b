"""A store with one bit flipped, read in every way: by raxlog itself, and by check's walk.

    sound store ── flip a bit ──> copy ── every read of the engine ──> right | named | WRONG | missed
                                       └─ check's walk, in process ──> problems
    worker (forked): one flip after the other, until one kills it; then another goes on behind it

A read is *named* if it raises one of raxlog's errors, *missed* if it is a look-up of one key (or
needs one: a name) that has vanished. Everything else that differs from the sound store is WRONG.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import shutil
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lmdb
import raxlog
from children import Child
from moments import moment
from raxlog.recovery.check.check import StoreWalk
from raxlog.storage.format import keys
from raxlog.storage.log import ring

Flip = int | tuple[int, int]  # a bit; or the places of two pointers, the first of which becomes as the second

RIGHT, NAMED, MISSED, WRONG = "right", "named", "missed", "wrong"
STREAMS: dict[bytes, dict[str, Any]] = {
    b"orders": {"node_max_entries": 6},
    b"history": {"node_max_entries": 40, "compression": "zstd"},
    b"mail": {},
}
GROUPS = {b"orders": (b"audit", b"billing"), b"history": (b"audit",), b"mail": ()}
CONSUMERS = (b"one", b"two")
ENTRIES = 200
FAR = 100_000_000_000_000  # ms; nothing that is deferred to it comes
META_BYTES = 152  # of a meta page, that hold something
LOG = 1 << 20  # bytes of a ring without a checkpoint: the workloads of the crash tests, once loaded, have a smaller one
FEWER = 0.32  # of these, where many flips are to be tried: enough for nodes and pages of every kind


def build(path: Path, share: float = 1.0, logged: bool = False) -> None:
    """Streams of every make, with deletions, groups with pending and released entries, state.

    ``share``: of the entries. ``logged``: the log has changes of most kinds of rows that data.mdb does not have yet.
    """
    rng = random.Random(5)
    entries = int(ENTRIES * share)
    middle, late = int(100 * share), int(150 * share)
    with patch.object(ring, "RING", LOG), raxlog.open(path, durability="relaxed", encoding=None) as store:
        for name, options in STREAMS.items():
            stream = store.stream(name, **options)
            ids = [f"{10 + number // 2}-{number % 2}" for number in range(entries)]
            stream.extend([{"n": number, "text": "some words " * 3} for number in range(entries)], ids)
            stream.trim(maxlen=entries - 9)
            stream.delete(*ids[int(40 * share) : int(58 * share)], ids[middle], ids[middle + 1],
                          *ids[late : late + 3], ids[-2])
            for group in GROUPS[name]:
                stream.create_group(group, "0")
                handle = stream.group(group)
                for consumer in CONSUMERS:
                    handle.read(consumer, count=int(65 * share))
                delivered = [entry.id for entry in stream.range(count=int(120 * share))]
                handle.ack(*rng.sample(delivered, int(50 * share)))
                handle.nack(*rng.sample(delivered, int(12 * share)))
                handle.keep_results({sid: raxlog.Result(sid.seq) for sid in delivered[:9]}, FAR / 1000)
        for number in range(18):
            store.stream("orders").append({"n": number}, producer=f"p{number % 3}", idempotent_id=f"i{number}")
            store.state[f"key{number}"] = b"v" * number
            store.stream("orders").defer({"n": number}, at=moment(FAR + number))
    if not logged:
        return
    with raxlog.open(path, durability="relaxed", encoding=None) as store:
        for name in STREAMS:
            stream = store.stream(name)
            stream.delete(*[entry.id for entry in stream.range()][::7])
            for group in GROUPS[name]:
                for consumer in CONSUMERS:
                    read = stream.group(group).read(consumer, count=5)
                    stream.group(group).ack(*[entry.id for entry in read[:2]])
            stream.append({"n": "last"})
        for number in range(0, 18, 3):
            store.state[f"key{number}"] = b"w" * number
        with store._env.read() as view:
            assert len(view.rows) > 20
        copy = path.with_name(f"{path.name}-copy")
        shutil.copytree(path, copy)
    shutil.rmtree(path)
    copy.rename(path)


def kept_result(group: raxlog.Group, sid: raxlog.StreamID) -> raxlog.Result | None:
    """The result that is looked up; None where none is found, whatever is said instead."""
    result = group.wait_result(sid, 0)
    return result if result.status in ("ok", "error", "dead") else None


def reads(store: raxlog.Store, rng: random.Random, share: float) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every way to read, each with what it depends on: the names in front of the colon."""
    yield ":streams", store.streams
    yield ":state", lambda: dict(store.state.items())
    for number in rng.sample(range(18), 3):
        yield ":state", lambda number=number: store.state.get(f"key{number}")
    for name in STREAMS:
        stream = store.stream(name)
        shown = name.decode()
        ids = [raxlog.StreamID(10 + number // 2, number % 2) for number in range(int(ENTRIES * share))]
        yield f"{shown}:range", lambda stream=stream: rows(stream.range())
        yield f"{shown}:reverse", lambda stream=stream: rows(stream.range(reverse=True))
        yield f"{shown}:len", lambda stream=stream: len(stream)
        yield f"{shown}:deferred", lambda stream=stream: [(one.due, one.fields) for one in stream.deferred()]
        yield f"{shown}:count", lambda stream=stream: stream.count("20", "120")
        for sid in rng.sample(ids, 4):
            yield f"{shown}:get", lambda stream=stream, sid=sid: (entry := stream.get(sid)) and entry.pairs
            yield f"{shown}:rank", lambda stream=stream, sid=sid: stream.rank(sid)
            yield f"{shown}:part", lambda stream=stream, sid=sid: rows(stream.range(sid, count=9))
        yield f"{shown}:groups", lambda stream=stream: [(group.name, group.pending) for group in stream.groups()]
        for group in GROUPS[name]:
            handle = stream.group(group)
            needs = f"{shown}/{group.decode()}"
            yield f"{needs}:pending", lambda handle=handle: [
                (one.id, one.deliveries) for one in handle.pending_entries()]
            yield f"{needs}:summary", lambda handle=handle: handle.pending()
            for sid in ids[5:14]:
                yield f"{needs}:get", lambda handle=handle, sid=sid: kept_result(handle, sid)
            yield f"{needs}:consumers", lambda handle=handle: [(c.name, c.pending) for c in handle.consumers()]
            for consumer in CONSUMERS:
                whose = f"{needs}/{consumer.decode()}"
                yield f"{whose}:of", lambda handle=handle, c=consumer: [
                    one.id for one in handle.pending_entries(consumer=c)]
                yield f"{whose}:history", lambda handle=handle, c=consumer: rows(handle.read(c, ids="0"))
            whose = f"{needs}/{CONSUMERS[0].decode()}"
            if name == b"history":
                yield f"{whose}:autoclaim", lambda handle=handle: handle.autoclaim_ids(CONSUMERS[0], count=40)
            yield f"{whose}:new", lambda handle=handle: rows(handle.read(CONSUMERS[0], count=40))
            yield f"{whose}:claim", lambda handle=handle: sorted(claimed(handle))


def claimed(handle: raxlog.Group) -> list[Any]:
    """All that is pending, taken over, and all that is new."""
    return rows(handle.read(CONSUMERS[1], count=1000, claim_idle=0))


def rows(entries: Any) -> list[Any]:
    """Entries as what a user sees of them."""
    return [(entry.id, entry.pairs) for entry in entries]


def names_found(store: raxlog.Store, needs: str) -> bool:
    """Whether LMDB finds the rows of the names that a read goes by."""
    parts = [part.encode() for part in needs.split("/") if part]
    try:
        with store._env.read() as txn:
            number = 0
            group = 0
            for place, part in enumerate(parts):
                if place == 0:
                    key = keys.NAMES + part
                elif place == 1:
                    key = keys.family(number, keys.GROUP_NAME) + keys.name_suffix(part)
                else:
                    key = keys.group_family(number, keys.CONSUMER_NAME, group) + keys.name_suffix(part)
                value = txn.get(key)
                if value is None:
                    return False
                row = raxlog.storage.format.records.unseal(key, value)
                number, group = (row[0], 0) if place == 0 else (number, row[0])
    except (raxlog.RaxlogError, lmdb.Error):
        return True
    return True


@dataclass
class Outcome:
    """What one flip did to the reads, and how many problems the check found (where it mattered)."""

    flip: Flip
    verdicts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    problems: int = 0
    killed: str = ""


class Flipper:
    """Flips bits of one sound store, and reads what comes of it."""

    def __init__(self, sound: Path, folder: Path, seed: int, share: float = 1.0) -> None:
        self.data = (sound / "000001" / "data.mdb").read_bytes()
        self.sound = sound
        self.folder = folder
        self.seed = seed
        self.share = share
        self.truth: list[Any] = []
        self.truth = self.answers(self._placed(None))

    def _placed(self, flip: Flip | None) -> Path:
        path = self.folder / f"flip-{os.getpid()}"
        shutil.rmtree(path, ignore_errors=True)
        (path / "000001").mkdir(parents=True)
        (path / "CURRENT").write_text("000001\n")
        (path / "shared").write_bytes(bytes(4096))
        data = self.data
        if isinstance(flip, tuple):
            data = data[: flip[0]] + data[flip[1] : flip[1] + 2] + data[flip[0] + 2 :]
        elif flip is not None:
            data = data[: flip // 8] + bytes([data[flip // 8] ^ 1 << flip % 8]) + data[flip // 8 + 1 :]
        (path / "000001" / "data.mdb").write_bytes(data)
        shutil.copy(self.sound / "000001" / "log", path / "000001" / "log")
        return path

    def answers(self, path: Path) -> list[Any]:
        """What every read gives: its answer, or the error that it raises."""
        found: list[Any] = []
        try:
            store = raxlog.open(path, durability="relaxed", encoding=None)
        except raxlog.RaxlogError as error:
            return [error]
        try:
            for needs, read in reads(store, random.Random(self.seed), self.share):
                try:
                    answer = read()
                except raxlog.RaxlogError as error:
                    answer = error
                except Exception as error:  # a slip of ours, which no user should see
                    answer = repr(error)
                right = len(found) < len(self.truth) and answer == self.truth[len(found)][1]
                found.append((needs, answer, right or names_found(store, needs.partition(":")[0])))
        finally:
            with contextlib.suppress(raxlog.CorruptionError):  # of a page that a last checkpoint would change
                store.close()
        return found

    def problems(self, path: Path) -> int:
        """How many problems the walk of a check finds, look-ups included."""
        return len(problems_of(path))

    def outcome(self, flip: Flip) -> Outcome:
        """Read the store with this bit flipped."""
        result = Outcome(flip)
        self._compare(self.answers(self._placed(flip)), result)
        if set(result.verdicts) != {RIGHT}:
            result.problems = self.problems(self._placed(flip))
        return result

    def _compare(self, found: list[Any], result: Outcome) -> None:
        if isinstance(found[0], Exception):
            result.verdicts[NAMED] += 1
            return
        upset = False  # a write that was refused leaves the group as it was: what follows differs rightly
        for (needs, answer, there), (_, truth, _) in zip(found, self.truth, strict=True):
            group = needs.partition(":")[0].count("/") > 0
            if isinstance(answer, Exception) and not isinstance(truth, Exception):
                vanished = isinstance(answer, raxlog.NoGroup | raxlog.NoStream)
                result.verdicts[MISSED if vanished else NAMED] += 1
                upset = True
            elif answer == truth:
                result.verdicts[RIGHT] += 1
            elif not there or (needs.endswith(":get") and answer is None) or self._is_missed_state(needs, answer):
                result.verdicts[MISSED] += 1
                result.missed.append(needs)
                upset = True
            elif group and upset:
                result.verdicts["upset"] += 1
            else:
                result.verdicts[WRONG] += 1
                result.wrong.append(needs)

    @staticmethod
    def _is_missed_state(needs: str, answer: Any) -> bool:
        """A key of state that is looked up and has vanished is missed; a listing tells."""
        return needs.endswith(":state") and answer is None

    def run(self, flips: Sequence[Flip]) -> list[Outcome]:
        """The outcomes of all flips; a flip that kills the process that reads it is one as well."""
        done: list[Outcome] = []
        while len(done) < len(flips):
            left = flips[len(done) :]

            def work(say: Callable[[Any], None], left: Sequence[Flip] = left) -> None:
                faulthandler.disable()
                for number in (signal.SIGALRM, signal.SIGPROF):
                    signal.signal(number, signal.SIG_DFL)
                for flip in left:  # a hang is a death too: LMDB goes round in a circle, or something is waited for
                    signal.setitimer(signal.ITIMER_PROF, 4)
                    signal.alarm(60)
                    say(self.outcome(flip))

            with Child(work) as child:
                done += child.all_heard()
                child.wait()
                if len(done) < len(flips):
                    ending = f"signal {-child.status}" if (child.status or 0) < 0 else f"status {child.status}"
                    done.append(Outcome(flips[len(done)], killed=ending))
                    done[-1].problems = self._problems_in_child(done[-1].flip)
        return done

    def _problems_in_child(self, flip: Flip) -> int:
        def work(say: Callable[[Any], None]) -> None:
            faulthandler.disable()  # its death is counted, and need not be told of
            say(self.problems(self._placed(flip)))

        with Child(work) as child:
            found: int = (child.all_heard() or [1])[0]  # a check that dies has found it
        return found


def problems_of(path: Path) -> list[dict[str, Any]]:
    """The problems that a check's walk finds, in this process, look-ups included."""
    found: list[dict[str, Any]] = []

    def tell(message: dict[str, Any]) -> None:
        if "problem" in message:
            found.append(message["problem"])

    generation = path / "000001"
    walk = StoreWalk(generation, tell)
    try:
        walk.choose_meta(None)
        try:
            if not walk.begin():
                return found
            walk.verify()
            walk.walk()
            if walk.is_cut_off():
                return [*found, {"what": "cut off"}]
            with lmdb.open(str(generation), readonly=True, lock=False, map_size=1 << 30) as env, env.begin() as txn:
                walk.look_up(txn)
        except (raxlog.RaxlogError, lmdb.Error) as error:
            found.append({"what": str(error)})
    finally:
        walk.close()
    return found


def uniform(data: bytes, count: int, seed: int) -> list[int]:
    """Bits anywhere in the file."""
    rng = random.Random(seed)
    return [rng.randrange(8 * len(data)) for _ in range(count)]


def in_heads(data: bytes, count: int, seed: int, first: int = 96) -> list[int]:
    """Bits in the first bytes of pages, where heads and pointers are."""
    rng = random.Random(seed)
    return [8 * (4096 * rng.randrange(len(data) // 4096) + rng.randrange(first)) + rng.randrange(8)
            for _ in range(count)]


def in_pointers(data: bytes, count: int, seed: int) -> list[Flip]:
    """Of two rows of a leaf, one shown in the place of the other: what a flip in the pointers of a page may do.

    One in four in the place of the last, which LMDB compares with what it looks for, to stay in the leaf or leave it.
    """
    found: list[Flip] = []
    lasts: list[Flip] = []
    for page in range(2 * 4096, len(data), 4096):
        number, _, flags, lower, _ = struct.unpack_from("<QHHHH", data, page)
        if number == page // 4096 and flags == 2:
            places = range(page + 16, page + lower, 2)
            found += [(one, other) for one in places[:-1] for other in places if one != other]
            lasts += [(places[-1], other) for other in places[:-1]]
    rng = random.Random(seed)
    return rng.sample(lasts, min(len(lasts), count // 4)) + rng.sample(found, count - min(len(lasts), count // 4))


def in_metas(data: bytes, count: int, seed: int) -> list[int]:
    """Bits in the two meta pages, each one once; all 2,432 of them where that many are wanted."""
    bits = [8 * (4096 * page + byte) + bit for page in (0, 1) for byte in range(META_BYTES) for bit in range(8)]
    return random.Random(seed).sample(bits, min(count, len(bits)))


def kind_of(outcome: Outcome) -> str:
    """What one flip did, in a word or two; the worst of it."""
    if outcome.killed:
        return "killed"
    if outcome.wrong:
        return "wrong"
    if outcome.missed:
        return "missed"
    return "refused" if outcome.verdicts[NAMED] else "no effect"


def as_json(outcomes: list[Outcome]) -> str:
    """A table of what happened."""
    return json.dumps(Counter(kind_of(outcome) for outcome in outcomes))
