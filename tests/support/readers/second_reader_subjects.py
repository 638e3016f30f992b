"""The second reader's third part: docs/format-subjects.md, read from that page alone.

    kind 11 -> subscriptions <- kinds 12, 13 (by pattern), 14, 15, 16
    kind 18 <-> kind 19        counts: 10, 17, 1A

It shares no line with raxlog, and raises Wrong where one of the sentences of section 36 fails.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from second_reader import demand, families_of, read_keys, record, verify

PLAIN_TOKENS = {b"\1": b">", b"\2": b"*"}


@dataclass
class Index:
    """What the page says is there."""

    subscriptions: dict[int, list[Any]] = field(default_factory=dict)
    patterns: dict[bytes, list[int]] = field(default_factory=dict)
    remotes: dict[tuple[bytes, bytes, bytes, bytes], int] = field(default_factory=dict)
    generation: int = 0

    def match(self, subject: bytes) -> list[int]:
        """The IDs that a published subject reaches, one pattern after the other."""
        tokens = subject.split(b".")
        return [n for pattern, ids in self.patterns.items() if fits(pattern.split(b"."), tokens) for n in ids]


def fits(pattern: list[bytes], subject: list[bytes]) -> bool:
    """By the definition of a pattern."""
    if pattern == [b">"]:
        return bool(subject)
    if not pattern or not subject:
        return pattern == subject
    return pattern[0] in (b"*", subject[0]) and fits(pattern[1:], subject[1:])


def read_index(path: Path) -> Index:
    """Everything of kinds 10 to 1A, checked."""
    everything = read_keys(path)
    families = families_of(everything)
    rows: dict[int, dict[bytes, bytes]] = {}
    for kind in range(0x10, 0x1B):
        rows[kind] = {key[9:]: value for key, value in families.get((0, kind), {}).items()}
        for rest, value in rows[kind].items():
            verify(bytes(8) + bytes([kind]) + rest, value)
    index = Index()
    for rest, value in rows[0x11].items():
        row = record(value)
        demand(len(row) == 8, "a subscription has 8 fields")
        index.subscriptions[int.from_bytes(rest, "big")] = row
    heads = [read_subscribers(index, rows[kind], kind == 0x13) for kind in (0x12, 0x13)]
    found = sorted(n for ids in index.patterns.values() for n in ids)
    demand(found == sorted(index.subscriptions), "36.1: every subscription is a subscriber once")
    read_references(index, rows)
    read_counts(index, rows, heads)
    read_remotes(index, rows)
    return index


def pattern_in(key: bytes, start: int) -> tuple[bytes, int]:
    """The pattern whose key form begins at ``start``, and where its end is."""
    end = key.index(b"\0\0", start)
    return b".".join(PLAIN_TOKENS.get(token, token) for token in key[start:end].split(b"\0")), end + 2


def read_subscribers(index: Index, rows: dict[bytes, bytes], wild: bool) -> int:
    """Section 31; how many heads."""
    due = heads = last = 0
    for rest in sorted(rows):
        pattern, end = pattern_in(rest, 0)
        further, packed, kinds, queues, weights, names = record(rows[rest])
        ids = [int.from_bytes(packed[at : at + 8], "big") for at in range(0, len(packed), 8)]
        if len(rest) == end:
            demand(due == 0, "36.3: all further rows are there")
            due, last = further, 0
            heads += 1
            index.patterns[pattern] = []
            demand(bool(ids or further), "a head without subscribers has a further row")
            demand(wild is bool({b"*", b">"} & set(pattern.split(b"."))), "36.2: literals apart from patterns")
        else:
            due -= 1
            first = int.from_bytes(rest[end:], "big")
            demand(len(rest) == end + 8 and further == 0 and bool(ids), "a further row")
            demand(last < first <= ids[0], "the ID in the key lies between the rows")
        for at, number in enumerate(ids):
            demand(number > last, "IDs ascend")
            last = number
            queue = None if queues is None or queues[at] == 0 else names[queues[at] - 1]
            kind = kinds if isinstance(kinds, int) else kinds[at]
            weight = weights if isinstance(weights, int) else weights[at]
            one = index.subscriptions[number]
            demand([one[0], one[1], one[3], one[4]] == [pattern, kind, queue, weight], "36.1: the same in both")
            index.patterns[pattern].append(number)
    demand(due == 0, "36.3: all further rows are there")
    return heads


def read_references(index: Index, rows: dict[int, dict[bytes, bytes]]) -> None:
    """Section 32."""
    expected: dict[int, dict[bytes, int]] = {0x14: {}, 0x15: {}, 0x16: {}}
    for number, (_, _, owner, queue, _, name, _, _) in index.subscriptions.items():
        packed = number.to_bytes(8, "big")
        if owner:
            expected[0x14][bytes([len(owner)]) + owner + packed] = number
        if name is not None:
            expected[0x15][name] = number
        if queue is not None:
            expected[0x16][bytes([len(queue)]) + queue + packed] = number
    for kind, wanted in expected.items():
        demand({rest: record(value)[0] for rest, value in rows[kind].items()} == wanted, "36.4: found by all they have")


def read_counts(index: Index, rows: dict[int, dict[bytes, bytes]], heads: list[int]) -> None:
    """Sections 33 and 34."""
    shapes = Counter(
        b"".join(token if token in (b"*", b">") else b"-" for token in pattern.split(b"."))
        for pattern in index.patterns if {b"*", b">"} & set(pattern.split(b"."))
    )
    demand({rest: record(value)[0] for rest, value in rows[0x17].items()} == dict(shapes), "36.5: shapes")
    if not rows[0x10]:
        demand(not index.subscriptions, "36.5: a count where there is something")
        return
    generation, following, plain, members, literals, patterns, tokens, stamp = record(rows[0x10][b""])
    queued = sum(one[3] is not None for one in index.subscriptions.values())
    demand((plain, members) == (len(index.subscriptions) - queued, queued), "36.5: plain and members")
    demand([literals, patterns] == heads, "36.5: literals and patterns")
    demand(tokens == sum(map(len, shapes)) and len(stamp) == 8, "36.5: shape tokens")
    demand(following > max(index.subscriptions, default=0), "36.6: the next ID")
    index.generation = generation


def read_remotes(index: Index, rows: dict[int, dict[bytes, bytes]]) -> None:
    """Section 35."""
    mirrored = {}
    for rest, value in rows[0x18].items():
        account, at = rest[1 : 1 + rest[0]], 1 + rest[0]
        pattern, at = pattern_in(rest, at)
        route, queue = rest[at + 1 : at + 1 + rest[at]], rest[at + 1 + rest[at] :]
        index.remotes[route, account, pattern, queue] = record(value)[0]
    for rest, value in rows[0x19].items():
        route, at = rest[1 : 1 + rest[0]], 1 + rest[0]
        account, at = rest[at + 1 : at + 1 + rest[at]], at + 1 + rest[at]
        pattern, at = pattern_in(rest, at)
        mirrored[route, account, pattern, rest[at:]] = record(value)[0]
    demand(index.remotes == mirrored, "36.7: the same rows twice")
    stated = record(rows[0x1A][b""])[0] if rows[0x1A] else 0
    demand(stated == len(mirrored), "36.5: rows of remote interest")
