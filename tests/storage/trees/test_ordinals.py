"""Deleted ordinals and the ordinal index against a plain set and a plain list."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import lmdb
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog.storage.errors import CorruptionError
from raxlog.storage.format.keys import DEAD, ORDINAL, family
from raxlog.storage.format.records import seal
from raxlog.storage.trees.ordinals import DeadCounts, OrdinalIndex, problems

STREAM = 7
BORDERS = [1 << shift for shift in (12, 20, 28, 36, 40)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lmdb.Environment]:
    path: Path = tmp_path_factory.mktemp("ordinals")
    with lmdb.open(str(path), map_size=1 << 28, sync=False) as environment:
        with environment.begin(write=True) as txn:  # neighbours that must never be touched
            for number in (STREAM - 1, STREAM + 1):
                DeadCounts(txn, number).mark_span(0, 5000)
                OrdinalIndex(txn, number).note(3, 3, 3)
        yield environment


@pytest.fixture
def txn(environment: lmdb.Environment) -> Iterator[lmdb.Transaction]:
    txn = environment.begin(write=True)
    yield txn
    txn.abort()


def rows_of(txn: lmdb.Transaction, kind: int = DEAD) -> list[tuple[bytes, bytes]]:
    prefix = family(STREAM, kind)
    return [(key, value) for key, value in txn.cursor() if key.startswith(prefix)]


def live_ordinals(marked: set[int], count: int, start: int = 0) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        if start not in marked:
            found.append(start)
        start += 1
    return found


# Spans near the borders of rows, where the arithmetic has its corners.
near_borders = st.builds(
    lambda border, times, shift: max(0, border * times + shift),
    st.sampled_from([0, *BORDERS]), st.integers(1, 3), st.integers(-70, 70),
)
ordinals = st.one_of(near_borders, st.integers(0, 20_000), st.integers(0, (1 << 41) - 1))
lengths = st.one_of(st.just(1), st.integers(1, 100), st.integers(4000, 9000))
spans = st.lists(st.tuples(ordinals, lengths), max_size=12)


def apart(wanted: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The wanted spans without those that meet an earlier one, as start and stop."""
    kept: list[tuple[int, int]] = []
    for start, length in wanted:
        stop = start + length
        if all(stop <= other or last <= start for other, last in kept):
            kept.append((start, stop))
    return kept


def marked_below(kept: list[tuple[int, int]], x: int) -> int:
    return sum(max(0, min(stop, x) - start) for start, stop in kept)


@settings(max_examples=examples(150), deadline=None)
@given(wanted=spans, asked=st.lists(ordinals, min_size=2, max_size=8))
def test_counts_are_those_of_a_plain_list_of_spans(
    environment: lmdb.Environment, wanted: list[tuple[int, int]], asked: list[int]
) -> None:
    kept = apart(wanted)
    with environment.begin(write=True) as txn:
        counts = DeadCounts(txn, STREAM)
        for start, stop in kept:
            counts.mark_span(start, stop)
        edges = [edge + shift for span in kept for edge in span for shift in (-1, 0, 1)]
        points = sorted(x for x in asked + edges + BORDERS if x >= 0)
        for x in points:
            dead = any(start <= x < stop for start, stop in kept)
            assert counts.dead_before(x) == marked_below(kept, x)
            assert counts.dead_between(x, x + 1) == dead
            if not dead:
                assert counts.select_live(x - marked_below(kept, x)) == x
        for a, b in pairwise(points):
            assert counts.dead_between(a, b) == marked_below(kept, b) - marked_below(kept, a)
        assert problems(txn, STREAM) == []
        txn.abort()


