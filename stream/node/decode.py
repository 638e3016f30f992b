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

from .cursor import (  # cimport
    backward,
    check_counts,
    damaged,
    forward,
    open_node,
    skip,
    take,
)
from .element import after, integer_element  # cimport
from .entry import Entry, flatten
from .listpack import (
    frame,  # cimport
    stated,
    validate,
)

__all__ = [
    "Entry", "compact", "counts", "decode", "first_live", "flatten", "last_entry_id", "last_live",
    "live_before", "live_ids", "mark_deleted", "nth_live", "validate_node",
]  # fmt: skip

SOURCE_HASH = ""

DELETED = 1
HEADER = 6

ID = tuple[int, int]


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


def live_ids(listpack: bytes, ms: int, seq: int, lo_ms: int, lo_seq: int, hi_ms: int, hi_seq: int) -> list[ID]:
    """The IDs of the entries that decode() would give, none of which is decoded."""
    walk = open_node(listpack, ms, seq)
    found = []
    while forward(walk):
        if walk.ms > hi_ms or (walk.ms == hi_ms and walk.seq > hi_seq):
            break
        below = walk.ms < lo_ms or (walk.ms == lo_ms and walk.seq < lo_seq)
        if not below and not walk.flags & DELETED:
            found.append((walk.ms, walk.seq))
        skip(walk)
    return found


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
