"""A second reader of raxlog's stores, written from docs/format.md alone.

    store ── names ── header ── deleted ordinals ── nodes ── entries
             5.2      5.4       5.6                 6        7           sections of that page

It imports nothing of raxlog, shares no line with it, and reads in the plainest way there is:
everything at once, every check of section 11 and every invariant of section 10 that a reader
can see. What does not hold raises Wrong. If raxlog and this reader disagree, one of the three
(raxlog, this file, the page) is wrong. Groups and what else is there: second_reader_groups.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import xxhash
import zstandard

FORMAT = 1
Pairs = list[tuple[bytes, bytes]]
ID = tuple[int, int]
Families = dict[tuple[int, int], dict[bytes, bytes]]  # (number, kind) -> keys and values


class Wrong(Exception):
    """The store breaks its own rules."""


@dataclass
class Entry:
    """An entry as it lies in a node, a deleted one included."""

    id: ID
    pairs: Pairs
    deleted: bool


@dataclass
class Node:
    """A node: what its block says, and what is in it."""

    id: ID
    codec: int
    ordinal: int
    span: int
    live: int
    listpack: bytes
    deleted: int = 0
    entries: list[Entry] = field(default_factory=list)


@dataclass
class Stream:
    """A stream: its header by the names of section 5.4, its nodes, the notes of its index."""

    number: int
    last: ID
    first: ID
    max_deleted: ID
    length: int
    entries_added: int
    next_ordinal: int
    leaves: int
    leaves_added: int
    limits: list[Any]
    groups: int
    next_group: int
    idempotence: tuple[int, int]
    schema: list[Any] | None
    nodes: list[Node]
    notes: list[tuple[int, ID]]

    @property
    def entries(self) -> list[Entry]:
        """All entries in order, deleted ones included."""
        return [entry for node in self.nodes for entry in node.entries]


@dataclass
class Store:
    """A whole store."""

    uuid: bytes
    created_ms: int
    next_number: int
    streams: dict[bytes, Stream]


def demand(truth: bool, what: str) -> None:
    """Raise Wrong unless it is true."""
    if not truth:
        raise Wrong(what)


APPLIED = bytes(8) + b"\x05\x09"
SUPERSEDED = bytes(8) + b"\x06"


def read_store(path: Path) -> Store:
    """Everything in the store at ``path``. Wrong if anything in it does not hold."""
    return understand(read_keys(path))


def read_keys(path: Path) -> dict[bytes, bytes]:
    """Section 1 and 2: all keys and values of the store at ``path``."""
    generation = (path / "CURRENT").read_text(encoding="ascii").strip()
    demand(generation.isdigit(), "CURRENT names no generation")
    while True:
        env = lmdb.open(str(path / generation), readonly=True, create=False)
        try:
            with env.begin() as txn:
                everything = {bytes(key): bytes(value) for key, value in txn.cursor()}
        finally:
            env.close()
        if APPLIED in everything:
            everything = with_log(everything, (path / generation / "log").read_bytes())
        if SUPERSEDED not in everything:
            return everything
        generation = f"{record(everything[SUPERSEDED])[0]:06d}"


def with_log(everything: dict[bytes, bytes], log: bytes) -> dict[bytes, bytes]:
    """format-log.md: a state of LMDB, and what the log has after it."""
    number = int.from_bytes
    demand(xxhash.xxh3_64_intdigest(log[8:4096]) == number(log[:8], "little"), "the log's header fails its checksum")
    demand(log[8:16] == b"raxlog\0\1" and number(log[16:24], "little") == 1, "not a log of format 1")
    size = number(log[24:32], "little")
    demand(len(log) == 4096 + size, "the log has not the size that it says")
    demand(log[32:48] == record(everything[bytes(8) + b"\x01"])[1], "the log is another store's")
    upto, last, start, before = record(everything.pop(APPLIED))
    at, chain = upto, last
    changed = dict(everything)
    ring = log[4096:]
    while (found := next_record(at, chain, size, lambda position: ring[position % size :])) is not None:
        begins, chain, changes = found
        at = begins + 28 + len(changes)
        apply_changes(changed, changes)
    if at == upto and start < upto:
        kept = next_record(start, before, size, lambda position: ring[position % size :])
        demand(kept is not None and kept[1] in (last, last ^ 0x5DEECE66D), "the log is not the one of this state")
    return dict(sorted(changed.items()))


def next_record(at: int, chain: int, size: int, source: Callable[[int], bytes]) -> tuple[int, int, bytes] | None:
    """format-log.md, section 3: the record that follows: its position, checksum, changes. ``source``: from there on."""
    for place in (at, -(-at // size) * size):
        head, covered = source(place)[:28], source(place)[8:]
        covered = covered[: 20 + int.from_bytes(head[8:12], "little")]
        if head[8:12] == bytes(4) or len(covered) != 20 + int.from_bytes(head[8:12], "little"):
            continue
        checksum = int.from_bytes(head[:8], "little")
        if int.from_bytes(head[12:20], "little") == place and xxhash.xxh3_64_intdigest(covered, chain) == checksum:
            return place, checksum, covered[20:]
    return None


def with_segments(everything: dict[bytes, bytes], segments: Path, size: int) -> tuple[dict[bytes, bytes], list[int]]:
    """format-log.md, section 7: a state of LMDB and the checkpoints after it; and the record of number 0, kind 05, 09.

    ``size``   of the ring
    """
    at, chain, start, before = record(everything[APPLIED])
    changed = {key: value for key, value in everything.items() if key != APPLIED}
    for file in sorted(file for file in segments.iterdir() if int(file.name) >= at):
        begin, content = int(file.name), file.read_bytes()
        demand(len(file.name) == 20 and begin == at, f"the segment {file.name} does not go on at {at}")
        end = begin + len(content)
        while at < end:
            found = next_record(at, chain, size, lambda place, begin=begin, content=content: content[place - begin :])
            if found is None:
                raise Wrong(f"the segment {file.name} holds no record at {at}")
            begins, checksum, changes = found
            if changes[:1] == b"\3":
                demand(begins == begin and begins + 28 + len(changes) == end, "a large transaction is not alone")
                gone = start == at or begins + 8 - start > size // 3
                at = end = begins + 8
                chain ^= 0x5DEECE66D
                start, before = (at, chain) if gone else (start, before)
                apply_changes(changed, changes[1:])
            else:
                start, before, at, chain = begins, chain, begins + 28 + len(changes), checksum
                apply_changes(changed, changes)
    return dict(sorted(changed.items())), [at, chain, start, before]


def apply_changes(changed: dict[bytes, bytes], changes: bytes) -> None:
    """format-log.md, section 4."""

    def take(many: int) -> bytes:
        nonlocal changes
        taken, changes = changes[:many], changes[many:]
        demand(len(taken) == many, "a change is cut off")
        return taken

    seen: set[bytes] = set()
    while changes:
        kind, length = take(1)[0], int.from_bytes(take(2), "little")
        demand(kind in (0, 1, 2), f"a change of the unknown kind {kind}")
        sizes = [int.from_bytes(take(4), "little") for _ in range((0, 1, 2)[kind])]
        key = take(length)
        demand(key not in seen, "a key occurs twice in a record")
        seen.add(key)
        if kind == 0:
            changed.pop(key, None)
        elif kind == 1:
            changed[key] = take(sizes[0])
        else:
            front, rest = sizes
            old = changed[key]
            demand(48 + front <= len(old), "a delta keeps more than there was")
            changed[key] = take(48) + old[48 : 48 + front] + take(rest)


def families_of(everything: dict[bytes, bytes]) -> Families:
    """Section 3: the keys and values by number and kind, in the order of the keys."""
    families: Families = {}
    for key, value in everything.items():
        families.setdefault((int.from_bytes(key[:8], "big"), key[8]), {})[key] = value
    return families


def understand(everything: dict[bytes, bytes]) -> Store:
    """The store that these keys and values are; they come in the order of their keys."""
    for key, value in everything.items():
        verify(key, value)
    families = families_of(everything)
    (store_value,) = families[0, 0x01].values()
    store = record(store_value)
    demand(store[0] == 5, "the store has another format")
    streams = {}
    for key, value in families.get((0, 0x02), {}).items():
        (number, *_) = record(value)
        demand(0 < number < store[3], "a stream has a number that was never given")
        streams[key[9:]] = read_stream(key[9:], number, families)
    numbers = [stream.number for stream in streams.values()]
    demand(len(set(numbers)) == len(numbers), "two names lead to one stream")
    return Store(store[1], store[2], store[3], streams)


# -- sections 4 and 5: checksums and records ----------------------------------------------


def verify(key: bytes, value: bytes) -> None:
    """Section 4: the checksum in front of every value."""
    demand(len(key) >= 9 and len(value) >= 9, "a key or a value is cut off")
    seed = xxhash.xxh3_64_intdigest(key)
    stated = int.from_bytes(value[:8], "little")
    demand(xxhash.xxh3_64_intdigest(value[8:], seed) == stated, f"checksum under {key.hex()}")
    demand(value[8] == FORMAT, "a value has another format")


def record(value: bytes) -> list[Any]:
    """Section 5: the row of a record whose checksum has been verified."""
    row = msgpack.unpackb(value[9:])
    demand(isinstance(row, list), "a record holds no array")
    return list(row)


def read_stream(name: bytes, number: int, families: Families) -> Stream:
    """Section 5.4: a stream by its number, with all that belongs to it."""
    header_values = list(families.get((number, 0x31), {}).values())
    demand(len(header_values) == 1, "a name leads to no header")
    row = record(header_values[0])
    demand(row[0] == name, "the header bears another name")
    demand(len(row[1]) == 112, "the header has not 14 numbers")
    (last, last_seq, length, added, ordinal, stored, leaves, leaves_added, first, first_seq, deleted, deleted_seq,
     groups, next_group) = (int.from_bytes(row[1][at : at + 8], "little") for at in range(0, 112, 8))
    stream = Stream(
        number, (last, last_seq), (first, first_seq), (deleted, deleted_seq), length, added, ordinal,
        leaves, leaves_added, row[2], groups, next_group, (row[3][0], row[3][1]), row[4] if len(row) > 4 else None,
        [read_node(key, value) for key, value in families.get((number, 0x30), {}).items()],
        [
            (int.from_bytes(key[9:], "big"), (record(value)[0], record(value)[1]))
            for key, value in families.get((number, 0x21), {}).items()
        ],
    )  # fmt: skip
    demand(stored == sum(map(len, families.get((number, 0x30), {}).values())), "the header states other bytes")
    check_stream(stream, read_marks(families.get((number, 0x20), {}), base_of(stream)))
    return stream


def base_of(stream: Stream) -> int:
    """The ordinal that the stream begins with now."""
    return stream.nodes[0].ordinal if stream.nodes else stream.next_ordinal


def read_marks(rows: dict[bytes, bytes], base: int) -> set[int]:
    """Section 5.6: the ordinals that are marked as deleted; all counters are compared."""
    marks: set[int] = set()
    has: dict[tuple[int, int], int] = {}
    says: dict[tuple[int, int], int] = {}
    for key, value in rows.items():
        demand(len(key) == 18 and key[9] <= 3, "no key of deleted ordinals")
        level, index = key[9], int.from_bytes(key[10:], "big")
        data = record(value)[0]
        demand(data[-1:] not in {b"", b"\0"} or level > 0, "a bitmap ends with zeros")
        if level == 0:
            found = {4096 * index + i for i in range(8 * len(data)) if data[i // 8] >> i % 8 & 1}
            marks |= found
            has[0, index] = len(found)
        else:
            size = (0, 2, 4, 8)[level]
            demand(0 < len(data) <= 256 * size and len(data) % size == 0, "a row of wrong size")
            counters = [
                int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)
            ]
            demand(counters[-1] > 0, "a row of counters ends with zeros")
            has[level, index] = sum(counters)
            says.update({(level - 1, 256 * index + c): n for c, n in enumerate(counters) if n})
    for level, index in has.keys() | says.keys():
        end = index + 1 << (12, 20, 28, 36)[level]
        dropped = (level, index) not in has and end <= base
        if level < 3 and not dropped:
            demand(has.get((level, index), 0) == says.get((level, index), 0), "a counter differs")
    return marks


def check_stream(stream: Stream, marks: set[int]) -> None:
    """Section 10: invariants 4, 5, 8 to 11, 13 and 14."""
    nodes = stream.nodes
    demand(len(nodes) == stream.leaves <= stream.leaves_added, "nodes are missing")
    at = base_of(stream)
    for node in nodes:
        demand(at <= node.ordinal, "ordinals overlap")
        demand(marks.issuperset(range(at, node.ordinal)), "a node has vanished")
        at = node.ordinal + node.span
        marked = sum(ordinal in marks for ordinal in range(node.ordinal, at))
        dead = node.span - node.live
        demand(marked <= dead if node is nodes[0] else marked == dead, "marks differ from the node")
        demand(node.live > 0 or node is nodes[0], "a dead node is in the middle")
    demand(at <= stream.next_ordinal, "a node lies behind the next ordinal")
    demand(marks.issuperset(range(at, stream.next_ordinal)), "the last node has vanished")
    ids = [entry.id for entry in stream.entries]
    demand(all(a < b for a, b in pairwise(ids)), "IDs do not ascend")
    demand((0, 0) not in ids, "an entry has the ID 0-0")
    demand(not ids or ids[-1] <= stream.last, "an entry lies behind the last ID")
    live = [entry.id for entry in stream.entries if not entry.deleted]
    demand(len(live) == stream.length == sum(node.live for node in nodes), "the length differs")
    demand(stream.first == (live[0] if live else (0, 0)), "the first ID differs")
    demand(stream.max_deleted <= stream.last, "the greatest deleted ID is above the last one")
    noted = [sid for _, sid in stream.notes]
    demand(all(a < b for a, b in pairwise(noted)), "notes do not ascend")
    starts = {node.id: node.ordinal for node in nodes}
    demand(all(starts.get(sid, at) == at for at, sid in stream.notes), "a note is wrong")


# -- sections 6 and 7: blocks, listpacks, entries -----------------------------------------


def read_node(key: bytes, value: bytes) -> Node:
    """Section 6: a block whose checksum has been verified."""
    demand(len(key) == 25 and len(value) >= 30, "a node's key or block is cut off")
    codec = value[9]
    ordinal = int.from_bytes(value[10:18], "little")
    span = int.from_bytes(value[18:22], "little")
    live = int.from_bytes(value[22:26], "little")
    size = int.from_bytes(value[26:30], "little")
    demand(codec <= 1 and size <= 1 << 30, "an unknown codec, or too large")
    body = value[30:]
    if codec:
        body = zstandard.ZstdDecompressor().decompress(body, max_output_size=size)
    demand(len(body) == size, "the listpack has another size")
    sid = int.from_bytes(key[9:17], "big"), int.from_bytes(key[17:], "big")
    node = Node(sid, codec, ordinal, span, live, body)
    read_entries(node)
    return node


def read_entries(node: Node) -> None:
    """Section 7.2: the master entry and the entries."""
    elements = Elements(elements_of(node.listpack))
    stated_live, node.deleted, width = elements.integer(), elements.integer(), elements.integer()
    demand(width >= 1, "a master entry without names")
    names = [elements.string() for _ in range(width)]
    demand(elements.integer() == 0, "the master entry is not closed")
    while elements.left():
        start = elements.place
        flags = elements.integer()
        demand(0 <= flags <= 3, "unknown flags")
        ms = (node.id[0] + elements.integer()) % (1 << 64)
        seq = (node.id[1] + elements.integer()) % (1 << 64)
        if flags & 2:
            pairs = [(name, elements.string()) for name in names]
        else:
            own = elements.integer()
            demand(own >= 1, "an entry without fields")
            pairs = [(elements.string(), elements.string()) for _ in range(own)]
        between = elements.place - start
        demand(elements.integer() == between, "a wrong count behind an entry")
        demand(between == (width + 3 if flags & 2 else 2 * len(pairs) + 4), "a wrong count")
        demand((ms, seq) >= node.id, "an entry before its node")
        node.entries.append(Entry((ms, seq), pairs, bool(flags & 1)))
    dead = sum(entry.deleted for entry in node.entries)
    demand(bool(node.entries), "a node without entries")
    demand(dead == node.deleted, "the count of deleted entries differs")
    demand(len(node.entries) - dead == stated_live, "the count of live entries differs")
    demand(node.live == stated_live, "block and listpack count live entries differently")
    demand(node.live + node.deleted <= node.span, "more entries than the span")


class Elements:
    """The elements of a listpack, taken one by one."""

    def __init__(self, elements: list[int | bytes]) -> None:
        self.elements = elements
        self.place = 0

    def left(self) -> bool:
        """Whether there is another one."""
        return self.place < len(self.elements)

    def take(self) -> int | bytes:
        """The next element."""
        demand(self.left(), "a node ends too early")
        self.place += 1
        return self.elements[self.place - 1]

    def integer(self) -> int:
        """The next element, which must be an integer."""
        element = self.take()
        demand(isinstance(element, int), "a string where an integer must stand")
        return int(element)

    def string(self) -> bytes:
        """The next element as bytes: an integer stands for its decimal text."""
        element = self.take()
        return b"%d" % element if isinstance(element, int) else element


def elements_of(listpack: bytes) -> list[int | bytes]:
    """Section 7: what is in a listpack, read from its beginning, compared with its end."""
    end = len(listpack) - 1
    demand(end >= 6 and int.from_bytes(listpack[:4], "little") == end + 1, "the listpack's size")
    demand(listpack[end] == 0xFF, "the listpack has no end mark")
    elements: list[int | bytes] = []
    starts = []
    at = 6
    while at < end:
        size, element = element_at(listpack, at)
        demand(at + size < end, "an element passes the end")
        starts.append(at)
        elements.append(element)
        back = backlen(size)
        demand(listpack[at + size : at + size + len(back)] == back, "a wrong backlen")
        at += size + len(back)
    demand(at == end, "an element passes the end")
    stated = int.from_bytes(listpack[4:6], "little")
    demand(stated in (len(elements), 65535), "the listpack's number of elements")
    while starts:
        at = element_before(listpack, at)
        demand(at == starts.pop(), "the listpack reads differently from its end")
    return elements


def element_at(data: bytes, at: int) -> tuple[int, int | bytes]:
    """Section 7.1: size of encoding and data of the element at ``at``, and its value."""
    first = data[at]
    if first < 0x80:
        return 1, first
    if first < 0xC0:
        size = first & 0x3F
        return 1 + size, data[at + 1 : at + 1 + size]
    if first < 0xE0:
        number = (first & 0x1F) << 8 | data[at + 1]
        return 2, number - (1 << 13) if number >> 12 else number
    if first < 0xF0:
        size = (first & 0x0F) << 8 | data[at + 1]
        return 2 + size, data[at + 2 : at + 2 + size]
    if first == 0xF0:
        size = int.from_bytes(data[at + 1 : at + 5], "little")
        return 5 + size, data[at + 5 : at + 5 + size]
    demand(first <= 0xF4, "an unknown encoding")
    width = (2, 3, 4, 8)[first - 0xF1]
    return 1 + width, int.from_bytes(data[at + 1 : at + 1 + width], "little", signed=True)


def backlen(size: int) -> bytes:
    """The backlen of an element whose encoding and data have ``size`` bytes."""
    count = 1 + sum(size >= border for border in (128, 16383, 2097151, 268435455))
    digits = [size >> 7 * place & 0x7F for place in range(count)]
    return bytes([digits[-1], *(0x80 | digit for digit in reversed(digits[:-1]))])


def element_before(data: bytes, at: int) -> int:
    """Where the element begins that ends before ``at``."""
    size = shift = 0
    while True:
        at -= 1
        size |= (data[at] & 0x7F) << shift
        shift += 7
        if data[at] < 0x80:
            return at - size
