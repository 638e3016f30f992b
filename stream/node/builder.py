"""The node at the end of a stream, as it grows: the very bytes that are stored, but for their checksum.

    | format codec ordinal span live size | size elements | live dead | 2 "name" "age" 0 | 2 0 0 "bob" 7 5 | … | ff |
      the block's header (records.py) 22    the listpack,   counts      master entry       entries
                                            6                                              push() ── entry ──^

An entry is written over the end mark, which moves behind it, or stays if the node is full; a batch goes the
same way, with room made for some at a time. The fixed fields in front are filled in when the block is stored.
See decode.py for the format. The C types stand in builder.pxd.
"""

from __future__ import annotations

from ...storage.errors import CorruptionError
from ...storage.format.binary import flipped, joined, put_front  # cimport
from ...storage.format.keys import FORMAT
from ...storage.format.records import HEADER_SIZE, RAW, checksum
from .decode import backward, open_node, skip  # cimport
from .flattened import TextColumns  # cimport
from .listpack import (
    cut_off,  # cimport
    integer_element,  # cimport
    integer_size,  # cimport
    lengthen,  # cimport
    put_entry,  # cimport
    put_integer,  # cimport
    put_value,  # cimport
    room_for,  # cimport
    stated,
)
from .stream_id import (
    StreamID,
    id_of,  # cimport
)

SOURCE_HASH = ""

