"""Nodes: up to a hundred or so entries of a stream in one listpack.

    master:  | count | deleted | num-fields | field-1 | ... | field-N | 0 |
    entry:   | flags | ms-diff | seq-diff | value-1 | ... | value-N | lp-count |
      or     | flags | ms-diff | seq-diff | num-fields | f-1 | v-1 | ... | v-N | lp-count |

The master entry is no entry. It holds the number of live and of deleted entries, and the field
names of the entry the node began with; an entry with the same names in the same order has flag
2 (SAMEFIELDS) and stores its values only. Flag 1 marks a deleted entry. The diffs are the ID
minus the node's master ID, each half modulo 2**64; lp-count is how many elements to step back
over to the entry's flags, and the 0 behind the master's fields ends such a walk to the left.

Worked example, 1000-5 name bob age 7, then 1003-1 x 300, in the node 1000-5:

    2  0  2  "name"  "age"  0           two live, none deleted, two names
    2  0  0  "bob"  7  5                SAMEFIELDS, +0 +0, values; 5 steps back to the flags
    0  3  -4  1  "x"  300  6            +3 ms, -4 seq, one pair of its own

Byte for byte what Redis writes. Nothing is trusted: whatever does not add up raises
CorruptionError with the offset in the listpack. Master ID and IDs are given as two integers
below 2**64. Reading is O(elements walked).
"""

from __future__ import annotations

from .element import (  # cimport
    add_integer,
    add_value,
    after,
    integer_element,
    integer_size,
    put_integer,
    put_value,
    room_for,
)
from .entry import Entry, flatten
from .id import StreamID
from .inlined import id_of  # cimport
from .listpack import (
    frame,  # cimport
    stated,
    validate,
)
from .walk import (  # cimport
    backward,
    check_counts,
    damaged,
    forward,
    open_node,
    skip,
    take,
)

__all__ = [
    "Encoded", "Entry", "NodeBuilder", "compact", "counts", "decode", "first_live", "flatten",
    "last_entry_id", "last_live", "live_before", "mark_deleted", "nth_live", "raw_size",
    "validate_node",
]  # fmt: skip

SOURCE_HASH = ""

DELETED = 1
SAMEFIELDS = 2
HEADER = 6
SIGN = 1 << 63
MASK = (1 << 64) - 1
_ROOM = 1024  # bytes: longer entries of a batch go the way of single ones

Encoded = tuple[bytes, int, int, int]  # the bytes, their element count, the ID's two halves
ID = tuple[int, int]


def raw_size(flat: list[bytes]) -> int:
    """The bytes of an entry's names and values, as Redis' rule for full nodes counts them."""
    size = 0
    for item in flat:
        size += len(item)
    return size


