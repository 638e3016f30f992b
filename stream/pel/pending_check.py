"""The check of a pending list: every row of it, and every row that should be there.

    buckets  ──────────────>  index rows        each bucket names the rows that must exist
    index rows  ──────────────>  buckets        each row names what a bucket must hold

Both ways, because a row too many is as wrong as one that is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import TypeVar

from ...storage.errors import CorruptionError
from ...storage.format.keys import PENDING, PENDING_BY_CONSUMER, PENDING_BY_TIME, RELEASED, group_family
from ...storage.format.records import unseal
from ...storage.trees.rax import RaxTransaction, family_rows
from ..node.stream_id import unpack_id
from .bucket import CAPACITY, MAX_VALUE, Bucket
from .pending_list import shown_id

T = TypeVar("T")


def problems(txn: RaxTransaction, number: int, group: int, capacity: int = CAPACITY) -> tuple[list[str], Counter[int]]:
    """All faults in a group's pending list, and how many entries each consumer has.

    Released entries are counted under 0. The counts are for the caller to compare with the
    consumers' own records. Reads every bucket once, and once more for each index row. Raises
    nothing for damage: that too becomes a line.
    """
    found: list[str] = []
    totals: Counter[int] = Counter()
    due: set[bytes] = set()  # rows of released entries that the buckets ask for
    prefix = group_family(number, PENDING, group)
    by_consumer = group_family(number, PENDING_BY_CONSUMER, group)
    by_time = group_family(number, PENDING_BY_TIME, group)
    released = group_family(number, RELEASED, group)
    last = b""
    for key, value in family_rows(txn, prefix):
        where = f"bucket {shown_id(key)}"
        try:
            bucket = Bucket.decode(key, value)
        except CorruptionError as error:
            found.append(f"{where}: {error.what}")
            continue
        ids = [bucket.ids[at : at + 16] for at in range(0, len(bucket.ids), 16)]
        if not ids or len(bucket.ids) % 16:
            found.append(f"{where} holds {len(bucket.ids)} bytes of IDs")
            continue
        if len(ids) > capacity or len(value) > MAX_VALUE:
            found.append(f"{where} holds {len(ids)} entries in {len(value)} bytes")
        if ids[0] < bucket.key or any(one >= other for one, other in pairwise([last, *ids])):
            found.append(f"{where}: its IDs do not ascend from its own, behind those before")
        last = ids[-1]
        owners: Counter[int] = Counter()
        times = []
        for packed, nack in zip(ids, bucket.nacks(), strict=True):
            totals[nack.consumer] += 1
            entry = shown_id(packed)
            if nack.consumer:
                owners[nack.consumer] += 1
                times.append(nack.time)
                if nack.released:
                    found.append(f"{entry} is owned, and has a place among the released")
                continue
            at = released + nack.time.to_bytes(8, "big") + nack.released.to_bytes(8, "big")
            due.add(at)
            if not nack.released or _read(txn, at, unseal) != list(unpack_id(packed)):
                place = f"{nack.time}/{nack.released}"
                found.append(f"{entry} is released and not in its place {place}")
        for consumer, count in owners.items():
            if _read(txn, by_consumer + consumer.to_bytes(4, "big") + bucket.key, unseal) != [count]:
                found.append(f"{where} holds {count} of consumer {consumer}, its row differs")
        if times and _read(txn, by_time + min(times).to_bytes(8, "big") + bucket.key, unseal) != []:
            found.append(f"{where} has no row for its oldest delivery, {min(times)}")
    for key, _ in family_rows(txn, released):
        if key not in due:
            found.append(f"the released row {key[-16:].hex()} belongs to no released entry")
    for key, _ in family_rows(txn, by_consumer):
        owner = int.from_bytes(key[-20:-16], "big")
        named = _read(txn, prefix + key[-16:], Bucket.decode)
        if named is None or owner not in named.owners():
            found.append(f"a row says that consumer {owner} has entries in bucket {shown_id(key)}")
    for key, _ in family_rows(txn, by_time):
        time = int.from_bytes(key[-24:-16], "big")
        named = _read(txn, prefix + key[-16:], Bucket.decode)
        if named is None or named.oldest() != time:
            found.append(f"a row says that bucket {shown_id(key)} has its oldest delivery at {time}")
    return found, totals


def _read(txn: RaxTransaction, key: bytes, decode: Callable[[bytes, bytes], T]) -> T | None:
    """The record under the key; None if it is missing or damaged."""
    value = txn.get(key)
    with suppress(CorruptionError):
        return None if value is None else decode(key, value)
    return None
