"""The second reader's other half: what docs/format-groups.md describes, read from that page alone.

    state        17                           sections of that page
    stream ── groups ── consumers             14, 15
           │        └── PEL ── indexes        16: both ways
           ├─ idempotent appends              18
           ├─ deferred entries                22
           ├─ results                         23
           └─ schedules                       24

Like second_reader.py it shares no line with raxlog, reads everything at once, and raises Wrong
where one of the invariants of section 20 does not hold.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import xxhash
from second_reader import ID, Families, Store, demand, families_of, read_keys, record, understand

Rows = dict[bytes, bytes]  # the rest of the key behind number and kind (and group) -> value


@dataclass
class Pending:
    """A pending entry. ``consumer`` None: released, and ``time`` is when it falls due."""

    id: ID
    consumer: bytes | None
    time: int
    count: int
    key: bytes = b""  # and what the entry is to it, in the last byte


@dataclass
class Consumer:
    """A consumer, by the names of section 15.2."""

    name: bytes
    seen: int
    active: int
    pending: int


@dataclass
class Group:
    """A group: its record (15.1), its consumers by name, its PEL by ID, what it has released."""

    number: int
    last: ID
    entries_read: int
    pending: int
    moves: int
    consumers: dict[bytes, Consumer]
    pel: dict[ID, Pending]
    released: list[ID]  # in the order in which they are handed out
    limits: list[int] | None  # most held, entries in a window, the window in ms, burst, turn
    key: list[Any] | None  # field, entries of one key, whether retries keep it, most parked, parked
    places: dict[ID, tuple[bytes, int]]  # of pending entries: key, place


@dataclass
class Remembered:
    """An idempotent append that is remembered: section 18."""

    producer: bytes
    idempotent_id: bytes
    id: ID


@dataclass
class Deferred:
    """An entry that is deferred: section 22."""

    due: int
    number: int
    pairs: list[tuple[bytes, bytes]]
    schedule: bytes | None


@dataclass
class Schedule:
    """A schedule: section 24. ``tick`` is (nominal, due, number)."""

    definition: list[Any]
    last: int | None
    tick: list[int] | None


@dataclass
class Unique:
    """Which entry has a unique name: section 25. ``entry`` is its ID, or (due, number) of a deferred one."""

    until: str | int
    entry: ID
    is_deferred: bool
    length: int = 0


@dataclass
class Rest:
    """What a store holds beside its streams' entries: of each stream, by its name."""

    streams: Store
    state: dict[bytes, bytes]
    groups: dict[bytes, dict[bytes, Group]]
    remembered: dict[bytes, list[Remembered]]
    deferred: dict[bytes, list[Deferred]]
    results: dict[bytes, dict[bytes, tuple[int, bytes]]]  # by name: when they expire, their values
    schedules: dict[bytes, dict[bytes, Schedule]]
    unique: dict[bytes, dict[bytes, Unique]]


def read_all(path: Path) -> Rest:
    """Everything in the store at ``path``. Wrong if anything in it does not hold."""
    return understand_all(read_keys(path))


def understand_all(everything: dict[bytes, bytes]) -> Rest:
    """What these keys and values are; the streams and all checksums are seen to first."""
    streams = understand(everything)
    families = families_of(everything)
    state = {key[9:]: record(value)[0] for key, value in families.get((0, 0x04), {}).items()}
    demand(all(isinstance(value, bytes) for value in state.values()), "a state value is no bin")
    groups, remembered, deferred, results, schedules, unique = {}, {}, {}, {}, {}, {}
    for name, stream in streams.streams.items():
        groups[name] = read_groups(stream.number, families)
        demand(len(groups[name]) == stream.groups, "the header counts other groups")
        below = [group.number < stream.next_group for group in groups[name].values()]
        demand(all(below), "a group has a number that was never given")
        remembered[name] = read_remembered(stream.number, families)
        deferred[name] = read_deferred(stream.number, families)
        results[name] = read_results(stream.number, families)
        schedules[name] = read_schedules(stream.number, families, deferred[name])
        unique[name] = read_unique(stream.number, families)
    return Rest(streams, state, groups, remembered, deferred, results, schedules, unique)


def rows_of(families: Families, number: int, kind: int, group: int | None = None) -> Rows:
    """The rows of one kind, of one group if given, under what their keys end with."""
    prefix = b"" if group is None else group.to_bytes(4, "big")
    return {
        key[9 + len(prefix) :]: value
        for key, value in families.get((number, kind), {}).items()
        if key[9:].startswith(prefix)
    }


