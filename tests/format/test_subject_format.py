"""Subjects on disk are what docs/format-subjects.md says, and what is not is noticed.

raxlog writes ──> store ──> second_reader_subjects.py (knows the page only)
                    └─────> raxlog's own walk over all rows      both find it sound, and the same
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from raw_records import resealed
from raxlog.index.subjects import match, remote_interest, sublist
from raxlog.index.subjects.check import problems
from raxlog.index.subjects.handle import Sublist
from raxlog.index.subjects.subscription import BINDING, DURABLE, Subscription
from second_reader import Wrong
from second_reader_subjects import read_index

PAGE = Path(__file__).parents[2] / "docs" / "format-subjects.md"


def fill(index: Sublist, seed: int) -> None:
    """Subscriptions of every kind, some removed again, a subject with many, and remote interest."""
    rng = random.Random(seed)
    for n in range(40):
        index.insert_many([
            Subscription.of(
                ".".join([*rng.choices(["a", "b", "é", "*", "a*"], k=rng.randrange(4)), rng.choice(["a", "*", ">"])]),
                kind=rng.choice([DURABLE, BINDING]), owner=rng.choice([b"", b"me", b"me\0"]),
                queue=rng.choice([None, None, b"q", b"r" * 255]), weight=rng.choice([1, 1, 70, 65535]),
                name=f"name-{n}-{i}" if rng.random() < 0.2 else None, options=rng.choice([None, {"stream": b"s"}]),
            ) for i in range(rng.choice([1, 4, 30]))
        ])
        if rng.random() < 0.3:
            index.remove_many(rng.sample([one.id for one in index], len(index) // 3))
    hot = index.insert_many([Subscription.of("hot", kind=BINDING, queue=rng.choice([None, b"q"])) for _ in range(900)])
    index.remove_many(rng.sample(hot, 500))

    def remotes(txn: Any) -> None:
        for _ in range(60):
            queue = rng.choice([None, b"q"])
            remote_interest.apply(txn, rng.choice([b"r", b"r\0"]), rng.choice([b"A", b"B"]),
                         rng.choice(["a", "a.*", "a.>", "b.c"]), queue, rng.randrange(1, 9) if queue else 1)
        remote_interest.remove_route(txn, b"r\0", b"A")

    index._source.submit(remotes)


@pytest.mark.parametrize("seed", range(4))
def test_a_reader_made_from_the_page_sees_what_raxlog_sees(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        index = Sublist(store._source)
        fill(index, seed)
        mine = {one.id: one for one in index}
        patterns = {one.subject.encode(): one.plain + one.queued for one in index.patterns()}
        subjects = ["a", "b", "a.a", "a.é", "b.a*.a", "hot", "a.b.a.b", "nobody.at.all"]
        matched = [index.match(subject) for subject in subjects]
        generation = index.generation
        with store._source.read() as txn:
            assert list(problems(txn)) == []
            remotes = {(row.route, row.account, row.subject, row.queue or b""): row.weight
                       for row in remote_interest.all_remote(txn)}
    theirs = read_index(path)
    assert {n: tuple(row) for n, row in theirs.subscriptions.items()} == {
        n: (s.subject.encode(), s.kind, s.owner, s.queue, s.weight, s.name, s.options,
            round(s.created.timestamp() * 1000)) for n, s in mine.items()
    }
    assert {pattern: len(ids) for pattern, ids in theirs.patterns.items()} == patterns
    assert theirs.remotes == remotes
    assert theirs.generation == generation
    for subject, found in zip(subjects, matched, strict=True):
        ids = [*found.plain, *(member.id for group in found.queues.values() for member in group)]
        assert sorted(ids) == sorted(theirs.match(subject.encode()))


def test_the_examples_of_the_page_are_the_key_forms(store: raxlog.Store) -> None:
    from raxlog.index.subjects import subject  # noqa: PLC0415 - named like a fixture elsewhere

    lines = [line.split("`") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `a")]
    assert len(lines) == 3
    for line in lines:
        assert subject.key_form(line[1].encode()) == bytes.fromhex(line[3])
    assert subject.shape(b"orders.*.eu.>") == b"-*->"


# -- damage --------------------------------------------------------------------------------


def rows_of(store: raxlog.Store, kind: int) -> list[tuple[bytes, bytes]]:
    """All keys and values of one kind of number 0."""
    with store._source.read() as txn:
        return [(key, value) for key, value in txn.cursor() if key[:9] == bytes(8) + bytes([kind])]


def write(store: raxlog.Store, *rows: tuple[bytes, bytes | None]) -> None:
    """Put rows as they are, or delete them (None)."""

    def operation(txn: Any) -> None:
        for key, value in rows:
            if value is None:
                txn.delete(key)
            else:
                txn.put(key, value)

    store._source.submit(operation)


def noticed(store: raxlog.Store, path: Path) -> list[str]:
    """What the walk says; the second reader must object, too."""
    with store._source.read() as txn:
        found = list(problems(txn))
    store.close()
    with pytest.raises((Wrong, AssertionError, KeyError, ValueError, IndexError)):
        read_index(path)
    return found


@pytest.fixture
def filled(tmp_path: Path):
    """A store with subjects, and its path."""
    path = tmp_path / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        fill(Sublist(store._source), 1)
        yield store, path


@pytest.mark.parametrize("kind", range(0x10, 0x1B))
def test_a_row_that_is_missing_is_noticed(filled: Any, kind: int) -> None:
    store, path = filled
    rng = random.Random(kind)
    write(store, (rng.choice(rows_of(store, kind))[0], None))
    assert noticed(store, path)


@pytest.mark.parametrize("kind", range(0x10, 0x1B))
def test_a_flipped_bit_is_noticed_and_the_walk_goes_on(filled: Any, kind: int) -> None:
    store, path = filled
    key, value = random.Random(kind).choice(rows_of(store, kind))
    write(store, (key, value[:-1] + bytes([value[-1] ^ 4])))
    assert any("cannot be read" in what or "fails its checksum" in what for what in noticed(store, path))


@pytest.mark.parametrize(("kind", "change"), [
    (0x10, lambda row: row.__setitem__(1, 1)), (0x10, lambda row: row.__setitem__(2, row[2] + 1)),
    (0x10, lambda row: row.__setitem__(4, 0)), (0x10, lambda row: row.__setitem__(6, 9999)),
    (0x11, lambda row: row.__setitem__(4, 77)), (0x11, lambda row: row.__setitem__(0, b"other")),
    (0x11, lambda row: row.__setitem__(2, b"another's")), (0x11, lambda row: row.__setitem__(3, b"qq")),
    (0x12, lambda row: row.__setitem__(0, row[0] + 1)), (0x13, lambda row: row.__setitem__(1, b"\0" * 8)),
    (0x13, lambda row: row.__setitem__(4, 3)), (0x14, lambda row: row.__setitem__(0, 10**6)),
    (0x16, lambda row: row.__setitem__(0, row[0] + 1)), (0x17, lambda row: row.__setitem__(0, row[0] + 1)),
    (0x18, lambda row: row.__setitem__(0, 99)), (0x1A, lambda row: row.__setitem__(0, 0)),
])
def test_a_row_that_says_something_else_is_noticed(filled: Any, kind: int, change: Callable[[Any], None]) -> None:
    store, path = filled
    key, value = random.Random(9).choice(rows_of(store, kind))
    write(store, (key, resealed(key, value, change)))
    assert noticed(store, path)


def test_rows_that_lead_nowhere_are_noticed(filled: Any) -> None:
    store, path = filled
    key, value = rows_of(store, 0x12)[0]
    ghost = key[:9] + b"ghost\0\0"
    write(store, (ghost, resealed(ghost, value, lambda row: None)))
    assert any("ghost" in what for what in noticed(store, path))


def test_a_damaged_row_is_an_error_in_a_match_never_an_answer(filled: Any) -> None:
    store, _ = filled
    index = Sublist(store._source)
    for kind in (0x12, 0x13):
        for key, value in rows_of(store, kind):
            write(store, (key, value[:12] + bytes([value[12] ^ 1]) + value[13:]))
    with pytest.raises(raxlog.CorruptionError):
        index.match("hot")
    with pytest.raises(raxlog.CorruptionError):
        index.match("a.a")
    with pytest.raises(raxlog.CorruptionError):
        index.reverse_match(">")


def test_a_further_row_that_is_missing_is_an_error_in_a_match(filled: Any) -> None:
    store, path = filled
    further = [key for key, _ in rows_of(store, 0x12) if key[9:].startswith(b"hot\0\0") and len(key) > 14]
    assert further
    write(store, (further[-1], None))
    with store._source.read() as txn, pytest.raises(raxlog.CorruptionError):
        match.match(txn, "hot")
    with pytest.raises(raxlog.CorruptionError):
        store._source.submit(lambda txn: sublist.remove_many(txn, [one.id for one in sublist.all_subscriptions(txn)]))
    assert noticed(store, path)
