"""Idempotent appends: an append that is sent twice adds one entry.

    producer "p7", idempotent ID "order-1001"    known: the old entry's ID is the answer
                                                 new: append, and remember the pair

    by pair    SHA-256 of producer, of idempotent ID (16 bytes each) -> [producer, iid, ms, seq]
    by age     SHA-256 of producer, entry ID                         -> [iid's hash]
               SHA-256 of producer                                   -> [producer, how many]

A pair is remembered for a window of time, counted from the ID of its entry, and at most so
many for a producer, the oldest forgotten first (XCFGSET: 100 s and 100). Deleting the entry
does not forget it. Where no idempotent ID is given it is a hash of the pairs, whatever their
order, so that a producer need not invent one.
"""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh3_128_intdigest

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.errors import InvalidArgument
from ...storage.format import keys, records
from ...storage.trees.rax import Rax
from ..node.arguments import member_name
from ..node.stream_id import MAX64, NewID, StreamID, make_id
from .writer import StreamWriter

MAX_WINDOW = 86_400  # seconds
MAX_CAP = 10_000


class Claim(NamedTuple):
    """The producer of an append, and the ID it gave to it."""

    producer: bytes
    iid: bytes


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
    if idempotent_id is None:
        return Claim(sender, content_hash(flat))
    iid = member_name(idempotent_id, "idempotent ID")
    if not iid:
        raise InvalidArgument("idempotent_id must not be empty; leave it out to have it made from the fields")
    return Claim(sender, iid)


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
    """What one stream remembers of one producer, within a transaction."""

    def __init__(self, txn: WriteTransaction, stream: StreamWriter, producer: bytes) -> None:
        self._txn = txn
        self._stream = stream
        self._producer = producer
        digest = name_digest(producer)
        self._pairs = keys.family(stream.number, keys.IDEMPOTENT) + digest
        self._ages = keys.family(stream.number, keys.IDEMPOTENT_AGE) + digest

    def entry_of(self, iid: bytes, now: int) -> StreamID | None:
        """The entry this ID was given to, if it is still within the window."""
        key = self._pairs + name_digest(iid)
        value = self._txn.get(key)
        if value is None:
            return None
        _, _, ms, seq = records.unseal(key, value)
        if ms <= now - self._stream.header.idempotence[0] * 1000:
            return None
        return make_id(ms, seq)

    def remember(self, iid: bytes, sid: StreamID, now: int) -> None:
        """Remember the pair; forget what is too old, and the oldest beyond the cap."""
        window, cap = self._stream.header.idempotence
        kept = self._txn.get(self._ages)
        many: int = 0 if kept is None else records.unseal(self._ages, kept)[1]
        hashed = name_digest(iid)
        old = self._txn.get(self._pairs + hashed)
        if old is not None:  # known, but out of its window: it takes its new place
            _, _, ms, seq = records.unseal(self._pairs + hashed, old)
            self._txn.delete(self._ages + bytes(make_id(ms, seq)))
            many -= 1
        oldest = Rax(self._txn, self._ages).iterator()
        there = oldest.seek(">", b"")
        while there:
            age = StreamID.from_bytes(oldest.key)
            if many < cap and age.ms > now - window * 1000:
                break
            key = self._ages + oldest.key
            self._txn.delete(self._pairs + records.unseal(key, oldest.value)[0])
            self._txn.delete(key)
            many -= 1
            there = oldest.seek(">", b"")
        pair, age_key = self._pairs + hashed, self._ages + bytes(sid)
        same_id = self._txn.get(age_key)
        if same_id is not None:  # set_id moved the stream back, and an ID was given twice
            self._txn.delete(self._pairs + records.unseal(age_key, same_id)[0])
            many -= 1
        self._txn.put(pair, records.seal(pair, [self._producer, iid, *sid]))
        self._txn.put(age_key, records.seal(age_key, [hashed]))
        self._txn.put(self._ages, records.seal(self._ages, [self._producer, many + 1]))


def forget_all(txn: WriteTransaction, stream: StreamWriter) -> None:
    """Forget every pair of the stream: for a change of the window or the cap."""
    for kind in (keys.IDEMPOTENT, keys.IDEMPOTENT_AGE):
        rows = Rax(txn, keys.family(stream.number, kind))
        while (found := rows.first()) is not None:
            rows.remove(found[0])


def name_digest(data: bytes) -> bytes:
    """A producer or an idempotent ID as part of a key: 16 bytes."""
    return keys.sha256(data)[:16]
