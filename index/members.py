"""Members: who subscribed to one pattern, in small rows of up to 200.

    key     kind 12 or 13, the pattern's key form, 00                 the head
            the same + first ID (8)                                   further rows, IDs ascending

    row     [further, ids, kinds, queues, weights, names]
            further   in the head: how many further rows there are
            ids       8 bytes each, big-endian, ascending, in one bin
            kinds     one number where all are equal, else a bin with a byte for each
            queues    nil where all are plain, else a bin: 0 plain, n the n-th of ``names``
            weights   one number where all are equal, else a list
            names     the queues met in this row

So a match reads one row for 200 subscribers, with all it needs of them, and a new subscriber
rewrites one row, the last. A head stays, empty, as long as there is a further row. Rows are cut
where they would leave LMDB's leaf page (2,001 bytes), and a row that has shrunk is joined to its
neighbour when both fill half of one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from ..storage.commit.write_transaction import WriteTransaction
from ..storage.errors import CorruptionError
from ..storage.rax import RaxTransaction
from ..storage.records import seal, unseal

CAPACITY = 200
MAX_VALUE = 2001


class Row(NamedTuple):
    """One subscriber of a pattern, as far as a match must know it."""

    id: int
    kind: int
    queue: bytes | None
    weight: int


_row = partial(tuple.__new__, Row)  # a quarter of what calling Row takes


def encode(key: bytes, further: int, rows: Sequence[Row]) -> bytes:
    """The record to store under ``key``."""
    if len(rows) == 1:  # most patterns have one subscriber
        number, kind, queue, weight = rows[0]
        alone = [further, number.to_bytes(8, "big"), kind, None, weight, []]
        if queue is not None:
            alone[3], alone[5] = b"\1", [queue]
        return seal(key, alone)
    ids, kinds, queues, weights = zip(*rows, strict=True) if rows else ((),) * 4
    names = [name for name in dict.fromkeys(queues) if name is not None]
    places = {name: place for place, name in enumerate([None, *names])}
    return seal(key, [
        further,
        struct.pack(f">{len(ids)}Q", *ids),
        kinds[0] if len(set(kinds)) == 1 else bytes(kinds),
        bytes([places[queue] for queue in queues]) if names else None,
        weights[0] if len(set(weights)) == 1 else weights,
        names,
    ])


def ids_of(packed: bytes) -> tuple[int, ...]:
    """The IDs of a row's bin."""
    return struct.unpack(f">{len(packed) // 8}Q", packed)


def decode(key: bytes, value: bytes) -> tuple[int, list[Row]]:
    """How many further rows there are, and the subscribers of this one."""
    further, packed, kinds, queues, weights, names = unseal(key, value)
    ids = ids_of(packed)
    count = len(ids)
    for column in (kinds, queues, weights):
        if column is not None and not isinstance(column, int) and len(column) != count:
            raise CorruptionError(f"the columns of the subscribers under {key.hex()} differ in length")
    table = [None, *names]
    return further, list(map(_row, zip(
        ids, repeat(kinds) if isinstance(kinds, int) else kinds,
        repeat(None) if queues is None else [table[place] for place in queues],
        repeat(weights) if isinstance(weights, int) else weights, strict=False,
    )))