class NodeBuilder:
    """The node at the end of a stream, while entries are added to it.

    Made by start() or open(). ``ms``, ``seq``: the master ID. ``live``, ``dead``: entries.
    ``last_ms``, ``last_seq``: the last ID, deleted ones included (the master ID at first).
    ``size``: bytes of the listpack now. All are for reading only.
    """

    __slots__ = (
        "body",
        "dead",
        "elements",
        "last_ms",
        "last_seq",
        "live",
        "ms",
        "names",
        "seq",
        "size",
    )

    ms: int
    seq: int
    last_ms: int
    last_seq: int
    live: int
    dead: int
    size: int
    elements: int
    names: list[bytes]
    body: bytearray

    @staticmethod
    def start(ms: int, seq: int, flat: list[bytes]) -> NodeBuilder:
        """A new node without entries, whose master entry has the names in ``flat``."""
        node = NodeBuilder()
        node.ms = node.last_ms = ms
        node.seq = node.last_seq = seq
        node.live = node.dead = 0
        node.names = flat[::2]
        parts = [integer_element(len(node.names))]
        for name in node.names:
            add_value(parts, name)
        parts.append(integer_element(0))
        node.body = bytearray(b"".join(parts))
        node.elements = len(node.names) + 4
        node.size = HEADER + 2 + 2 + len(node.body) + 1
        return node

    @staticmethod
    def open(listpack: bytes, ms: int, seq: int) -> NodeBuilder:
        """The node that is stored as ``listpack``: checks its frame, master and last entry."""
        walk = open_node(listpack, ms, seq)
        node = NodeBuilder()
        node.ms = ms
        node.seq = seq
        node.live = walk.live
        node.dead = walk.dead
        node.names = walk.names
        node.body = bytearray(listpack[walk.body : walk.end])
        node.elements = stated(listpack)
        node.size = len(listpack)
        if walk.first < walk.end:
            backward(walk)
            skip(walk)
        node.last_ms = walk.ms
        node.last_seq = walk.seq
        return node

    def encode(self, ms: int, seq: int, flat: list[bytes]) -> Encoded:
        """The elements of an entry in this node. The node stays as it is.

        ``flat`` comes from flatten(). The result is for size_with() and push() of this node.
        """
        parts: list[bytes] = []
        elements = self.add_entry(parts, ms, seq, flat)
        return b"".join(parts), elements, ms, seq

    def add_entry(self, parts: list[bytes], ms: int, seq: int, flat: list[bytes]) -> int:
        """Add the elements of an entry in this node to ``parts``; how many they are."""
        size = len(flat)
        same = self.has_names_of(flat)
        add_integer(parts, SAMEFIELDS if same else 0)
        add_integer(parts, difference(ms, self.ms))
        add_integer(parts, difference(seq, self.seq))
        if same:
            i = 1
            while i < size:
                add_value(parts, flat[i])
                i += 2
            elements = size // 2 + 3
        else:
            add_integer(parts, size // 2)
            for value in flat:
                add_value(parts, value)
            elements = size + 4
        add_integer(parts, elements)
        return elements + 1

    def has_names_of(self, flat: list[bytes]) -> bool:
        """Whether an entry has the names of the master entry, in their order."""
        size = len(flat)
        if size != 2 * len(self.names):
            return False
        i = 0
        while i < size:
            name = self.names[i // 2]
            if flat[i] is not name and flat[i] != name:
                return False
            i += 2
        return True

    def size_with(self, encoded: Encoded) -> int:
        """Exact size of the listpack once ``encoded`` is pushed."""
        grown = integer_size(self.live + 1) - integer_size(self.live)
        return self.size + len(encoded[0]) + grown

    def push(self, encoded: Encoded) -> None:
        """Add an entry that encode() of this node has returned."""
        self.size = self.size_with(encoded)
        self.live += 1
        self.body += encoded[0]
        self.elements = min(self.elements + encoded[1], 65535)
        self.last_ms = encoded[2]
        self.last_seq = encoded[3]

    def fill(self, flats: list[list[bytes]], at: int, ms: int, seq: int, capacity: int,
             max_bytes: int, max_entries: int, ids: list[StreamID]) -> int:
        """Push ``flats[at:]`` under ms-seq, ms-(seq+1) and so on, while the node takes them.

        It takes an entry while the listpack stays within ``capacity`` bytes, its bytes before
        plus the entry's names and values below ``max_bytes``, and its entries, deleted ones
        included, within ``max_entries``; -1 is no limit. The IDs go to ``ids``; how many did.
        """
        start = at
        stop = len(flats)
        room = bytearray(_ROOM)
        used = 0  # of the room: entries that are not in the body yet
        while at < stop:
            if 0 <= max_entries <= self.live + self.dead:
                break
            flat = flats[at]
            raw = raw_size(flat)
            if max_bytes >= 0 and self.size + raw >= max_bytes:
                break
            needed = room_for(raw, len(flat) + 5)
            if used + needed > _ROOM:
                self.body += room[:used]
                used = 0
            size = self.size + integer_size(self.live + 1) - integer_size(self.live)
            same = self.has_names_of(flat)
            if needed <= _ROOM:
                end = self.put_entry(room, used, ms, seq, flat, same)
                size += end - used
                if 0 <= capacity < size:
                    break
                used = end
            else:
                encoded = self.encode(ms, seq, flat)
                size += len(encoded[0])
                if 0 <= capacity < size:
                    break
                self.body += encoded[0]
            self.size = size
            self.live += 1
            self.elements = min(self.elements + (len(flat) // 2 + 4 if same else len(flat) + 5), 65535)
            self.last_ms = ms
            self.last_seq = seq
            ids.append(id_of(StreamID, ms, seq))
            seq += 1
            at += 1
        self.body += room[:used]
        return at - start

    def put_entry(self, p: bytearray, at: int, ms: int, seq: int, flat: list[bytes], same: bool) -> int:
        """Write what encode() gives at ``at`` of a buffer that has room for it; where it ends."""
        size = len(flat)
        at = put_integer(p, at, SAMEFIELDS if same else 0)
        at = put_integer(p, at, difference(ms, self.ms))
        at = put_integer(p, at, difference(seq, self.seq))
        if not same:
            at = put_integer(p, at, size // 2)
        i = 1 if same else 0
        while i < size:
            at = put_value(p, at, flat[i])
            i += 2 if same else 1
        return put_integer(p, at, size // 2 + 3 if same else size + 4)

    def listpack(self) -> bytes:
        """The node as it is stored."""
        return frame(
            integer_element(self.live) + integer_element(self.dead), self.body, self.elements
        )


def difference(left: int, right: int) -> int:
    """``left - right`` of two u64, modulo 2**64, as the int64 with the same bits."""
    return (((left - right) & MASK) ^ SIGN) - SIGN


def decode(
    listpack: bytes,
    ms: int,
    seq: int,
    lo_ms: int,
    lo_seq: int,
    hi_ms: int,
    hi_seq: int,
    limit: int = -1,
    reverse: bool = False,
) -> list[Entry]:
    """The live entries of the node ``ms-seq`` from lo to hi, both included, in order.

    At most ``limit`` of them (-1: all), the last ones in descending order if ``reverse``.
    Raises CorruptionError. Cost: the elements from that end of the node to the last entry.
    """
    walk = open_node(listpack, ms, seq)
    found = []
    live = 0
    while limit != 0:
        if not (backward(walk) if reverse else forward(walk)):
            check_counts(walk, live)
            break
        below = walk.ms < lo_ms or (walk.ms == lo_ms and walk.seq < lo_seq)
        above = walk.ms > hi_ms or (walk.ms == hi_ms and walk.seq > hi_seq)
        if below if reverse else above:
            break
        if walk.flags & DELETED:
            skip(walk)
            continue
        live += 1
        if below or above:
            skip(walk)
            continue
        found.append(take(walk))
        limit -= 1
    return found


def counts(listpack: bytes) -> tuple[int, int]:
    """How many live and deleted entries the master entry states. O(1)."""
    walk = open_node(listpack, 0, 0)
    return walk.live, walk.dead


def live_before(listpack: bytes, ms: int, seq: int, id_ms: int, id_seq: int) -> int:
    """How many live entries of the node ``ms-seq`` have a smaller ID than ``id_ms-id_seq``."""
    walk = open_node(listpack, ms, seq)
    live = 0
    while forward(walk):
        if walk.ms > id_ms or (walk.ms == id_ms and walk.seq >= id_seq):
            return live
        live += not walk.flags & DELETED
        skip(walk)
    check_counts(walk, live)
    return live


def nth_live(listpack: bytes, ms: int, seq: int, k: int) -> ID:
    """The ID of the live entry no. ``k``, from 0. Raises IndexError beyond the last."""
    walk = open_node(listpack, ms, seq)
    if k < 0 or k >= walk.live:
        raise IndexError(f"node {ms}-{seq} has {walk.live} live entries, there is no number {k}")
    live = 0
    while forward(walk):
        if not walk.flags & DELETED:
            if live == k:
                return walk.ms, walk.seq
            live += 1
        skip(walk)
    check_counts(walk, live)
    return 0, 0  # never reached: the counts differ


def first_live(listpack: bytes, ms: int, seq: int) -> ID | None:
    """The ID of the first live entry, None if all are deleted."""
    walk = open_node(listpack, ms, seq)
    while forward(walk):
        if not walk.flags & DELETED:
            return walk.ms, walk.seq
        skip(walk)
    check_counts(walk, 0)
    return None


def last_live(listpack: bytes, ms: int, seq: int) -> ID | None:
    """The ID of the last live entry, None if all are deleted. Walks from the end."""
    walk = open_node(listpack, ms, seq)
    while backward(walk):
        skip(walk)
        if not walk.flags & DELETED:
            return walk.ms, walk.seq
    check_counts(walk, 0)
    return None


def last_entry_id(listpack: bytes, ms: int, seq: int) -> ID:
    """The ID of the last entry, deleted ones included. CorruptionError if there is none."""
    walk = open_node(listpack, ms, seq)
    if not backward(walk):
        damaged("has no entries", walk.first)
    skip(walk)
    return walk.ms, walk.seq


def mark_deleted(
    listpack: bytes, ms: int, seq: int, ids: list[tuple[int, int]]
) -> tuple[bytes, list[tuple[int, int]], int]:
    """Delete the entries with these ``ids``, which ascend: sets their flag, as XDEL does.

    Returns the new listpack, the IDs that were live until now, and how many live entries are
    left; at 0 the node is to be removed, as Redis does.
    """
    walk = open_node(listpack, ms, seq)
    parts = []
    done = []
    copied = walk.body
    i = 0
    while i < len(ids) and forward(walk):
        here = (walk.ms, walk.seq)
        while i < len(ids) and ids[i] < here:
            i += 1
        if i < len(ids) and ids[i] == here and not walk.flags & DELETED:
            done.append(ids[i])
            parts.append(listpack[copied : walk.start])
            parts.append(integer_element(walk.flags | DELETED))
            copied = after(walk.p, walk.start, walk.end)
        skip(walk)
    live = walk.live - len(done)
    if live < 0:
        damaged(f"states {walk.live} live entries and has more", HEADER)
    parts.append(listpack[copied : walk.end])
    head = integer_element(live) + integer_element(walk.dead + len(done))
    return frame(head, b"".join(parts), stated(listpack)), done, live


def compact(listpack: bytes, ms: int, seq: int) -> bytes:
    """The node without its deleted entries; master entry and master ID stay. Not in Redis."""
    walk = open_node(listpack, ms, seq)
    parts = [listpack[walk.body : walk.first]]
    elements = walk.width + 4
    live = 0
    while forward(walk):
        start = walk.start
        skip(walk)
        if not walk.flags & DELETED:
            live += 1
            parts.append(listpack[start : walk.pos])
            elements += 1 + (2 * walk.own + 4 if walk.own else walk.width + 3)
    check_counts(walk, live)
    return frame(integer_element(live) + integer_element(0), b"".join(parts), elements)


def validate_node(listpack: bytes, ms: int, seq: int) -> tuple[int, int, int, int]:
    """Check everything about a node: every element, every entry, both directions, all counts.

    Returns (live, deleted, and both halves of the last ID). Raises CorruptionError with the
    offset of the first thing that does not add up. O(bytes).
    """
    validate(listpack)
    walk = open_node(listpack, ms, seq)
    back = open_node(listpack, ms, seq)
    live = 0
    starts = []
    while forward(walk):
        starts.append(walk.start)
        live += not walk.flags & DELETED
        skip(walk)
    if not starts:
        damaged("has no entries", walk.first)
    check_counts(walk, live)
    while backward(back):
        skip(back)
        if not starts or starts.pop() != back.start:
            damaged("reads differently from its end", back.start)
    return live, walk.dead, walk.ms, walk.seq
