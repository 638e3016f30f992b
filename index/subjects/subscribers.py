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
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.errors import CorruptionError
from ...storage.format.records import seal, unseal
from ...storage.trees.rax import RaxTransaction

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


def all_rows(txn: RaxTransaction, head: bytes, value: bytes | None) -> list[Row]:
    """Everybody who subscribed to the pattern with this head, whose value is None where it is not there."""
    if value is None:
        return []
    further, rows = decode(head, value)
    for key, more in further_rows(txn, head, further):
        rows += decode(key, more)[1]
    return rows


class Members:
    """The rows of one pattern, for a change. ``head`` is the key of its first row."""

    __slots__ = ("_further", "_head", "_txn")

    def __init__(self, txn: WriteTransaction, head: bytes) -> None:
        self._txn = txn
        self._head = head
        value = txn.get(head)
        self._further: int | None = None if value is None else unseal(head, value)[0]  # None: there is no head

    def add(self, rows: list[Row]) -> bool:
        """Add subscribers whose IDs ascend and exceed all that are there. Whether they are the first."""
        if self._further is None:
            self._replace([self._head], rows)
            return True
        last = self._floor((1 << 64) - 1)
        old = self._rows(last)
        if len(encode(last, 0, old + rows[: CAPACITY - len(old)])) <= MAX_VALUE:
            self._replace([last], old + rows)
        else:
            self._replace([], rows)  # what is full stays as it is
        return False

    def remove(self, ids: Iterable[int]) -> tuple[list[Row], bool]:
        """Remove those of the subscribers that are there; they, and whether nobody is left."""
        gone: list[Row] = []
        wanted = sorted(set(ids))
        while wanted and self._further is not None:
            key = self._floor(wanted[0])
            rows = self._rows(key)
            end = bisect_right(wanted, max(wanted[0], rows[-1].id if rows else 0))
            here = set(wanted[:end])
            del wanted[:end]
            left = [row for row in rows if row.id not in here]
            if len(left) < len(rows):
                gone += [row for row in rows if row.id in here]
                self._shrink(key, left)
        return gone, self._further is None

    def change(self, number: int, new: Callable[[Row], Row]) -> bool:
        """Replace one subscriber by what ``new`` makes of it; False if it is not there."""
        if self._further is None:
            return False
        key = self._floor(number)
        rows = self._rows(key)
        if not any(row.id == number for row in rows):
            return False
        self._replace([key], [new(row) if row.id == number else row for row in rows])
        return True

    # -- rows ---------------------------------------------------------------------------

    def _rows(self, key: bytes) -> list[Row]:
        value = self._txn.get(key)
        if value is None:
            raise CorruptionError(f"the row {key.hex()} of subscribers is missing")
        return decode(key, value)[1]

    def _floor(self, number: int) -> bytes:
        """The key of the row that holds this ID, if any does. The head is there."""
        if not self._further:
            return self._head
        cursor = self._txn.cursor()
        wanted = self._head + number.to_bytes(8, "big")
        if cursor.set_range(wanted):
            if cursor.key() == wanted:
                return wanted
            cursor.prev()
        else:
            cursor.last()
        key: bytes = cursor.key()
        if not key.startswith(self._head):
            raise CorruptionError(f"the subscribers under {self._head.hex()} have lost their first row")
        return key

    def _shrink(self, key: bytes, rows: list[Row]) -> None:
        """Store what is left of a row, joined to a neighbour if that leaves room for as many again."""
        keys = [key]
        if self._further and len(rows) * 4 <= CAPACITY:
            if key == self._head:
                other = next(further_rows(self._txn, key, self._further))[0]
                keys, both = [key, other], rows + self._rows(other)
            else:
                other = self._floor(int.from_bytes(key[-8:], "big") - 1)
                keys, both = [other, key], self._rows(other) + rows
            if len(both) > len(rows) > 0 and (
                len(both) * 2 > CAPACITY or len(encode(key, 0, both)) * 2 > MAX_VALUE
            ):
                keys = [key]
            else:
                rows = both
        self._replace(keys, rows)

    def _replace(self, keys: list[bytes], rows: list[Row]) -> None:
        """Store subscribers in place of rows that stand side by side, cut to size."""
        head = self._head
        pieces = [rows[at : at + CAPACITY] for at in range(0, len(rows), CAPACITY)]
        made: dict[bytes, list[Row]] = {}
        while pieces:
            piece = pieces.pop(0)
            if len(piece) > 1 and len(encode(head, 0, piece)) > MAX_VALUE:
                half = len(piece) // 2
                pieces[:0] = [piece[:half], piece[half:]]
            else:
                made[head + piece[0].id.to_bytes(8, "big") if made or not keys else keys[0]] = piece
        if head in keys:
            made.setdefault(head, [])  # it stays as long as there is another row
        further = (self._further or 0) + len(made) - len(keys)
        if head not in made and further != self._further:
            made[head] = self._rows(head)
        self._further = further
        for key in keys:
            if key not in made:
                self._txn.delete(key)
        for key, piece in made.items():
            if piece or further:
                self._txn.put(key, encode(key, further if key == head else 0, piece))
            else:
                self._txn.delete(key)
                self._further = None