HEAD_SIZE = 22  # of the block before the listpack, without the checksum
COUNTS = 28  # where the listpack's first element begins
SIGN = 1 << 63
MASK = (1 << 64) - 1
_SPARE = 1024  # bytes, for some more entries of a batch


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

    __slots__ = ("block", "dead", "elements", "last_ms", "last_seq", "live", "ms", "names", "seq", "size")

    ms: int
    seq: int
    last_ms: int
    last_seq: int
    live: int
    dead: int
    size: int
    elements: int
    names: list[bytes]
    block: bytearray  # the stored one from behind its checksum on; sealed() fills in what comes before COUNTS

    @staticmethod
    def start(ms: int, seq: int, flat: list[bytes]) -> NodeBuilder:
        """A new node without entries, whose master entry has the names in ``flat``."""
        node = NodeBuilder()
        node.ms = node.last_ms = ms
        node.seq = node.last_seq = seq
        node.live = node.dead = 0
        node.names = flat[::2]
        node.block = p = bytearray(COUNTS + room_for(raw_size(node.names), len(node.names) + 4) + 1)
        at = put_integer(p, COUNTS, 0)
        at = put_integer(p, at, 0)
        at = put_integer(p, at, len(node.names))
        for name in node.names:
            at = put_value(p, at, name)
        at = put_integer(p, at, 0)
        p[at] = 0xFF
        del p[at + 1:]
        node.elements = len(node.names) + 4
        node.size = len(p) - HEAD_SIZE
        return node

    @staticmethod
    def open(listpack: bytes, ms: int, seq: int) -> NodeBuilder:
        """The node that is stored as ``listpack``: checks its frame, master and last entry."""
        walk = open_node(listpack, ms, seq)
        if not 0 <= walk.live <= len(listpack):  # an entry takes a byte at least
            raise CorruptionError(f"a node counts {walk.live} entries in {len(listpack)} bytes", offset=6)
        node = NodeBuilder()
        node.ms = ms
        node.seq = seq
        node.live = walk.live
        node.dead = walk.dead
        node.names = walk.names
        counts = integer_element(walk.live) + integer_element(walk.dead)  # in their smallest encoding, as we write them
        node.block = bytearray(COUNTS) + counts + listpack[walk.body:]
        node.elements = stated(listpack)
        node.size = len(node.block) - HEAD_SIZE
        if walk.first < walk.end:
            backward(walk)
            skip(walk)
        node.last_ms = walk.ms
        node.last_seq = walk.seq
        return node

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

    def push(self, ms: int, seq: int, flat: list[bytes], capacity: int, max_bytes: int, max_entries: int) -> bool:
        """Add an entry, if the node takes it; whether it did.

        ``flat`` comes from flatten(). The node takes it while the listpack stays within ``capacity`` bytes, its
        bytes before plus the entry's names and values below ``max_bytes``, and its entries, deleted ones
        included, within ``max_entries``; -1 is no limit.
        """
        taken = self.put(ms, seq, flat, None, 0, capacity, max_bytes, max_entries, 0)
        cut_off(self.block, self.size + HEAD_SIZE)
        return taken

    def fill(self, flats: list[list[bytes]] | TextColumns, at: int, ms: int, seq: int, capacity: int,
             max_bytes: int, max_entries: int, ids: list[StreamID]) -> int:
        """Push ``flats[at:]`` under ms-seq, ms-(seq+1) and so on, while the node takes them.

        The limits are push()'s. The IDs go to ``ids``; how many did.
        """
        start = at
        stop = len(flats)
        columns = flats if isinstance(flats, TextColumns) else None
        rows = [] if isinstance(flats, TextColumns) else flats
        none: list[bytes] = []
        while at < stop and self.put(ms, seq, rows[at] if columns is None else none, columns, at,
                                     capacity, max_bytes, max_entries, _SPARE):
            ids.append(id_of(StreamID, ms, seq))
            seq += 1
            at += 1
        self.block = self.block[: self.size + HEAD_SIZE]  # a copy: one that was cut would keep its memory
        return at - start

    def put(self, ms: int, seq: int, flat: list[bytes], columns: TextColumns | None, i: int, capacity: int,
            max_bytes: int, max_entries: int, spare: int) -> bool:
        """push(), but that bytes without meaning may be left behind the end mark: ``spare``, or some more.

        With ``columns`` it is their i-th entry instead.
        """
        if 0 <= max_entries <= self.live + self.dead:
            return False
        raw = raw_size(flat) if columns is None else columns.size_of(i)
        if 0 <= max_bytes <= self.size + raw:
            return False
        same = self.has_names_of(flat) if columns is None else columns.has_names(i, self.names)
        fields = len(flat) // 2 if columns is None else columns.width(i)
        ahead = difference(ms, self.ms)
        on = difference(seq, self.seq)
        p = self.block
        at = self.size + HEAD_SIZE - 1
        missing = at + 1 + room_for(raw, 2 * fields + 5) - len(p)
        if missing > 0:
            lengthen(p, missing + spare)
        if columns is None:
            end = put_entry(p, at, ahead, on, flat, same)
        else:
            end = columns.put_entry(p, at, ahead, on, i, same)
        live = self.live + 1
        grown = 0
        if live & self.live == 0:  # a power of two
            grown = integer_size(live) - integer_size(self.live)
        size = end + 1 + grown - HEAD_SIZE
        if 0 <= capacity < size:
            p[at] = 0xFF
            return False
        p[end] = 0xFF
        if grown:
            p[COUNTS : COUNTS + integer_size(self.live)] = integer_element(live)
        else:
            put_integer(p, COUNTS, live)
        self.size = size
        self.live = live
        self.elements = min(self.elements + (fields + 4 if same else 2 * fields + 5), 65535)
        self.last_ms = ms
        self.last_seq = seq
        return True

    def sealed(self, seed: int, ordinal: int, span: int) -> bytes:
        """The raw block of the node: encode_block() of its listpack, in one pass and one copy.

        ``seed``: the hash of the node's key.
        """
        p = self.block
        put_front(p, 0, FORMAT, RAW, ordinal, span, self.live, self.size, self.size, self.elements)
        return joined(flipped(checksum(p, seed)), p)

    def listpack(self) -> bytes:
        """The node without its block's header."""
        return self.sealed(0, 0, 0)[HEADER_SIZE:]


def difference(left: int, right: int) -> int:
    """``left - right`` of two u64, modulo 2**64, as the int64 with the same bits."""
    return (((left - right) & MASK) ^ SIGN) - SIGN
