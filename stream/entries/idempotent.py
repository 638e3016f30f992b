"""Idempotent appends: an append that is sent twice adds one entry.

    producer "p7", idempotent ID "order-1001"    known: the old entry's ID is the answer
                                                 new: append, and remember the pair

    by pair    SHA-256 of producer, of idempotent ID (16 bytes each) -> [producer, iid, ms, seq]
    by age     SHA-256 of producer, entry ID                         -> [iid's hash]
               SHA-256 of producer                                   -> [producer, how many]

A pair is remembered as long as its entry is there, and for a window of time, counted from the
ID of its entry: a day where none is set. Under a cap the oldest of a producer are forgotten
beyond so many. What can go goes with the producer's next appends, a few rows each, where its
entry lay before the stream's first, and else in maintain(): never in a trim or a delete.

A producer that sends through the door is under Redis' rules: what is out of the window (100 s)
or beyond the cap (100) is forgotten at once, and the entry is not asked for.

Where no idempotent ID is given it is a hash of the pairs, whatever their order, so that a
producer need not invent one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import NamedTuple

from xxhash import xxh3_128_intdigest

from ...storage.errors import CorruptionError, InvalidArgument
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import Rax, RaxTransaction
from ..node.arguments import member_name
from ..node.stream_id import MAX64, NewID, StreamID, make_id, unpack_id
from .header import shown
from .range_read import end_of, look_up
from .writer import StreamWriter, locate, require

MAX_WINDOW = 86_400  # seconds: also that of a stream for which none is set
MAX_CAP = 10_000
REDIS = (100, 100)  # window and cap of XADD with IDMP, where the stream sets none
_WITH_AN_APPEND = 2  # rows that each new one may remove: so the cost of an append is bounded
_AT_ONCE = 1000  # rows in one commit, 3 to 11 ms
_BEHIND = b"\xff" * 16


class RedisProducer(bytes):
    """The name of a producer that sends through the door: what it sent is remembered by Redis' rules."""


class Claim(NamedTuple):
    """The producer of an append, and the ID it gave to it."""

    producer: bytes
    iid: bytes
    by_redis: bool


def parse_claim(producer: object, idempotent_id: object, new: NewID, flat: list[bytes]) -> Claim | None:
    """Check the arguments as XADD does for IDMP and IDMPAUTO; None where not asked for."""
    if producer is None:
        if idempotent_id is not None:
            raise InvalidArgument("idempotent_id needs a producer: IDs are remembered for each producer")
        return None
    if new.ms is not None:
        raise InvalidArgument("an idempotent append makes its own ID: leave id at '*'")
    sender = member_name(producer, "producer")
    if not sender:
        raise InvalidArgument("producer must not be empty")
    by_redis = isinstance(producer, RedisProducer)
    if idempotent_id is None:
        return Claim(bytes(sender), content_hash(flat), by_redis)
    iid = member_name(idempotent_id, "idempotent ID")
    if not iid:
        raise InvalidArgument("idempotent_id must not be empty; leave it out to have it made from the fields")
    return Claim(bytes(sender), iid, by_redis)


def content_hash(flat: list[bytes]) -> bytes:
    """XXH3-128 over the pairs, in any order, as IDMPAUTO combines them: 16 bytes."""
    sum_low = sum_high = xor_low = xor_high = 0
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        digest = xxh3_128_intdigest(name + len(name).to_bytes(8, "little") + value)
        low, high = digest & MAX64, digest >> 64
        sum_low = sum_low + low & MAX64
        sum_high = sum_high + high & MAX64
        xor_low ^= low
        xor_high ^= high
    low = sum_low ^ _rotated(xor_high)
    high = sum_high ^ _rotated(xor_low)
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def _rotated(word: int) -> int:
    return (word << 1 | word >> 63) & MAX64


class Memory:
    """What one stream remembers of one producer, within a transaction: by Redis' rules, or by our own."""

    def __init__(self, txn: WriteTransaction, stream: StreamWriter, producer: bytes, by_redis: bool) -> None:
        self._txn = txn
        self._stream = stream
        self._producer = producer
        self._by_redis = by_redis
        window, cap = stream.header.idempotence
        if by_redis:
            window, cap = window or REDIS[0], cap or REDIS[1]
        self._window = (window or MAX_WINDOW) * 1000
        self._cap = cap or MAX64
        digest = name_digest(producer)
        self._pairs = keys.family(stream.number, keys.IDEMPOTENT) + digest
        self._ages = keys.family(stream.number, keys.IDEMPOTENT_AGE) + digest

    def entry_of(self, iid: bytes, now: int) -> StreamID | None:
        """The entry this ID was given to; None if it is to be forgotten."""
        key = self._pairs + name_digest(iid)
        value = self._txn.get(key)
        if value is None:
            return None
        _, _, ms, seq = records.unseal(key, value)
        is_kept = ms > now - self._window or (
            not self._by_redis and (ms, seq) in _present(self._txn, self._stream, [(ms, seq)]))
        return make_id(ms, seq) if is_kept else None

    def remember(self, iid: bytes, sid: StreamID, now: int) -> None:
        """Remember the pair; forget the oldest beyond the cap, and of what can go for its age a little, or all."""
        kept = self._txn.get(self._ages)
        count: int = 0 if kept is None else records.unseal(self._ages, kept)[1]
        hashed = name_digest(iid)
        old = self._txn.get(self._pairs + hashed)
        if old is not None:  # known, but to be forgotten: it takes its new place
            _, _, ms, seq = records.unseal(self._pairs + hashed, old)
            self._txn.delete(self._ages + bytes(make_id(ms, seq)))
            count -= 1
        oldest = Rax(self._txn, self._ages).iterator()
        found = oldest.seek(">", b"")
        room = _WITH_AN_APPEND
        while found:
            age, key = StreamID.from_bytes(oldest.key()), oldest.here
            if count < self._cap:
                if age.ms > now - self._window:
                    break
                if not self._by_redis and (not room or age >= self._stream.header.first):
                    break
                room -= 1
            self._txn.delete(self._pairs + records.unseal(key, oldest.value())[0])
            self._txn.delete(key)
            count -= 1
            found = oldest.seek(">", b"")
        pair, age_key = self._pairs + hashed, self._ages + bytes(sid)
        same_id = self._txn.get(age_key)
        if same_id is not None:  # set_id moved the stream back, and an ID was given twice
            self._txn.delete(self._pairs + records.unseal(age_key, same_id)[0])
            count -= 1
        self._txn.put(pair, records.seal(pair, [self._producer, iid, *sid]))
        self._txn.put(age_key, records.seal(age_key, [hashed]))
        self._txn.put(self._ages, records.seal(self._ages, [self._producer, count + 1]))


