"""The nodes of a stream as they lie in the store, for tests that look behind the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import raxlog
from raxlog.recovery.check.check import perform
from raxlog.storage.format import keys, records
from raxlog.storage.trees import ordinals
from raxlog.storage.trees.rax import Rax
from raxlog.stream.entries import header as headers
from raxlog.stream.node.decode import validate_node


class StoredNode(NamedTuple):
    """One node: its 16-byte key as in Redis, its listpack, and what its block says of it."""

    key: bytes
    listpack: bytes
    head: records.BlockHeader


def nodes_of(store: raxlog.Store, name: bytes) -> list[StoredNode]:
    """The nodes of a stream in order; none for a stream that is not there."""
    with store._env.read() as txn:
        number = headers.number_of(txn, name)
        if number is None:
            return []
        prefix = keys.family(number, keys.NODE)
        blocks = list(Rax(txn, prefix).items())
    nodes = []
    for key, value in blocks:
        head = records.block_header(prefix + key, value)
        nodes.append(StoredNode(key, records.listpack_of(prefix + key, value, head), head))
    return nodes


def problems(path: Path) -> list[Any]:
    """What a check of the store without look-ups finds, in this process: a tenth of what raxlog.check() costs."""
    said: list[dict[str, Any]] = []
    perform(said.append, str(path), "raw", "")
    return [one["problem"] for one in said if "problem" in one]


def check_stream(store: raxlog.Store, name: bytes) -> None:
    """Assert that every node is valid and that nodes, header and counts agree."""
    nodes = nodes_of(store, name)
    with store._env.read() as txn:
        found = headers.find(txn, name)
        if found is None:
            assert not nodes
            return
        number, header = found
        base = nodes[0].head.ordinal if nodes else header.next_ordinal
        assert ordinals.problems(txn, number, base) == []
        dead = ordinals.DeadCounts(txn, number)
        expected = base
        for place, node in enumerate(nodes):
            gap = node.head.ordinal - expected
            assert gap >= 0
            assert not gap or dead.dead_between(expected, node.head.ordinal) == gap
            expected = node.head.ordinal + node.head.span
            if place:
                marked = dead.dead_between(node.head.ordinal, expected)
                assert marked == node.head.span - node.head.live
        assert expected <= header.next_ordinal
    live = 0
    last = (-1, -1)
    for node in nodes:
        master = int.from_bytes(node.key[:8], "big"), int.from_bytes(node.key[8:], "big")
        assert master > last
        alive, tombstones, *last_halves = validate_node(node.listpack, *master)
        last = (last_halves[0], last_halves[1])
        assert alive == node.head.live
        assert alive + tombstones <= node.head.span
        live += alive
    assert live == header.length
    assert header.leaves == len(nodes)
    assert last <= header.last