@settings(max_examples=examples(60), deadline=None)
@given(
    marked=st.one_of(
        st.sets(st.integers(0, 300), max_size=250),
        st.sets(st.integers(0, 12_500), max_size=120),
        st.sets(st.integers(4000, 4200), max_size=200),
    ),
    lives=st.lists(st.integers(0, 13_000), max_size=20),
)
def test_select_finds_what_counting_one_by_one_finds(
    environment: lmdb.Environment, marked: set[int], lives: list[int]
) -> None:
    with environment.begin(write=True) as txn:
        counts = DeadCounts(txn, STREAM)
        for ordinal in marked:
            counts.mark(ordinal)
        expected = live_ordinals(marked, 13_001)
        for live in [0, 1, 255, 256, 4095, 4096, *lives]:
            assert counts.select_live(live) == expected[live]
        assert problems(txn, STREAM) == []
        txn.abort()


@settings(max_examples=examples(80), deadline=None)
@given(
    wanted=spans,
    at=ordinals,
    steps=st.lists(st.sampled_from([1, 2, 5, 1000]), min_size=1, max_size=20),
    later=spans,
)
def test_differences_stay_exact_behind_what_was_dropped(
    environment: lmdb.Environment, wanted: list[tuple[int, int]], at: int, steps: list[int],
    later: list[tuple[int, int]],
) -> None:
    kept = apart(wanted)
    with environment.begin(write=True) as txn:
        counts = DeadCounts(txn, STREAM)
        for start, stop in kept:
            counts.mark_span(start, stop)
        for limit in steps:
            assert counts.drop_below(at, limit) <= limit
        for start, stop in apart(wanted + [(max(start, at), n) for start, n in later])[len(kept):]:
            counts.mark_span(start, stop)
            kept.append((start, stop))
        points = [at, at + 1, *(x for span in kept for x in span if x >= at), BORDERS[-1] * 4]
        for x in points:
            assert counts.dead_before(x) == marked_below(kept, x)
            assert counts.dead_between(at, max(at, x)) == (
                marked_below(kept, max(at, x)) - marked_below(kept, at)
            )
            if not any(start <= x < stop for start, stop in kept):
                assert counts.select_live(x - marked_below(kept, x)) == x
        assert problems(txn, STREAM) == []
        assert problems(txn, STREAM, base=at) == []
        txn.abort()


