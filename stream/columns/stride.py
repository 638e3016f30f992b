"""A stride: over one entry of the usual shape in a single go.

    walk.pos                        walk.pos
       |                               |
       | 2 | +0 | +3 | "book" | 3 | 6 | 2 …       same fields as the master, not deleted
                     |
                     start: what stride() answers

Nearly all entries are such. What is not, and whatever is damaged, is left to cursor.py, which says
what is wrong; nothing has changed then. So a stride checks all that a walk does, and adds nothing
to it but speed: no call per element.
"""

from __future__ import annotations

from ..node.cursor import Walk, integer, leave  # cimport
from ..node.element import backlen_size, element_size  # cimport
from .column_buffers import Column  # cimport

SOURCE_HASH = ""

SAMEFIELDS = 2
MASK = (1 << 64) - 1


def stride(walk: Walk, wanted: bytearray, slots: list[Column | None], hi_ms: int, hi_seq: int) -> int:
    """Enter the next entry and step over its fields; where they begin, or 0 if it is none of that shape.

    ``wanted`` has a 1 for each of the master's fields whose value is to be noted in its column, the
    one in ``slots``. An entry behind hi is left alone. CorruptionError as from forward() and leave().
    """
    p = walk.p
    end = walk.end
    at = pos = walk.pos
    if pos + 8 > end or p[pos] != SAMEFIELDS or p[pos + 1] != 1:
        return 0
    pos += 2
    if p[pos] < 0x80 and p[pos + 1] == 1:
        ms = (walk.master_ms + p[pos]) & MASK
        pos += 2
    else:
        walk.pos = pos
        ms = (walk.master_ms + integer(walk)) & MASK
        pos = walk.pos
    if p[pos] < 0x80 and p[pos + 1] == 1:  # pos <= end always, and the end mark is no such byte
        seq = (walk.master_seq + p[pos]) & MASK
        pos += 2
    else:
        walk.pos = pos
        seq = (walk.master_seq + integer(walk)) & MASK
        pos = walk.pos
    walk.pos = at
    if ms < walk.ms or (ms == walk.ms and (seq < walk.seq or (seq == walk.seq and walk.seen))):
        return 0
    if ms > hi_ms or (ms == hi_ms and seq > hi_seq):
        return 0
    start = pos
    width = walk.width
    i = 0
    while i < width:
        b = p[pos]
        if b < 0xC0:
            size = 1 if b < 0x80 else b - 0x7F
        elif b < 0xE0:
            size = 2
        else:
            size = b - 0xEE if 0xF1 <= b <= 0xF3 else end  # a long text, an int64, or none at all
        if pos + size < end and p[pos + size] == size:
            after = pos + size + 1
        else:
            size = element_size(p, pos, end)
            after = pos + size + backlen_size(size)
        if wanted[i]:
            column = slots[i]
            assert column is not None
            column.at = pos
            column.span = size
        pos = after
        i += 1
    walk.start = at
    walk.flags = SAMEFIELDS
    walk.own = 0
    walk.ms = ms
    walk.seq = seq
    walk.seen += 1
    if p[pos] == width + 3 and p[pos] < 0x80 and p[pos + 1] == 1:
        walk.pos = pos + 2
    else:
        walk.pos = pos
        leave(walk)
    return start
