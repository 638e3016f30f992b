"""Walking a node: from entry to entry, forwards and backwards, trusting nothing.

      first                start  fields            behind                 end
        |                    |      |                 |                     |
    | master | entry | ... | flags ID | f v ... | lp-count | entry | ... | 0xFF |
        `----------------->  enter()    take() or skip()     <----------------'
             forward()                                            backward()

A Walk holds one place in one node. forward() and backward() read the flags and the ID of the
next entry and check that IDs ascend; take() makes an Entry of it, skip() passes over it, and
both check the lp-count behind its fields. What an element says of its own size is checked
against the end of the list and against its backlen before it is used.

See decode.py for the format. The C types stand in cursor.pxd.
"""

from __future__ import annotations

from typing import NoReturn

from ...storage.errors import CorruptionError
from .buffers import same_part  # cimport
from .element import after, before, element_size, integer_at, is_integer, value_at  # cimport
from .entry import Entry  # cimport
from .listpack import check_frame  # cimport

SOURCE_HASH = ""

DELETED = 1
SAMEFIELDS = 2
HEADER = 6
MASK = (1 << 64) - 1


def damaged(what: str, offset: int) -> NoReturn:
    """Raise CorruptionError. A function, so that the inner loops carry no formatting."""
    raise CorruptionError(f"a node {what}", offset=offset)


class Walk:
    """A place in a node: the entry entered last, and where its fields begin."""

    __slots__ = (
        "behind", "body", "data", "dead", "end", "first", "flags", "live", "master_ms",
        "master_seq", "ms", "names", "own", "p", "pos", "seen", "seq", "start", "tail", "width",
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


def open_frame(data: bytes, ms: int, seq: int) -> Walk:
    """A walk that stands before the names of the master entry; the frame is checked."""
    walk = Walk()
    walk.data = data
    walk.end = walk.tail = check_frame(data)
    walk.p = data
    walk.pos = HEADER
    walk.master_ms = walk.ms = ms
    walk.master_seq = walk.seq = seq
    walk.seen = walk.behind = walk.own = walk.flags = walk.start = 0
    walk.live = integer(walk)
    walk.dead = integer(walk)
    walk.body = walk.pos
    if walk.live < 0 or walk.dead < 0:
        damaged("has a negative count of entries", HEADER)
    return walk


def open_node(data: bytes, ms: int, seq: int) -> Walk:
    """A walk that stands before the first entry; frame and master entry are checked."""
    walk = open_frame(data, ms, seq)
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


def open_alike(data: bytes, ms: int, seq: int, like: Walk) -> Walk:
    """open_node() for a node whose master entry mostly has the names of the node before, ``like``."""
    walk = open_frame(data, ms, seq)
    size = like.first - like.body
    if walk.body + size > walk.end or not same_part(walk.p, walk.body, like.p, like.body, size):
        return open_node(data, ms, seq)
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
