"""Nodes and columns for the tests of Arrow: entries of every kind, and what a column must hold of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from raxlog.stream.columns.arrow import batches, projection
from raxlog.stream.node.builder import NodeBuilder
from raxlog.stream.node.decode import decode, mark_deleted
from raxlog.stream.node.stream_id import StreamID

Node = tuple[tuple[int, int], bytes]
Pairs = list[tuple[bytes, bytes]]

NAMES = [b"item", b"qty", b"price", b"7", b"-12", b"", "größe".encode(), b"n" * 70, b"a", b"b"]
VALUES = [
    b"", b"0", b"7", b"127", b"128", b"-1", b"4095", b"-4096", b"4096", b"32768", b"-8388608", b"8388608",
    b"2147483648", b"-9223372036854775808", b"9223372036854775807", b"9223372036854775808", b"12.5", b"-0", b"007",
    b"book", b"\xff\xfe",
    "naïve €".encode(), b"x" * 63, b"y" * 64, b"z" * 4096, b"true", b"NO", b"1e3", b"2018-05-21T16:10:30.474Z", b" 5 ",
]  # fmt: skip


def node_of(entries: Sequence[tuple[int, int, Pairs]], dead: Iterable[tuple[int, int]] = ()) -> Node:
    """One node that holds these entries, of which some have been deleted."""
    ms, seq, pairs = entries[0]
    node = NodeBuilder.start(ms, seq, [text for pair in pairs for text in pair])
    for ms, seq, pairs in entries:
        node.push(ms, seq, [text for pair in pairs for text in pair], -1, -1, -1)
    listpack = node.listpack()
    gone = sorted(dead)
    if gone:
        listpack = mark_deleted(listpack, entries[0][0], entries[0][1], gone)[0]
    return (entries[0][0], entries[0][1]), listpack


def some_nodes(seed: int, nodes: int, entries: int, names: Sequence[bytes] = NAMES,
               values: Sequence[bytes] = VALUES) -> list[Node]:
    """Nodes of entries with the master's fields, with others, with names that occur twice; some deleted."""
    chance = random.Random(seed)
    made = []
    ms, seq = 5, 3
    for _ in range(nodes):
        master = [chance.choice(names) for _ in range(chance.randint(1, 5))]
        held: list[tuple[int, int, Pairs]] = []
        for _ in range(entries):
            ms, seq = (ms, seq + chance.randint(1, 3)) if chance.random() < 0.5 else (ms + chance.randint(1, 9), 0)
            own = master if chance.random() < 0.7 else [chance.choice(names) for _ in range(chance.randint(1, 6))]
            held.append((ms, seq, [(name, chance.choice(values)) for name in own]))
        dead = [(entry[0], entry[1]) for entry in held if chance.random() < 0.2]
        made.append(node_of(held, dead[: len(held) - 1]))
    return made


def entries_of(nodes: Iterable[Node], start: StreamID = StreamID.MIN, end: StreamID = StreamID.MAX) -> list[Any]:
    """(ms, seq, pairs) of the live entries, as range() decodes them."""
    return [
        (entry.ms, entry.seq, entry.pairs)
        for master, listpack in nodes for entry in decode(listpack, *master, *start, *end)
    ]


def table_of(nodes: Iterable[Node], schema: Any = None, **options: Any) -> pa.Table:
    """All batches as one table, each checked as Arrow itself checks it."""
    named = {name: options.pop(name) for name in list(options) if name.endswith("_column")}
    columns = projection(schema, **named)
    found = list(batches(nodes, columns, **options))
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(columns.schema, check_metadata=True)
        assert 0 < batch.num_rows <= options.get("batch_size", 65_536)
    return pa.Table.from_batches(found, schema=columns.schema)


def column_of(values: Sequence[bytes], kind: Any, **options: Any) -> list[Any]:
    """What a column of that type holds of entries with these values."""
    nodes = [node_of([(1, place, [(b"v", value)])]) for place, value in enumerate(values, 1)]
    table: pa.Table = table_of(nodes, {"v": kind}, **options)
    return table.column("v").to_pylist()