def forget_gone(name: bytes, now: int, after: bytes, txn: WriteTransaction) -> bytes | None:
    """A piece of maintain(): forget what is out of its window and gone. The row to go on behind; None: all is done.

    Nothing is looked up, or read again, from where on no entry has been deleted.
    """
    stream = locate(txn, name)
    if stream is None:
        return None
    oldest = now - (stream.header.idempotence[0] or MAX_WINDOW) * 1000
    whole = _undeleted_from(txn, stream)
    ages, pairs = (keys.family(stream.number, kind) for kind in (keys.IDEMPOTENT_AGE, keys.IDEMPOTENT))
    rows = Rax(txn, ages).iterator()
    old: dict[bytes, tuple[int, int]] = {}
    has_row = rows.seek(">", after)
    for _ in range(_AT_ONCE):
        if not has_row:
            break
        after = rows.key()
        sid = unpack_id(after[16:]) if len(after) > 16 else None  # None: the producer's own row
        if sid is not None and (sid[0] > oldest or sid >= whole):
            after = after[:16] + _BEHIND
            has_row = rows.seek(">", after)
            continue
        if sid is not None:
            old[after] = sid
        has_row = rows.next()
    found = _present(txn, stream, list(old.values()))
    gone = [row for row, sid in old.items() if sid not in found]
    for row in gone:
        txn.delete(pairs + row[:16] + records.unseal(ages + row, txn.get(ages + row))[0])
        txn.delete(ages + row)
    for digest, count in Counter(row[:16] for row in gone).items():
        key = ages + digest
        value = txn.get(key)
        if value is None:
            raise CorruptionError("the count of what a producer has sent is missing", stream=shown(name))
        producer, kept = records.unseal(key, value)[:2]
        if kept > count:
            txn.put(key, records.seal(key, [producer, kept - count]))
        else:
            txn.delete(key)
    return after if has_row else None


def _present(txn: WriteTransaction, stream: StreamWriter, ids: list[tuple[int, int]]) -> Container[tuple[int, int]]:
    """Those of the IDs that are entries, and perhaps others."""
    stream.flush(txn)
    return look_up(txn, stream.number, stream.header, [sid for sid in ids if sid >= stream.header.first], True)


def _undeleted_from(txn: WriteTransaction, stream: StreamWriter) -> tuple[int, int]:
    """The ID of the second node, if no entry from there on has been deleted; else one that is none."""
    header = stream.header
    nodes = stream.nodes(txn).iterator()
    if nodes.seek("^"):
        head = records.block_header(nodes.here, nodes.value())
        if header.next_ordinal - end_of(head) == header.length - head.live and nodes.next():
            return unpack_id(nodes.key())
    return MAX64 + 1, 0


def set_by_redis(name: bytes, window: int | None, cap: int | None, txn: WriteTransaction) -> None:
    """XCFGSET: what is None stays as it is. A change forgets every pair of the stream."""
    stream = require(txn, name)
    was = stream.header.idempotence
    wanted = window or was[0], cap or was[1]
    if any(new != (old or usual) for new, old, usual in zip((window, cap), was, REDIS, strict=True) if new):
        for kind in (keys.IDEMPOTENT, keys.IDEMPOTENT_AGE):
            rows = Rax(txn, keys.family(stream.number, kind))
            while (found := rows.first()) is not None:
                rows.remove(found[0])
    stream.changed(txn)
    stream.header.idempotence = wanted


def remembered(txn: RaxTransaction, number: int) -> int:
    """How many pairs of a stream are kept, of all producers. One look for each of these."""
    ages = keys.family(number, keys.IDEMPOTENT_AGE)
    rows = Rax(txn, ages).iterator()
    count, found = 0, rows.seek("^")
    while found:
        key, value = rows.item()
        count += records.unseal(rows.here, value)[1] if len(key) == 16 else 0  # 0: its count is lost
        found = rows.seek(">", key[:16] + _BEHIND)
    return count


def name_digest(data: bytes) -> bytes:
    """A producer or an idempotent ID as part of a key: 16 bytes."""
    return keys.sha256(data)[:16]