def further_rows(txn: RaxTransaction, head: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows behind a head, which must be ``count``. CorruptionError where one is missing."""
    cursor = txn.cursor()
    found = cursor.set_range(head + b"\0")
    for _ in range(count):
        key = cursor.key()
        if not found or not key.startswith(head) or len(key) != len(head) + 8:
            raise CorruptionError(f"of the subscribers under {head.hex()} {count} further rows should be there")
        yield key, cursor.value()
        found = cursor.next()


def all_rows(txn: RaxTransaction, head: bytes) -> list[Row]:
    """Everybody who subscribed to the pattern with this head."""
    value = txn.get(head)
    if value is None:
        return []
    further, rows = decode(head, value)
    for key, more in further_rows(txn, head, further):
        rows += decode(key, more)[1]
    return rows


class Members:
    """The rows of one pattern, for a change. ``head`` is the key of its first row."""

    __slots__ = ("_txn", "further", "head")

    def __init__(self, txn: WriteTransaction, head: bytes) -> None:
        self._txn = txn
        self.head = head

    def add(self, rows: Sequence[Row]) -> bool:
        """Add subscribers whose IDs ascend and exceed all that are there. Whether they are the first."""
        value = self._txn.get(self.head)
        if value is None:
            if len(rows) == 1:
                self._txn.put(self.head, encode(self.head, 0, rows))
                return True
            added = self._put_cut(self.head, rows)
            if added > 1:
                self._set_further(added - 1)
            return True
        further, old = decode(self.head, value)
        last = self.head
        if further:
            last = self._floor(b"\xff" * 8)
            old = decode(last, self._value(last))[1]
        free = CAPACITY - len(old)
        start = 0
        if free > 0:
            longer = old + list(rows[:free])
            packed = encode(last, 0 if further else further, longer)
            if len(packed) <= MAX_VALUE:
                start = free
                self._txn.put(last, packed)
        made = self._put_cut(None, rows[start:]) if rows[start:] else 0
        if made:
            self._set_further(further + made)
        return False

    def remove(self, ids: Iterable[int]) -> tuple[list[Row], bool]:
        """Remove those of the subscribers that are there; they, and whether nobody is left."""
        value = self._txn.get(self.head)
        if value is None:
            return [], False
        wanted = set(ids)
        if not unseal(self.head, value)[0]:
            rows = decode(self.head, value)[1]
            return self._remove_from(self.head, 0, rows, wanted), len(wanted) >= len(rows) and not self._is_there()
        gone: list[Row] = []
        left = sorted(wanted)
        start = 0
        while start < len(left) and self._is_there():
            key = self._floor(left[start].to_bytes(8, "big"))
            further, rows = decode(key, self._value(key))
            following = self._after(key)
            bound = 1 << 64 if following is None else int.from_bytes(following[-8:], "big")
            end = bisect_left(left, bound, start)
            gone += self._remove_from(key, further, rows, set(left[start:end]))
            start = end
        return gone, not self._is_there()

    def change(self, number: int, new: Callable[[Row], Row]) -> bool:
        """Replace one subscriber by what ``new`` makes of it; False if it is not there."""
        if self._txn.get(self.head) is None:
            return False
        key = self._floor(number.to_bytes(8, "big"))
        further, rows = decode(key, self._value(key))
        changed = [new(row) if row.id == number else row for row in rows]
        if not any(row.id == number for row in rows):
            return False
        if len(encode(key, further, changed)) > MAX_VALUE:
            half = len(changed) // 2
            self._txn.put(key, encode(key, further, changed[:half]))
            self._put_cut(None, changed[half:])
            self._set_further(self._further() + 1)
        else:
            self._txn.put(key, encode(key, further, changed))
        return True

    # -- rows ---------------------------------------------------------------------------

    def _is_there(self) -> bool:
        return self._txn.get(self.head) is not None

    def _remove_from(self, key: bytes, further: int, rows: list[Row], wanted: set[int]) -> list[Row]:
        """Take subscribers out of one row; those that were in it."""
        gone = [row for row in rows if row.id in wanted]
        if gone:
            self._replace(key, further, [row for row in rows if row.id not in wanted])
        return gone

    def _value(self, key: bytes) -> Any:
        value = self._txn.get(key)
        if value is None:
            raise CorruptionError(f"the row {key.hex()} of subscribers is missing")
        return value

    def _further(self) -> int:
        further: int = unseal(self.head, self._value(self.head))[0]
        return further

    def _set_further(self, further: int) -> None:
        row = unseal(self.head, self._value(self.head))
        self._txn.put(self.head, seal(self.head, [further, *row[1:]]))

    def _floor(self, packed: bytes) -> bytes:
        """The key of the row that holds this ID, if any does. The head is there."""
        cursor = self._txn.cursor()
        wanted = self.head + packed
        if cursor.set_range(wanted):
            if cursor.key() == wanted:
                return wanted
            cursor.prev()
        else:
            cursor.last()
        key: bytes = cursor.key()
        if not key.startswith(self.head):
            raise CorruptionError(f"the subscribers under {self.head.hex()} have lost their first row")
        return key

    def _after(self, key: bytes) -> bytes | None:
        cursor = self._txn.cursor()
        if not cursor.set_range(key + b"\0"):
            return None
        following: bytes = cursor.key()
        return following if following.startswith(self.head) else None

    def _put_cut(self, key: bytes | None, rows: Sequence[Row]) -> int:
        """Store rows from ``key`` on (None: under their own first ID), cut to size; how many rows."""
        made = 0
        pieces = [rows[at : at + CAPACITY] for at in range(0, len(rows), CAPACITY)]
        while pieces:
            piece = pieces.pop(0)
            at = self.head + piece[0].id.to_bytes(8, "big") if key is None else key
            packed = encode(at, 0, piece)
            if len(packed) > MAX_VALUE and len(piece) > 1:
                half = len(piece) // 2
                pieces[:0] = [piece[:half], piece[half:]]
                continue
            self._txn.put(at, packed)
            key = None
            made += 1
        return made

    def _replace(self, key: bytes, further: int, rows: list[Row]) -> None:
        """Store what is left of a row, join it to a neighbour, or delete it."""
        head = self.head
        if len(rows) * 4 > CAPACITY:
            self._txn.put(key, encode(key, further, rows))
            return
        if key == head:
            if not further:
                if rows:
                    self._txn.put(head, encode(head, 0, rows))
                else:
                    self._txn.delete(head)
                return
            self._txn.put(head, encode(head, further, rows))
            following = self._after(head)
            if following is None:
                raise CorruptionError(f"of the subscribers under {head.hex()} {further} further rows should be there")
            self._join(head, further, rows, following, decode(following, self._value(following))[1])
            return
        before = self._floor((int.from_bytes(key[-8:], "big") - 1).to_bytes(8, "big"))
        its_further, its_rows = decode(before, self._value(before))
        if not self._join(before, its_further, its_rows, key, rows):
            self._txn.put(key, encode(key, 0, rows))

    def _join(self, first: bytes, further: int, rows: list[Row], second: bytes, others: list[Row]) -> bool:
        """Put two neighbouring rows into the first, if that leaves it room for as many again."""
        both = rows + others
        if len(both) * 2 > CAPACITY and rows and others:
            return False
        packed = encode(first, further, both)
        if len(packed) * 2 > MAX_VALUE and rows and others:
            return False
        self._txn.delete(second)
        self._txn.put(first, packed)
        left = self._further() - 1
        if first != self.head and not both:
            raise CorruptionError(f"the row {first.hex()} of subscribers is empty")
        if left or unseal(self.head, self._value(self.head))[1]:
            self._set_further(left)
        else:
            self._txn.delete(self.head)
        return True