def whole(digits: bytes) -> int:
    """A number in a key."""
    return int.from_bytes(digits, "big")


def identity(digits: bytes) -> ID:
    """An ID in 16 bytes."""
    demand(len(digits) == 16, "an ID has not 16 bytes")
    return whole(digits[:8]), whole(digits[8:])


# -- sections 14 and 15: names, groups, consumers ------------------------------------------


def in_key(name: bytes) -> bytes:
    """Section 14: a name as it stands in a key."""
    return b"\x00" + name if len(name) <= 400 else b"\x01" + hashlib.sha256(name).digest()


def named(names: Rows, records: Rows) -> dict[int, list[Any]]:
    """The rows of groups or consumers by their numbers: invariants 15 and 16."""
    leads = {key: record(value)[0] for key, value in names.items()}
    rows = {whole(key): record(value) for key, value in records.items()}
    demand(sorted(leads.values()) == sorted(rows), "names and records differ")
    demand(all(in_key(rows[n][0]) == key for key, n in leads.items()), "a record bears another name")
    return rows


def numbers_of(row: list[Any], count: int, signed: int) -> list[int]:
    """Section 5.4: the numbers at place 1 of a row; the one that may be negative is signed."""
    demand(len(row[1]) == 8 * count, "a record has another number of numbers")
    parts = [row[1][at : at + 8] for at in range(0, 8 * count, 8)]
    return [int.from_bytes(part, "little", signed=at == signed) for at, part in enumerate(parts)]


def read_groups(number: int, families: Families) -> dict[bytes, Group]:
    """Section 15.1: the groups of a stream."""
    found = named(rows_of(families, number, 0x22), rows_of(families, number, 0x32))
    groups = {}
    for group, row in found.items():
        consumers = named(
            rows_of(families, number, 0x23, group), rows_of(families, number, 0x33, group)
        )
        last, last_seq, read, pending, following, moves, _, _ = numbers_of(row, 8, signed=2)
        demand(all(0 < n < following for n in consumers), "a consumer has a number never given")
        demand(len(row) != 4 or identity(row[3]) > (0, 0), "a cancelled entry has no ID")
        limits, key = [*row[4:], None, None][:2]
        is_right = not limits or [type(part) for part in limits] == [int] * 5
        demand(is_right and (limits != [] or key is not None), "a group's limits are not five numbers")
        pel = read_pending(number, group, families, consumers)
        demand(len(pel) == pending, "the group counts other pending entries")
        order = released_order(rows_of(families, number, 0x37, group), pel)
        groups[row[0]] = Group(
            group, (last, last_seq), read, pending, moves,
            {member[0]: Consumer(member[0], *numbers_of(member, 3, signed=1)) for member in consumers.values()}, pel,
            order, limits or None, key, read_places(number, group, families, key, pel),
        )  # fmt: skip
        for name, consumer in groups[row[0]].consumers.items():
            owned = sum(entry.consumer == name for entry in pel.values())
            demand(owned == consumer.pending, "a consumer counts other pending entries")
    return groups


# -- section 16: the PEL -------------------------------------------------------------------


