"""What a store says about a stream of crash_steps.py, and how often it has to be asked.

    contents       everything that does not hang on a clock, in 16 bytes
    told           that, the marks of its transactions, the state: asked in full
    known_or_told  the same, for checks of ten thousands of images that hold a few states
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from typing import Any, NamedTuple

import msgpack
import raxlog
import xxhash
from raxlog.storage.format import keys as layout

SHARED = "all"  # the stream in which every transaction leaves its mark


def markers(store: raxlog.Store, name: str) -> list[int]:
    """The numbers of the transactions that left their mark in the shared stream."""
    return [int(entry.fields[b"n"]) for entry in store.stream(SHARED).range() if entry.fields[b"who"] == name.encode()]


def contents(store: raxlog.Store, name: str) -> bytes:
    """Everything about a stream that does not hang on a clock, in 16 bytes."""
    if name not in [_text(one) for one in store.streams()]:
        return b"absent"
    stream = store.stream(name)
    entries = [(str(entry.id), entry.pairs) for entry in stream.range()]
    info = stream.info()
    told: list[Any] = [entries, len(stream), str(info.last_generated_id), str(info.max_deleted_entry_id),
                       info.entries_added, info.radix_tree_keys]
    for group in sorted(stream.groups(), key=lambda one: one.name):
        handle = stream.group(group.name)
        told.append((group.name, str(group.last_delivered_id), group.entries_read, group.lag,
                     [(str(row.id), row.consumer, row.deliveries) for row in handle.pending_entries("-", "+", 1000)],
                     sorted((one.name, one.pending) for one in handle.consumers())))
    return hashlib.blake2b(repr(told).encode(), digest_size=16).digest()


class Facts(NamedTuple):
    """What a store says about one stream: the digest, the marks of its transactions, the state."""

    digest: bytes
    marks: list[int]
    state: int | None


_known_facts: dict[tuple[bytes, str], Facts] = {}
_asked = 0


def told(store: raxlog.Store, name: str) -> Facts:
    """What the store says about a stream, asked in full."""
    state = int(store.state[name.encode()]) if name.encode() in store.state else None
    return Facts(contents(store, name), markers(store, name), state)


def known_or_told(store: raxlog.Store, name: str) -> Facts:
    """What the store says about a stream, where many images hold the same few states.

    It is a function of the records. So a process asks about each state once in full; after that it walks all
    records, finds each once more by its key, and if all are byte by byte those of a state it has asked about, it
    knows the answers. Every twentieth time it asks nevertheless.
    """
    global _asked  # noqa: PLW0603 - as _known_facts, of this process
    key = (_records(store), name)
    known = _known_facts.get(key)
    _asked += 1
    if known is None or _asked % 20 == 0:
        found = told(store, name)
        assert known in (None, found), "WRONG: two readings of the same records differ"
        known = _known_facts[key] = found
    return known


def _records(store: raxlog.Store) -> bytes:
    """A digest of all records but the journal's, which are the opening's business."""
    with store._env.read() as txn:
        cursor = txn.cursor()
        keys = list(cursor.iternext(values=False))
        before = bisect.bisect_left(keys, layout.family(0, layout.LOG))
        behind = bisect.bisect_left(keys, layout.family(0, layout.LOG + 1))
        cursor.first()
        rows = list(itertools.islice(cursor.iternext(), before))
        if behind < len(keys):
            cursor.set_key(keys[behind])
            rows += cursor.iternext()
        for key, value in rows:
            assert txn.get(key) == value, f"WRONG: the walk finds a record, a look-up of {key.hex()} does not"
    return xxhash.xxh3_128_digest(msgpack.packb(rows))


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