def test_a_stream_without_deletions_has_no_rows_and_counts_nothing(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    counts.mark_span(10, 10)
    for x in [0, 1, *BORDERS, (1 << 64) - 1]:
        assert counts.dead_before(x) == 0
        assert counts.select_live(x) == x
    assert counts.dead_between(5, BORDERS[-1]) == 0
    assert counts.dead_between(4096, 4097) == 0
    assert counts.drop_below(BORDERS[-1]) == 0
    assert rows_of(txn) == []
    assert problems(txn, STREAM) == []


def test_a_long_span_equals_the_same_ordinals_marked_one_by_one(txn: lmdb.Transaction) -> None:
    first, last = (1 << 20) - 5000, (1 << 20) + 5000
    counts = DeadCounts(txn, STREAM)
    counts.mark_span(first, last)
    at_once = rows_of(txn)
    for key, _ in at_once:
        txn.delete(key)
    for ordinal in range(first, last):
        counts.mark(ordinal)
    assert rows_of(txn) == at_once


def test_whole_rows_of_every_level_below_the_top_can_be_full(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    counts.mark_span(100, (3 << 20) + 100)
    assert counts.dead_before(3 << 20) == (3 << 20) - 100
    assert counts.select_live(99) == 99
    assert counts.select_live(100) == (3 << 20) + 100
    assert problems(txn, STREAM) == []


def test_three_deletions_take_few_bytes(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    for ordinal in (4098, 1 << 20, (1 << 20) + 2):
        counts.mark(ordinal)
    assert len(rows_of(txn)) == 6
    assert sum(len(value) for _, value in rows_of(txn)) < 120


def test_an_ordinal_marked_twice_is_named_and_nothing_is_written(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    counts.mark(9000)
    before = rows_of(txn)
    with pytest.raises(CorruptionError, match="ordinal 9000 is marked as deleted already"):
        counts.mark(9000)
    with pytest.raises(CorruptionError, match="ordinal 9000 "):
        counts.mark_span(100, 1 << 21)
    assert rows_of(txn) == before


def test_a_flipped_bit_in_any_row_is_never_counted(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    x = (1 << 36) + (1 << 28) + (1 << 20) + 4096 + 5
    counts.mark_span(x - 3, x + 1)
    live = x + 5 - 4
    for key, value in rows_of(txn):
        for bit in range(0, len(value) * 8, 3):
            damaged = bytearray(value)
            damaged[bit // 8] ^= 1 << bit % 8
            txn.put(key, bytes(damaged))
            with pytest.raises(CorruptionError):
                counts.dead_before(x)
            with pytest.raises(CorruptionError):
                counts.select_live(live)
            with pytest.raises(CorruptionError):
                counts.mark(x + 1)
            assert problems(txn, STREAM) != []
        txn.put(key, value)
    assert problems(txn, STREAM) == []


def test_a_row_that_vanished_is_noticed(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    x = (1 << 28) + (1 << 20) + 4096
    counts.mark_span(x, x + 10)
    for key, value in rows_of(txn):
        txn.delete(key)
        if key[9] < 3:  # without its row of level 3 a stream looks as if it had no deletions
            with pytest.raises(CorruptionError):
                counts.dead_before(x + 3)
            with pytest.raises(CorruptionError):
                counts.select_live(x + 3)
        with pytest.raises(CorruptionError):
            counts.mark(x + 10)
        assert problems(txn, STREAM, base=0) != []
        txn.put(key, value)


def test_a_row_under_the_key_of_another_is_an_error(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    counts.mark(1)
    counts.mark(4097)
    bitmaps = [key for key, _ in rows_of(txn) if key[9] == 0]
    assert txn.get(bitmaps[0]) != txn.get(bitmaps[1])
    txn.put(bitmaps[0], txn.get(bitmaps[1]))
    with pytest.raises(CorruptionError, match="checksum"):
        counts.dead_before(3)


def test_counters_that_differ_from_their_bitmaps_are_listed(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    counts.mark_span(4096, 4106)
    key = family(STREAM, DEAD) + bytes([0]) + (1).to_bytes(8, "big")
    txn.put(key, seal(key, [b"\x01"]))
    with pytest.raises(CorruptionError, match="of the ordinals 4096 to 8191, 1 are marked"):
        counts.dead_before(4099)
    (line,) = problems(txn, STREAM)
    assert "row 1 of level 0, 10 by the counter above it" in line


@pytest.mark.parametrize("row", [[], [3], [b""], [bytes(513)], [b"\x01", b"\x01"]])
def test_a_sealed_row_of_a_wrong_shape_is_an_error(
    txn: lmdb.Transaction, row: list[object]
) -> None:
    counts = DeadCounts(txn, STREAM)
    counts.mark(0)
    key, _ = rows_of(txn)[0]
    txn.put(key, seal(key, row))
    with pytest.raises(CorruptionError, match="no row of deleted ordinals"):
        counts.dead_before(1)


def test_dropping_takes_a_bounded_number_of_rows_and_ends(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    counts.mark_span(0, 3 << 20)
    taken = []
    while not taken or taken[-1] == 100:
        taken.append(counts.drop_below((2 << 20) + 5000, limit=100))
        assert problems(txn, STREAM) == []
    assert sum(taken) == 512 + 1 + 2  # bitmaps of two rows, one bitmap more, the two rows
    assert max(taken) == 100
    assert counts.dead_between((2 << 20) + 5000, 4 << 20) == (1 << 20) - 5000
    with pytest.raises(CorruptionError):
        counts.dead_before(100)


def test_dropping_a_whole_row_of_the_top_keeps_its_count(txn: lmdb.Transaction) -> None:
    counts = DeadCounts(txn, STREAM)
    line = 1 << 37
    counts.mark_span(50, 60)
    counts.mark_span(line + 5, line + 7)
    assert counts.drop_below(line) == 3
    assert counts.drop_below(line) == 0
    assert counts.dead_before(line + 6) == 11
    assert counts.select_live(line - 10) == line
    assert problems(txn, STREAM, base=line) == []


def test_a_counter_row_that_differs_from_the_one_above_is_never_searched(
    txn: lmdb.Transaction,
) -> None:
    counts = DeadCounts(txn, STREAM)
    counts.mark_span(0, 10)
    key = family(STREAM, DEAD) + bytes([1]) + bytes(8)
    txn.put(key, seal(key, [(9).to_bytes(2, "little")]))
    with pytest.raises(CorruptionError, match="of the ordinals 0 to 1048575, 9 are marked"):
        counts.select_live(0)
    assert len(problems(txn, STREAM)) == 2


def test_a_row_missing_behind_a_stored_one_is_listed_without_a_base(txn: lmdb.Transaction) -> None:
    DeadCounts(txn, STREAM).mark_span(0, 3 * 4096)
    bitmaps = [key for key, _ in rows_of(txn) if key[9] == 0]
    txn.delete(bitmaps[0])  # as drop_below() does
    assert problems(txn, STREAM) == []
    assert len(problems(txn, STREAM, base=4095)) == 1
    assert problems(txn, STREAM, base=4096) == []
    txn.delete(bitmaps[2])
    assert len(problems(txn, STREAM)) == 1


# --- the ordinal index ---------------------------------------------------------------------

notes = st.dictionaries(
    st.one_of(st.integers(0, 500), near_borders), st.integers(0, (1 << 64) - 1), max_size=20
)


@settings(max_examples=examples(100), deadline=None)
@given(noted=notes, asked=st.lists(ordinals, max_size=10), at=ordinals)
def test_floor_is_the_last_note_not_above(
    environment: lmdb.Environment, noted: dict[int, int], asked: list[int], at: int
) -> None:
    with environment.begin(write=True) as txn:
        index = OrdinalIndex(txn, STREAM)
        for ordinal, seq in noted.items():
            index.note(ordinal, ordinal, seq)
        plain = sorted((ordinal, ordinal, seq) for ordinal, seq in noted.items())
        assert list(index.all()) == plain
        assert problems(txn, STREAM) == []
        for x in [0, at, *asked, *noted]:
            assert index.floor(x) == max((n for n in plain if n[0] <= x), default=None)
        floor = index.floor(at)
        left = [n for n in plain if floor is None or n >= floor]
        assert index.drop_below(at) == len(plain) - len(left)
        assert list(index.all()) == left
        assert index.floor(at) == floor
        txn.abort()


def test_notes_are_dropped_in_bounded_steps(txn: lmdb.Transaction) -> None:
    index = OrdinalIndex(txn, STREAM)
    for ordinal in range(0, 25_000, 10):
        index.note(ordinal, 1, ordinal)
    assert [index.drop_below(24_005) for _ in range(4)] == [1000, 1000, 400, 0]
    assert next(index.all()) == (24_000, 1, 24_000)


def test_a_damaged_note_is_an_error_and_is_listed(txn: lmdb.Transaction) -> None:
    index = OrdinalIndex(txn, STREAM)
    index.note(640, 5, 1)
    ((key, value),) = rows_of(txn, ORDINAL)
    for bit in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        txn.put(key, bytes(damaged))
        with pytest.raises(CorruptionError):
            index.floor(700)
        assert len(problems(txn, STREAM)) == 1


def test_noted_leaves_out_of_order_are_listed(txn: lmdb.Transaction) -> None:
    index = OrdinalIndex(txn, STREAM)
    index.note(0, 5, 0)
    index.note(64, 4, 9)
    assert problems(txn, STREAM) == [
        "the leaf noted for ordinal 64 is not behind the one before it"
    ]