def read_pending(
    number: int, group: int, families: Families, consumers: dict[int, list[Any]]
) -> dict[ID, Pending]:
    """Section 16: buckets and the rows over them; invariants 17 to 22."""
    pel: dict[ID, Pending] = {}
    by_consumer: dict[bytes, list[int]] = {}  # the rows that the buckets ask for
    by_time: dict[bytes, list[int]] = {}
    released: dict[bytes, list[int]] = {}
    buckets = list(rows_of(families, number, 0x34, group).items())
    for (key, value), (following, _) in pairwise([*buckets, (b"\xff" * 17, b"")]):
        demand(len(key) == 16, "the key of a bucket is no ID")
        demand(len(value) <= 2001, "a bucket is too large")
        row = record(value)
        packed, owners, base, offsets, counts, numbers = row[:6]
        demand(row[6:] in ([], [17]), "the place of the keys")
        size = 16 + sum(row[6:])
        ids = [packed[at : at + 16] for at in range(0, len(packed), size)]
        demand(1 <= len(ids) <= 112 and len(packed) % size == 0, "the IDs of a bucket")
        keyed = [packed[at + 16 : at + size] or bytes(17) for at in range(0, len(packed), size)]
        demand(size == 16 or any(map(any, keyed)), "a bucket says that none of its entries has a key")
        demand(all(a < b for a, b in pairwise(ids)), "the IDs of a bucket do not ascend")
        demand(key <= ids[0] and ids[-1] < following, "an ID lies in another's bucket")
        owned: dict[int, int] = {}
        times = []
        columns = (owners, offsets, counts, numbers)
        for sid, owner, offset, count, running, mark in zip(
            ids, *(spread(values, len(ids)) for values in columns), keyed, strict=True
        ):
            time = base + offset
            demand((owner == 0) == (running > 0), "owned and released at once, or neither")
            demand(0 <= count < 1 << 63 and time >= 0, "a count or a time out of bounds")
            if owner:
                demand(owner in consumers, "a pending entry's consumer is not there")
                owned[owner] = owned.get(owner, 0) + 1
                times.append(time)
            else:
                place = time.to_bytes(8, "big") + running.to_bytes(8, "big")
                demand(place not in released, "two released entries in one place")
                released[place] = list(identity(sid))
            name = consumers[owner][0] if owner else None
            pel[identity(sid)] = Pending(identity(sid), name, time, count, mark if any(mark) else b"")
        by_consumer.update({n.to_bytes(4, "big") + key: [owned[n]] for n in owned})
        if times:
            by_time[min(times).to_bytes(8, "big") + key] = []
    for kind, wanted in ((0x35, by_consumer), (0x36, by_time), (0x37, released)):
        rows = rows_of(families, number, kind, group)
        there = {key: record(value) for key, value in rows.items()}
        demand(there == wanted, f"rows of kind {kind:x} are not those the buckets ask for")
    return pel


def spread(values: int | list[int], count: int) -> list[int]:
    """A column as one number an entry."""
    full = [values] * count if isinstance(values, int) else values
    demand(len(full) == count, "a column has another length")
    return full


def released_order(rows: Rows, pel: dict[ID, Pending]) -> list[ID]:
    """Section 16.4: the released entries in the order in which they are handed out."""
    order = [(record(value)[0], record(value)[1]) for value in rows.values()]
    demand(all(pel[sid].consumer is None for sid in order), "a released entry is owned")
    return order


def read_places(
    number: int, group: int, families: Families, key: list[Any] | None, pel: dict[ID, Pending]
) -> dict[ID, tuple[bytes, int]]:
    """Section 26: the keys of pending entries; invariant 29."""
    found = {sid: (entry.key[:16], entry.key[16]) for sid, entry in pel.items() if entry.key}
    demand(key is not None or not found, "a group without a key has entries with keys")
    wanted: dict[bytes, list[int]] = {}
    has_rate = key is not None and key[5] > 0
    for sid, (mark, place) in found.items():
        demand(place in ((1, 2, 3, 4) if has_rate else (1, 2, 3)), "an entry's key")
        counts = wanted.setdefault(mark, [0, 0, 0])
        counts[0] += place in (2, 4)
        counts[1] += place == 3
        counts[2] += place == 4
        if place == 3:
            wanted[mark + b"".join(half.to_bytes(8, "big") for half in sid)] = []
    rows = {mark: record(value) for mark, value in rows_of(families, number, 0x38, group).items()}
    for mark, row in rows.items():
        if len(mark) == 16:
            demand(len(row) == (4 if has_rate else 2) and any(row), "a key's row")
            row[2:] = row[3:] if has_rate else [0]
    demand({mark: row for mark, row in rows.items() if row != [0, 0, 0]} ==
           {mark: row for mark, row in wanted.items() if row != [0, 0, 0]}, "a key's rows")
    for row in wanted.values():
        if key is not None and row and row[1]:
            demand(row[2] == 1 or 0 < key[1] <= row[0], "an entry is parked, and its key is free")
        demand(not row or row[2] <= 1, "two entries of a key are the next")
    parked = {sid for sid, (_, place) in found.items() if place == 3}
    never = {sid for sid, entry in pel.items() if entry.consumer is None and entry.time == 2**64 - 1}
    demand(parked == never, "an entry is parked by its key or by its time, not by both")
    demand(key is None or (len(key) == 8 and key[4] == len(parked)), "a group counts other parked entries")
    return found


# -- section 18: idempotent appends --------------------------------------------------------


