"""The node at the end of a stream, as it grows: entries become elements of its listpack.

    start(1000, 5, ["name", "bob", "age", "7"])      2  "name"  "age"  0
    push / fill      ── entries ──>  body            2  0  0  "bob"  7  5  …
    listpack()       counts | body, framed           what is stored

One entry is encoded, measured and pushed; a batch is written into one buffer as long as it fits.
See node.py for the format. The C types stand in node_builder.pxd.
"""

from __future__ import annotations

from .element import (  # cimport
    add_integer,
    add_value,
    integer_element,
    integer_size,
    put_integer,
    put_value,
    room_for,
)
from .id import StreamID
from .inlined import id_of  # cimport
from .listpack import (
    frame,  # cimport
    stated,
)
from .walk import backward, open_node, skip  # cimport

SOURCE_HASH = ""

SAMEFIELDS = 2
HEADER = 6
SIGN = 1 << 63
MASK = (1 << 64) - 1
_ROOM = 1024  # bytes: longer entries of a batch go the way of single ones

Encoded = tuple[bytes, int, int, int]  # the bytes, their element count, the ID's two halves


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
