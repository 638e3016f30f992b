"""Ordinals: which of a stream's entries are deleted, counted; and which leaf holds an ordinal.

The ordinal of an entry is the number of entries ever added before it. Two families of rows
turn ordinals into counts without a scan; appends write one row of them every 64th leaf.

Deleted ordinals (DeadCounts): a bitmap, and counters of what is marked below them

    level 3   [ 3 . . . ... ]               256 counters of 8 bytes, a row for 2^36 ordinals
                |
    level 2   [ 1 2 . . ... ]               256 counters of 4 bytes, a row for 2^28
                | +-------------+
    level 1   [ . 1 . ... ]   [ 2 . ... ]   256 counters of 2 bytes, a row for 2^20
                  |             |
    level 0     [ ..#.. ]     [ #.#.. ]     4,096 bits, bit i is ordinal 4,096 * index + i

    key    number (8)  20  level (1)  index (8)
    row    [bin]: little-endian, zeros cut off at its end (whole counters, whole bytes)

Drawn are ordinals 4,098, 2^20 and 2^20 + 2: three deletions, six rows. A row is there if and
only if the counter above it is not 0, but for rows that drop_below() took away. Those of
level 3 stay: without one there are no deletions. A count reads at most four rows.

A deletion of k entries of a node marks the first k ordinals of the node, not those of the
entries: counts are asked for at the borders of nodes only, and so rewriting a node never
moves a mark.

The ordinal index (OrdinalIndex): of every 64th leaf its first ordinal and its master ID

    key    number (8)  21  ordinal (8)
    row    [ms, seq]
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from itertools import takewhile

from ..errors import CorruptionError
from ..format.keys import DEAD, ORDINAL, family
from ..format.records import seal, unseal
from .rax import Rax, RaxTransaction, family_rows

EVERY = 64  # leaves from one row of the ordinal index to the next

_TOP = 3
_SHIFT = (12, 20, 28, 36)  # by level: a row covers 1 << _SHIFT[level] ordinals
_BITMAP = 1 << _SHIFT[0]
_FAN = 256  # counters in a row
_SIZE = (1, 2, 4, 8)  # by level: bytes of a counter (at level 0, of eight bits)
_CODE = ("B", "H", "I", "Q")  # by level: the array type of that size
_BIT_STEPS = tuple((1 << power, (1 << (1 << power)) - 1) for power in range(11, -1, -1))
_SWAP = sys.byteorder == "big"


class DeadCounts:
    """The ordinals of one stream that are deleted in the middle, in an LMDB transaction.

    ``txn`` is a transaction on the main database (a write transaction for the methods that
    write), ``number`` the stream's number. Nothing is kept between calls. Ordinals are below
    2^64. Every method raises CorruptionError if a row it reads is damaged, missing, or differs
    from the counter that led to it; a call that raises has written nothing.

    After ``drop_below(n)`` only ordinals from n on may be asked for or marked.
    """

    def __init__(self, txn: RaxTransaction, number: int) -> None:
        self._txn = txn
        self._number = number
        start = family(number, DEAD)
        self._prefix = (start + b"\0", start + b"\1", start + b"\2", start + b"\3")  # by level

    def mark(self, ordinal: int) -> None:
        """Mark one ordinal as deleted. CorruptionError if it is marked already. Four rows."""
        self.mark_span(ordinal, ordinal + 1)

    def mark_span(self, start: int, stop: int) -> None:
        """Mark the ordinals from ``start`` to before ``stop``, all of them or none.

        Each row concerned is read once and written once: one for every 4,096 ordinals, and
        those above them. CorruptionError, naming the ordinal, if one is marked already.
        """
        rows: list[tuple[bytes, bytes]] = []
        if start < stop:
            for index in range(start >> _SHIFT[_TOP], (stop - 1 >> _SHIFT[_TOP]) + 1):
                self._add(rows, (_TOP, index), None, start, stop)
        for key, value in rows:
            self._txn.put(key, value)

    def dead_before(self, x: int) -> int:
        """How many ordinals below ``x`` have ever been marked, dropped rows included.

        Cost: one look-up if the stream has no deletions, else at most four rows (plus one for
        every 2^36 ordinals below x).
        """
        top, total = x >> _SHIFT[_TOP], 0
        if top:
            total = sum(sum(row) for _, row in takewhile(lambda item: item[0] < top, self._tops()))
        if self._txn.get(self._key(_TOP, top)) is None:
            return total
        dead: int | None = None
        for level in (3, 2, 1):
            child = x >> _SHIFT[level - 1] & (_FAN - 1)
            if child == 0 and level > 1:
                dead = None  # nothing in this row is in front of x: it need not be read
                continue
            counters = self._counters(level, x >> _SHIFT[level], dead)
            total += sum(counters[:child])
            dead = counters[child] if child < len(counters) else 0
            if not dead:
                return total
        bits = self._bitmap(x >> _SHIFT[0], dead or 0)
        return total + (bits & (1 << (x & (_BITMAP - 1))) - 1).bit_count()

    def dead_between(self, a: int, b: int) -> int:
        """How many ordinals from ``a`` to before ``b`` are marked; ``b`` is not less than ``a``.

        Within the same 2^20 ordinals it costs three rows, else what dead_before() does, twice.
        """
        row = a >> _SHIFT[1]
        if a >= b or row != b >> _SHIFT[1]:
            dead = self.dead_before(b) if b > a else 0
            return dead - self.dead_before(a) if dead else 0
        if self._txn.get(self._key(_TOP, a >> _SHIFT[_TOP])) is None:
            return 0
        counters = self._counters(1, row, None)
        first, last = a >> _SHIFT[0], b >> _SHIFT[0]
        low, high = first & (_FAN - 1), last & (_FAN - 1)
        total = sum(counters[low:high])
        for index, child, x, sign in ((last, high, b, 1), (first, low, a, -1)):
            dead = counters[child] if child < len(counters) else 0
            if dead:
                bits = self._bitmap(index, dead)
                total += sign * (bits & (1 << (x & (_BITMAP - 1))) - 1).bit_count()
        return total

    def select_live(self, live: int) -> int:
        """The ordinal that is not marked and has ``live`` unmarked ordinals before it.

        Beyond the last mark every ordinal is unmarked. Cost: as dead_before().
        """
        # 1. Find the row of level 3. Where there is none, all ordinals are unmarked.
        end = 0
        for index, counters in self._tops():
            start = index << _SHIFT[_TOP]
            if live < start - end:
                break
            live -= start - end
            end = start + (1 << _SHIFT[_TOP])
            dead = sum(counters)
            if live < end - start - dead:
                return self._select_in(index, counters, dead, live)
            live -= end - start - dead
        return end + live

    def drop_below(self, ordinal: int, limit: int = 1000) -> int:
        """Delete up to ``limit`` rows that are wholly below the ordinal; return how many.

        All answers for ordinals from there on stay as they were: the counters above are kept.
        If ``limit`` rows were deleted, more may be left: call again.
        """
        done = 0
        # From the bottom up: no row may be left without the row that counts it. The rows of
        # level 3 are counted nowhere, so they stay.
        for level in range(_TOP):
            stop = self._key(level, ordinal >> _SHIFT[level])
            done += _delete(self._txn, self._prefix[level], stop, limit - done)
        return done

    def _select_in(self, index: int, counters: array[int], dead: int, live: int) -> int:
        """select_live() in a row of level 3 that has ``dead`` marked and > ``live`` unmarked."""
        for level in (3, 2, 1):
            if level < _TOP:
                counters = self._counters(level, index, dead)
                if sum(counters) != dead:
                    raise self._damaged(_difference(level, index, sum(counters), dead))
            # 2. Behind the last counter stored all ordinals are unmarked. In front of it: halve
            #    the row until one counter is left, passing over halves with too few unmarked.
            shift = _SHIFT[level - 1]
            step = 1 << (len(counters) - 1).bit_length()
            unmarked = (step << shift) - dead
            if live >= unmarked:
                return ((index * _FAN + step) << shift) + live - unmarked
            child = 0
            while step > 1:
                step >>= 1
                unmarked = (step << shift) - sum(counters[child : child + step])
                if live >= unmarked:
                    live -= unmarked
                    child += step
            dead = counters[child] if child < len(counters) else 0
            index = index * _FAN + child
            if not dead:
                return (index << shift) + live
        # 3. Halve the bitmap in the same way until one bit is left.
        bits = self._bitmap(index, dead)
        place = index << _SHIFT[0]
        for step, mask in _BIT_STEPS:
            half = bits & mask
            unmarked = step - half.bit_count()
            if live >= unmarked:
                live -= unmarked
                place += step
                half = bits >> step
            bits = half
        return place

    def _add(self, rows: list[tuple[bytes, bytes]], at: tuple[int, int], dead: int | None,
             start: int, stop: int) -> None:
        """Put into ``rows`` what marking start..stop makes of the row ``at`` and those below."""
        level, index = at
        key = self._key(level, index)
        if level == 0:
            bits = self._bitmap(index, dead or 0)
            base = index << _SHIFT[0]
            fresh = (1 << min(stop - base, _BITMAP)) - (1 << max(start - base, 0))
            if twice := bits & fresh:
                first = base + (twice & -twice).bit_length() - 1
                raise self._damaged(f"ordinal {first} is marked as deleted already")
            bits |= fresh
            rows.append((key, seal(key, [bits.to_bytes((bits.bit_length() + 7) // 8, "little")])))
            return
        counters = self._counters(level, index, dead)
        shift = _SHIFT[level - 1]
        first = max(start >> shift, index * _FAN)
        last = min(stop - 1 >> shift, index * _FAN + _FAN - 1)
        more = (last & (_FAN - 1)) + 1 - len(counters)
        counters.frombytes(bytes(max(more, 0) * _SIZE[level]))
        for child in range(first, last + 1):
            slot = child & (_FAN - 1)
            self._add(rows, (level - 1, child), counters[slot], start, stop)
            counters[slot] += min(stop, child + 1 << shift) - max(start, child << shift)
        if _SWAP:
            counters.byteswap()
        rows.append((key, seal(key, [counters.tobytes()])))

    def _key(self, level: int, index: int) -> bytes:
        return self._prefix[level] + index.to_bytes(8, "big")

    def _tops(self) -> Iterator[tuple[int, array[int]]]:
        """The rows of level 3, in order."""
        for key, value in family_rows(self._txn, self._prefix[_TOP]):
            yield int.from_bytes(key[10:], "big"), _unpack(_TOP, _payload(_TOP, key, value))

    def _counters(self, level: int, index: int, dead: int | None) -> array[int]:
        """The counters of a row, none if it is not there. ``dead``: the one above, where known."""
        key = self._key(level, index)
        value = self._txn.get(key)
        if value is not None:
            counters = _unpack(level, _payload(level, key, value))
            if dead == 0:
                raise self._damaged(_difference(level, index, sum(counters), 0))
            return counters
        if dead is None and level < _TOP:
            above = self._counters(level + 1, index // _FAN, None)
            dead = above[index % _FAN] if index % _FAN < len(above) else 0
        if dead:
            raise self._damaged(_difference(level, index, 0, dead))
        return array(_CODE[level])

    def _bitmap(self, index: int, dead: int) -> int:
        """The bits of a row of level 0, of which ``dead`` are set as the counter above says."""
        key = self._key(0, index)
        value = self._txn.get(key)
        bits = 0 if value is None else int.from_bytes(_payload(0, key, value), "little")
        if bits.bit_count() != dead:
            raise self._damaged(_difference(0, index, bits.bit_count(), dead))
        return bits

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(what, stream=f"no. {self._number}")


class OrdinalIndex:
    """Of every 64th leaf of a stream: its first ordinal, and the master ID that leads to it.

    From floor() it is a walk over at most 64 leaves. A leaf that is gone still marks the place.
    """

    def __init__(self, txn: RaxTransaction, number: int) -> None:
        self._txn = txn
        self._prefix = family(number, ORDINAL)

    def note(self, ordinal: int, ms: int, seq: int) -> None:
        """Note the leaf ``ms-seq`` under the ordinal of its first entry. One put."""
        key = self._prefix + ordinal.to_bytes(8, "big")
        self._txn.put(key, seal(key, [ms, seq]))

    def floor(self, ordinal: int) -> tuple[int, int, int] | None:
        """The greatest noted ordinal that is not above ``ordinal``, with ms and seq of its leaf.

        None if there is none. CorruptionError if its row is damaged. One seek.
        """
        found = Rax(self._txn, self._prefix).floor(ordinal.to_bytes(8, "big"))
        return None if found is None else _noted(self._prefix + found[0], found[1])

    def drop_below(self, ordinal: int) -> int:
        """Delete up to 1,000 notes of ordinals below that of the note that floor(ordinal) finds; return how many.

        If it were as many, more may be left: call again.
        """
        kept = self.floor(ordinal)
        stop = self._prefix + (kept[0] if kept else 0).to_bytes(8, "big")
        return _delete(self._txn, self._prefix, stop, 1000)

    def all(self) -> Iterator[tuple[int, int, int]]:
        """All notes in order: ordinal, ms, seq."""
        return (_noted(key, value) for key, value in family_rows(self._txn, self._prefix))


def problems(txn: RaxTransaction, number: int, base: int | None = None) -> list[str]:
    """What is wrong with the deleted ordinals and the ordinal index of a stream; [] if nothing.

    Every counter must equal what is marked in the row below it, and noted IDs must ascend. What
    drop_below() took away cannot be compared: a row may be missing if all stored rows of its
    level follow it and, where ``base`` (the stream's first ordinal) is given, it is wholly
    below ``base``. If a row cannot be read, no counters are compared. Reads every row.
    """
    found: list[str] = []
    marked: list[dict[int, int]] = [{} for _ in _SHIFT]  # by level: row -> what it marks
    counted: list[dict[int, int]] = [{} for _ in _SHIFT]  # the same, as the row above it says
    for key, value in family_rows(txn, family(number, DEAD)):
        level, index = key[9], int.from_bytes(key[10:], "big")
        try:
            payload = _payload(level, key, value)
        except CorruptionError as error:
            found.append(error.what)
            continue
        if level == 0:
            marked[0][index] = int.from_bytes(payload, "little").bit_count()
        else:
            counters = _unpack(level, payload)
            marked[level][index] = sum(counters)
            counted[level - 1].update(enumerate(counters, index * _FAN))
    for level in () if found else range(_TOP):
        rows, first = marked[level], min(marked[level], default=None)
        for index in sorted(rows.keys() | counted[level].keys()):
            says, has = counted[level].get(index, 0), rows.get(index, 0)
            end = index + 1 << _SHIFT[level]
            dropped = index not in rows and (first is None or index < first)
            if says != has and not (dropped and (base is None or end <= base)):
                found.append(_difference(level, index, has, says))
    last = (-1, -1)
    for key, value in family_rows(txn, family(number, ORDINAL)):
        try:
            ordinal, *leaf = _noted(key, value)
        except CorruptionError as error:
            found.append(error.what)
            continue
        if tuple(leaf) <= last:
            found.append(f"the leaf noted for ordinal {ordinal} is not behind the one before it")
        last = (leaf[0], leaf[1])
    return found


def _difference(level: int, index: int, marked: int, counted: int) -> str:
    first = index << _SHIFT[level]
    return (
        f"of the ordinals {first} to {first + (1 << _SHIFT[level]) - 1}, {marked} are marked as "
        f"deleted in row {index} of level {level}, {counted} by the counter above it"
    )


def _delete(txn: RaxTransaction, start: bytes, stop: bytes, limit: int) -> int:
    """Delete up to ``limit`` rows with keys from ``start`` to before ``stop``; return how many."""
    done = 0
    with txn.cursor() as cursor:
        while done < limit and cursor.set_range(start) and start <= (key := cursor.key()) < stop:
            txn.delete(key)
            done += 1
    return done


def _payload(level: int, key: bytes, value: bytes) -> bytes:
    """What is inside a row of the deleted ordinals, after its checksum has been verified."""
    row = unseal(key, value)
    if level <= _TOP and len(row) == 1 and isinstance(row[0], bytes):
        payload: bytes = row[0]
        most = _FAN * _SIZE[level] if level else _BITMAP // 8
        if 0 < len(payload) <= most and len(payload) % _SIZE[level] == 0:
            return payload
    raise CorruptionError(f"the record under key {key.hex()} is no row of deleted ordinals")


def _unpack(level: int, payload: bytes) -> array[int]:
    counters = array(_CODE[level], payload)
    if _SWAP:
        counters.byteswap()
    return counters


def _noted(key: bytes, value: bytes) -> tuple[int, int, int]:
    ms, seq = unseal(key, value)
    return int.from_bytes(key[9:], "big"), ms, seq