def read_remembered(number: int, families: Families) -> list[Remembered]:
    """Section 18: the pairs, and invariant 24."""
    pairs = rows_of(families, number, 0x24)
    found = []
    for key, value in pairs.items():
        producer, iid, ms, seq = record(value)[:4]
        demand(key == shortened(producer) + shortened(iid), "a pair lies under another hash")
        found.append(Remembered(producer, iid, (ms, seq)))
    for key, value in rows_of(families, number, 0x25).items():
        row = record(value)
        if len(key) == 16:
            demand(key == shortened(row[0]), "a producer's count lies under another hash")
            continue
        demand(key[:16] + row[0] in pairs, "an age without a pair")
        pair = record(pairs[key[:16] + row[0]])
        demand((pair[2], pair[3]) == identity(key[16:]), "pair and age tell of two entries")
    return found


def shortened(name: bytes) -> bytes:
    """A producer's name, or an idempotent ID, as it stands in a key."""
    return hashlib.sha256(name).digest()[:16]


# -- section 22: deferred entries ----------------------------------------------------------


def read_deferred(number: int, families: Families) -> list[Deferred]:
    """Section 22: what is deferred, in the order in which it is due; invariant 25."""
    found = []
    for key, value in rows_of(families, number, 0x26).items():
        flat, *named = record(value)
        demand(len(flat) >= 2 and len(flat) % 2 == 0, "a deferred entry has no pairs")
        demand(all(isinstance(part, bytes) for part in flat), "a deferred entry is not a row of bins")
        found.append(Deferred(*identity(key), list(zip(flat[::2], flat[1::2], strict=True)),
                              named[0] if named else None))
    (header,) = rows_of(families, number, 0x31).values()
    row = record(header)
    many, due, following, *_ = row[7] if len(row) > 7 and row[7] is not None else (0, None, 0)
    demand(many == len(found), "the header counts other deferred entries")
    demand(due == (found[0].due if found else None), "the header has another first due time")
    demand(all(entry.number < following for entry in found), "a deferred entry's number was never given")
    return found


# -- section 23: results -------------------------------------------------------------------


def read_results(number: int, families: Families) -> dict[bytes, tuple[int, bytes]]:
    """Section 23: results by their names; invariant 26."""
    found = {}
    for name, value in rows_of(families, number, 0x27).items():
        expires, kept = record(value)[:2]
        demand(isinstance(expires, int) and isinstance(kept, bytes), "a result is no time and bin")
        found[name] = (expires, kept)
    times = rows_of(families, number, 0x28)
    demand(sorted(times) == sorted(at.to_bytes(8, "big") + name for name, (at, _) in found.items()),
           "results by time are not those by name")
    return found


# -- section 24: schedules -----------------------------------------------------------------


def read_schedules(number: int, families: Families, deferred: list[Deferred]) -> dict[bytes, Schedule]:
    """Section 24: schedules by their names; invariant 27, and of each tick when it is due and what it says."""
    found = {name: Schedule(*record(value)) for name, value in rows_of(families, number, 0x29).items()}
    ticks = {entry.schedule: entry for entry in deferred if entry.schedule is not None}
    demand(len(ticks) == sum(entry.schedule is not None for entry in deferred), "a schedule has two ticks")
    demand(ticks.keys() == {name for name, one in found.items() if one.tick}, "the ticks are not the schedules'")
    for name, entry in ticks.items():
        nominal, due, running = found[name].tick or [0, 0, 0]
        flat, *_, jitter = found[name].definition
        demand((due, running) == (entry.due, entry.number), "a schedule states another tick")
        delay = xxhash.xxh3_64_intdigest(name + nominal.to_bytes(8, "big")) % (jitter + 1)
        demand(due == nominal + delay, "a tick is due at another time")
        pairs = [(b"$entry", b'{"scheduled":%d}' % nominal), *zip(flat[::2], flat[1::2], strict=True)]
        demand(entry.pairs == pairs, "a tick has other fields than its schedule")
    return found


# -- section 25: unique names --------------------------------------------------------------


def read_unique(number: int, families: Families) -> dict[bytes, Unique]:
    """Section 25: unique names; invariant 28."""
    found = {}
    for hashed, value in rows_of(families, number, 0x2A).items():
        name, until, ms, seq, *more = record(value)
        demand(hashlib.sha256(name).digest()[:16] == hashed, "a unique name lies under another's hash")
        demand(until in ("done", "delivered") or isinstance(until, int), "a unique name has no end")
        is_deferred, length = [*more, 0, 0][:2]
        demand(len(more) < 3 and is_deferred in (0, 1), "a unique name is neither an entry's nor a deferred one's")
        demand(isinstance(until, int) == (length > 0), "a unique name has no length up to a time, or one without")
        found[name] = Unique(until, (ms, seq), bool(is_deferred), length)
    return found
