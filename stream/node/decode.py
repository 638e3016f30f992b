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

      first                start  fields            behind                 end
        |                    |      |                 |                     |
    | master | entry | ... | flags ID | f v ... | lp-count | entry | ... | 0xFF |
        `----------------->  enter()    take() or skip()     <----------------'
             forward()                                            backward()

A Walk holds one place in one node. forward() and backward() read the flags and the ID of the
next entry and check that IDs ascend; take() makes an Entry of it, skip() passes over it, and
both check the lp-count behind its fields. What an element states as its size is checked
against the end of the list and against its backlen before it is used.
"""

from __future__ import annotations

from typing import NoReturn

from ...storage.errors import CorruptionError
from .entry import (
    Entry,  # cimport
    flatten,
)
from .listpack import (
    after,  # cimport
    before,  # cimport
    checked_end,  # cimport
    element_size,  # cimport
    frame,  # cimport
    integer_at,  # cimport
    integer_element,  # cimport
    is_integer,  # cimport
    stated,
    validate,
    value_at,  # cimport
)

__all__ = [
    "Entry", "compact", "counts", "decode", "first_live", "flatten", "last_entry_id", "last_live",
    "live_before", "live_ids", "mark_deleted", "nth_live", "validate_node",
]  # fmt: skip

SOURCE_HASH = ""

DELETED = 1
SAMEFIELDS = 2
HEADER = 6
MASK = (1 << 64) - 1

ID = tuple[int, int]


def same_part(p: bytes, pos: int, other: bytes, at: int, size: int) -> bool:  # cimport
    """Are ``size`` bytes at ``pos`` of ``p`` the same as those at ``at`` of ``other``?"""
    return p[pos : pos + size] == other[at : at + size]


def bytes_from(data: bytes, begin: int) -> bytes:  # cimport
    """The bytes from ``begin`` on: in C a pointer to them."""
    return data[begin:] if begin else data


def damaged(what: str, offset: int) -> NoReturn:
    """Raise CorruptionError. A function, so that the inner loops carry no formatting."""
    raise CorruptionError(f"a node {what}", offset=offset)


class Walk:
    """A place in a node: the entry entered last, and where its fields begin."""

    __slots__ = (
        "behind", "body", "data", "dead", "end", "first", "flags", "live", "master_ms",
        "master_seq", "met", "ms", "names", "own", "p", "pos", "seen", "seq", "start", "tail", "width",
    )  # fmt: skip

    data: bytes  # keeps alive what p points into
    p: bytes
    end: int  # offset of the end mark
    body: int  # offset of the master's num-fields
    first: int  # offset of the first entry
    pos: int  # where the next element is read
    start: int  # the entry entered last
    behind: int  # backwards: where it must end, else 0
    tail: int  # backwards: the entry before is looked for here
    seen: int  # entries entered so far
    met: int  # live entries entered so far, where read_on() counts them
    live: int  # as the master states
    dead: int
    width: int  # number of the master's names
    own: int  # pairs of an entry with names of its own, else 0
    flags: int
    names: list[bytes]
    master_ms: int
    master_seq: int
    ms: int  # the ID of the entry entered last
    seq: int


def open_frame(data: bytes, ms: int, seq: int, begin: int = 0) -> Walk:
    """A walk placed before the names of the master entry of a node that begins at ``begin``; the frame is checked."""
    walk = Walk()
    walk.data = data
    walk.p = bytes_from(data, begin)
    walk.end = walk.tail = checked_end(walk.p, len(data) - begin)
    walk.pos = HEADER
    walk.master_ms = walk.ms = ms
    walk.master_seq = walk.seq = seq
    walk.seen = walk.met = walk.behind = walk.own = walk.flags = walk.start = 0
    walk.live = integer(walk)
    walk.dead = integer(walk)
    walk.body = walk.pos
    if walk.live < 0 or walk.dead < 0:
        damaged("has a negative count of entries", HEADER)
    return walk


def open_node(data: bytes, ms: int, seq: int, begin: int = 0) -> Walk:
    """A walk placed before the first entry; frame and master entry are checked."""
    walk = open_frame(data, ms, seq, begin)
    count = integer(walk)
    if count < 1:
        damaged(f"has a master entry with {count} fields", walk.body)
    names = []
    while count > 0:
        names.append(value(walk))
        count -= 1
    walk.names = names
    walk.width = len(names)
    if integer(walk) != 0:
        damaged("has a master entry that does not end with 0", walk.pos)
    walk.first = walk.pos
    return walk


def open_alike(data: bytes, ms: int, seq: int, like: Walk, begin: int = 0) -> Walk:
    """open_node() for a node whose master entry mostly has the names of the node before, ``like``."""
    walk = open_frame(data, ms, seq, begin)
    size = like.first - like.body
    if walk.body + size > walk.end or not same_part(walk.p, walk.body, like.p, like.body, size):
        return open_node(data, ms, seq, begin)
    walk.names = like.names
    walk.width = like.width
    walk.pos = walk.first = walk.body + size
    return walk


def integer(walk: Walk) -> int:
    """The element here, which must be an integer; moves behind it."""
    p = walk.p
    pos = walk.pos
    b = p[pos]
    if b < 0x80 and p[pos + 1] == 1:  # pos <= end always, and the end mark is no such byte
        walk.pos = pos + 2
        return b
    following = after(p, pos, walk.end)
    if not is_integer(b):
        damaged("has a string where an integer must stand", pos)
    walk.pos = following
    return integer_at(p, pos)


def value(walk: Walk) -> bytes:
    """The element here as bytes; moves behind it."""
    p = walk.p
    pos = walk.pos
    size = element_size(p, pos, walk.end)
    walk.pos = after(p, pos, walk.end)
    return value_at(p, pos, size)


def enter(walk: Walk) -> None:
    """Read flags and ID of the entry at ``pos``, and find its fields."""
    walk.start = walk.pos
    flags = integer(walk)
    if flags < 0 or flags > 3:
        damaged(f"has an entry with the unknown flags {flags}", walk.start)
    walk.flags = flags
    walk.ms = (walk.master_ms + integer(walk)) & MASK
    walk.seq = (walk.master_seq + integer(walk)) & MASK
    walk.own = 0
    if not flags & SAMEFIELDS:
        own = integer(walk)
        if own < 1 or own > (walk.end - walk.pos) // 4:  # name and value take two bytes each
            damaged(f"has an entry with {own} fields", walk.start)
        walk.own = own


def leave(walk: Walk) -> None:
    """Read the lp-count behind an entry's fields."""
    at = walk.pos
    expected = 2 * walk.own + 4 if walk.own else walk.width + 3
    if integer(walk) != expected or (walk.behind and walk.pos != walk.behind):
        damaged("has an entry with a wrong lp-count", at)


def forward(walk: Walk) -> bool:
    """Enter the next entry; False at the end. take() or skip() must follow."""
    if walk.pos >= walk.end:
        return False
    ms = walk.ms
    seq = walk.seq
    enter(walk)
    if walk.ms < ms or (walk.ms == ms and (walk.seq < seq or (walk.seq == seq and walk.seen))):
        damaged("has entries that do not ascend", walk.start)
    walk.seen += 1
    return True


def backward(walk: Walk) -> bool:
    """Enter the entry before the one at ``tail``; False at the first. As forward()."""
    if walk.tail <= walk.first:
        return False
    p = walk.p
    ms = walk.ms
    seq = walk.seq
    walk.behind = walk.tail
    walk.pos = pos = before(p, walk.tail, walk.end)
    steps = integer(walk)
    if steps < 4 or steps > (pos - walk.first) // 2:
        damaged("has an entry with a wrong lp-count", pos)
    while steps > 0:
        pos = before(p, pos, walk.end)
        steps -= 1
    if pos < walk.first:
        damaged("has an entry with a wrong lp-count", pos)
    walk.pos = walk.tail = pos
    enter(walk)
    if (
        walk.ms < walk.master_ms
        or (walk.ms == walk.master_ms and walk.seq < walk.master_seq)
        or (walk.seen and (walk.ms > ms or (walk.ms == ms and walk.seq >= seq)))
    ):
        damaged("has entries that do not ascend", walk.start)
    walk.seen += 1
    return True


def skip(walk: Walk) -> None:
    """Pass over the fields of the entry just entered."""
    p = walk.p
    end = walk.end
    pos = walk.pos
    count = 2 * walk.own if walk.own else walk.width
    while count > 0:
        pos = after(p, pos, end)
        count -= 1
    walk.pos = pos
    leave(walk)


def take(walk: Walk) -> Entry:
    """The entry just entered, as an Entry; passes over its fields."""
    p = walk.p
    end = walk.end
    pos = walk.pos
    own = walk.own
    count = 2 * own if own else walk.width
    values = []
    while count > 0:
        b = p[pos]
        size = b - 0x7F
        if 0x80 <= b < 0xC0 and pos + size < end and p[pos + size] == size:  # most values
            values.append(p[pos + 1 : pos + size])
            pos += size + 1
        else:
            size = element_size(p, pos, end)
            values.append(value_at(p, pos, size))
            pos = after(p, pos, end)
        count -= 1
    walk.pos = pos
    leave(walk)
    entry = Entry.__new__(Entry)
    entry.deliveries = 0
    entry.idle = None
    entry.ms = walk.ms
    entry.seq = walk.seq
    if own:
        entry.names = values[::2]
        entry.values = values[1::2]
    else:
        entry.names = walk.names
        entry.values = values
    return entry


def check_counts(walk: Walk, live: int) -> None:
    """After a walk over the whole node: are there as many entries as the master says?"""
    if live != walk.live or walk.seen - live != walk.dead:
        damaged(
            f"states {walk.live} live and {walk.dead} deleted entries and has {live} "
            f"and {walk.seen - live}",
            HEADER,
        )


# -- whole nodes ----------------------------------------------------------------------------------


def decode(listpack: bytes, ms: int, seq: int, lo_ms: int, lo_seq: int, hi_ms: int, hi_seq: int, limit: int = -1,
           reverse: bool = False) -> list[Entry]:
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


def read_on(listpack: bytes, ms: int, seq: int, lo_ms: int, lo_seq: int, limit: int, before: Walk | None
            ) -> tuple[list[Entry], Walk]:
    """The live entries of the node ``ms-seq`` from lo on, at most ``limit`` (-1: all); and the walk, for the next call.

    ``before``: the walk of an earlier call, over the node as it was then. Where that has stopped before lo, and all up
    to there is as it was, this one goes on there. Raises CorruptionError. Cost: the elements from there to the last
    entry, and a comparison of the bytes before.
    """
    if before is None:
        walk = open_node(listpack, ms, seq)
    else:
        walk = open_alike(listpack, ms, seq, before)
        size = before.pos - before.first
        if (
            (before.ms < lo_ms or (before.ms == lo_ms and before.seq < lo_seq))
            and walk.first + size <= walk.end
            and same_part(walk.p, walk.first, before.p, before.first, size)
        ):
            walk.pos = walk.first + size
            walk.ms, walk.seq, walk.seen, walk.met = before.ms, before.seq, before.seen, before.met
    found = []
    while limit != 0:
        if not forward(walk):
            check_counts(walk, walk.met)
            break
        below = walk.ms < lo_ms or (walk.ms == lo_ms and walk.seq < lo_seq)
        if walk.flags & DELETED:
            skip(walk)
            continue
        walk.met += 1
        if below:
            skip(walk)
            continue
        found.append(take(walk))
        limit -= 1
    return found, walk


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
    """The ID of the first entry that is not deleted; None if all are."""
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


def mark_deleted(listpack: bytes, ms: int, seq: int, ids: list[ID]) -> tuple[bytes, list[ID], int]:
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
