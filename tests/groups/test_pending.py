"""The pending list of a group against a plain dict, its order of release, and its own check."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import lmdb
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from raxlog.storage.errors import CorruptionError
from raxlog.storage.format.keys import (
    PENDING,
    PENDING_BY_CONSUMER,
    PENDING_BY_TIME,
    RELEASED,
    group_family,
)
from raxlog.storage.format.records import seal, seed_of
from raxlog.storage.trees.rax import family_rows
from raxlog.stream.group.state import ConsumerState, GroupState
from raxlog.stream.node.packed_ids import pack_ids
from raxlog.stream.node.stream_id import pack_id
from raxlog.stream.pel.bucket import (
    CAPACITY,
    ID,
    MAX_VALUE,
    Bucket,
    Nack,
    joined,
    unpack_ids,
)
from raxlog.stream.pel.pending_check import problems
from raxlog.stream.pel.pending_list import PendingList

STREAM, GROUP = 7, 3
KINDS = (PENDING, PENDING_BY_CONSUMER, PENDING_BY_TIME, RELEASED)
LATEST = (1 << 64) - 1
EVERYTHING = ((0, 0), (LATEST, LATEST))

# A bucket's bytes repeat across the border of two IDs where ms and seq are alike.
ids = st.tuples(st.sampled_from([0, 1, 5, 256, 1 << 40]), st.integers(1, 40))
some_ids = st.lists(ids, max_size=30, unique=True).map(sorted)
consumers = st.integers(1, 4)
times = st.one_of(st.integers(0, 20), st.sampled_from([1_700_000_000_000, LATEST]))
counts = st.one_of(st.integers(0, 3), st.just((1 << 63) - 1))
keys = st.one_of(st.just({}), st.dictionaries(ids, st.sampled_from([b"", b"a" * 17, bytes(16) + b"\1"]), max_size=30))


def rows_of(txn: Any, group: int = GROUP) -> list[tuple[bytes, bytes]]:
    prefixes = tuple(group_family(STREAM, kind, group) for kind in KINDS)
    return [(key, value) for key, value in txn.cursor() if key.startswith(prefixes)]


class PendingModel(RuleBasedStateMachine):
    """Every operation on a small list, in buckets of a few entries, beside a dict."""

    @initialize(capacity=st.sampled_from([1, 2, 3, 8, CAPACITY]))
    def start(self, capacity: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.capacity = capacity
        self.model: dict[ID, Nack] = {}
        self.queue: list[ID] = []  # released entries in the order of their release
        self.steps = 0
        self.env = lmdb.open(self.folder.name, map_size=1 << 26, sync=False)
        with self.env.begin(write=True) as txn:
            for group in (GROUP - 1, GROUP + 1):  # neighbours that must never be touched
                neighbour = PendingList(txn, STREAM, group)
                neighbour.add([(5, seq) for seq in range(1, 9)], 1, 5)
                neighbour.release([((5, 1), 1, 0), ((5, 2), 1, LATEST)])
            self.neighbours = rows_of(txn, GROUP - 1) + rows_of(txn, GROUP + 1)
        self.begin()

    def begin(self) -> None:
        self.txn = self.env.begin(write=True)
        self.pending = PendingList(self.txn, STREAM, GROUP, self.capacity)

    def teardown(self) -> None:
        if hasattr(self, "txn"):
            try:
                self.compare()
            finally:
                self.txn.abort()
                self.env.close()
                self.folder.cleanup()

    def place(self, sid: ID, nack: Nack | None, keys: dict[ID, bytes] | None = None) -> Nack | None:
        """Change one entry of the model, which keeps its key if there is no other; what it was, but for the number."""
        was = self.model.pop(sid, None)
        if nack is not None:
            nack = nack._replace(key=(keys or {}).get(sid, b"" if was is None else was.key))
        if sid in self.queue:
            self.queue.remove(sid)
        if nack is not None:
            self.model[sid] = nack
            if not nack.consumer:
                self.queue.append(sid)
        return was

    @rule(batch=some_ids, consumer=consumers, time=times, count=counts, keys=keys)
    def add(self, batch: list[ID], consumer: int, time: int, count: int, keys: dict[ID, bytes]) -> None:
        expected = [(sid, self.place(sid, Nack(consumer, time, count), keys)) for sid in batch]
        found = self.pending.add_row(pack_ids(batch), consumer, time, count, keys)
        assert plain(found) == [row for row in expected if row[1] is not None]

    @rule(start=st.integers(0, 5), size=st.integers(0, 300), consumer=consumers, time=times, keyed=st.integers(0, 2))
    def add_behind_the_last(self, start: int, size: int, consumer: int, time: int, keyed: int) -> None:
        ms, seq = max(self.model, default=(0, 0))
        batch = [(ms, seq + start + 1 + at) for at in range(size)]
        keys = {sid: b"%017d" % sid[1] for sid in batch[::2] if keyed}
        for sid in batch:
            self.place(sid, Nack(consumer, time, 1), keys)
        assert self.pending.add_row(pack_ids(batch), consumer, time, 1, keys) == []

    @rule(rows=st.lists(st.tuples(ids, consumers, times, counts), max_size=12), keys=keys)
    def set(self, rows: list[tuple[ID, int, int, int]], keys: dict[ID, bytes]) -> None:
        named = {row[0]: Nack(*row[1:]) for row in rows}
        expected = [(sid, self.place(sid, named[sid], keys)) for sid in sorted(named)]
        assert plain(self.pending.set(rows, keys)) == expected

    @rule(keys=keys)
    def set_keys(self, keys: dict[ID, bytes]) -> None:
        for sid in keys.keys() & self.model.keys():
            self.model[sid] = self.model[sid]._replace(key=keys[sid])
        self.pending.set_keys(keys)

    @rule(data=st.data(), some=st.booleans(), in_a_row=st.booleans())
    def remove(self, data: st.DataObject, some: bool, in_a_row: bool) -> None:
        batch = data.draw(some_ids)
        if some and self.model:  # a run of those that are there
            known = sorted(self.model)
            low = data.draw(st.integers(0, len(known) - 1))
            batch = known[low : low + data.draw(st.integers(1, 200))]
        expected = [(sid, self.place(sid, None)) for sid in batch if sid in self.model]
        if in_a_row:
            owners = Counter(nack.consumer for _, nack in expected if nack is not None)
            assert self.pending.remove_row(pack_ids(batch)) == owners
        else:
            assert plain(self.pending.remove(batch)) == expected

    @rule(rows=st.lists(st.tuples(ids, counts, times), max_size=8), insert=st.booleans(), keys=keys)
    def release(self, rows: list[tuple[ID, int, int]], insert: bool, keys: dict[ID, bytes]) -> None:
        known = {sid: self.model.get(sid) for sid, _, _ in rows if insert or sid in self.model}
        for sid, count, due in rows:
            if sid in known:
                self.place(sid, Nack(0, due, count), keys)
        assert plain(self.pending.release(rows, insert, keys)) == sorted(known.items())

    @rule(consumer=consumers)
    def drop_consumer(self, consumer: int) -> None:
        expected = sorted((sid, nack) for sid, nack in self.model.items() if nack.consumer == consumer)
        for sid, _ in expected:
            self.place(sid, None)
        assert plain(self.pending.drop_consumer(consumer)) == expected

    @rule(consumer=consumers, to=consumers, time=st.none() | times)
    def hand_over(self, consumer: int, to: int, time: int | None) -> None:
        mine = [sid for sid, nack in self.model.items() if nack.consumer == consumer]
        for sid in mine:
            was = self.model[sid]
            self.model[sid] = Nack(to, was.time if time is None else time, was.count, key=was.key)
        assert self.pending.hand_over(consumer, to, time) == len(mine)

    @rule(abort=st.booleans())
    def reopen(self, abort: bool) -> None:
        before = rows_of(self.txn)
        self.txn.commit()
        if abort:
            self.begin()
            self.pending.add([(1 << 41, 1)], 1, 0)
            self.pending.remove(sorted(self.model)[:5])
            self.txn.abort()
        self.env.close()
        self.env = lmdb.open(self.folder.name, map_size=1 << 26, sync=False)
        self.begin()
        assert rows_of(self.txn) == before

    @precondition(lambda self: self.model)
    @rule(limit=st.integers(1, 7))
    def clear(self, limit: int) -> None:
        self.compare()
        rows = len(rows_of(self.txn))
        while not self.pending.clear(limit):
            rows -= limit
            assert len(rows_of(self.txn)) == rows
        assert rows_of(self.txn) == []
        self.model.clear()
        self.queue.clear()

    @rule(start=ids, end=ids, consumer=st.none() | consumers, sid=ids, before=times)
    def ask(self, start: ID, end: ID, consumer: int | None, sid: ID, before: int) -> None:
        expected = [
            row for row in sorted(self.model.items())
            if start <= row[0] <= end and consumer in (None, row[1].consumer)
        ]
        assert plain(self.pending.scan(start, end, consumer)) == expected
        assert plain([(sid, self.pending.get(sid))]) == [(sid, self.model.get(sid))]
        assert plain(self.pending.oldest(before)) == by_age(self.model, before)
        due = [sid for sid in self.queue if self.model[sid].time <= before]
        due.sort(key=lambda sid: self.model[sid].time)  # stable: the order of release stays
        assert plain(self.pending.released(before)) == [(sid, self.model[sid]) for sid in due]

    @rule(batch=st.lists(ids, max_size=40))
    def find(self, batch: list[ID]) -> None:
        expected = {sid: self.model[sid] for sid in batch if sid in self.model}
        assert dict(plain(self.pending.find(batch).items())) == expected

    @invariant()
    def the_list_is_the_dict(self) -> None:
        """All of it after each fifth step, before all is cleared, and in the end: what is wrong stays wrong."""
        if not hasattr(self, "txn"):
            return
        self.steps += 1
        if self.steps % 5 == 0:
            self.compare()
        assert self.pending.first() == min(self.model, default=None)
        assert self.pending.last() == max(self.model, default=None)
        dues = [nack.time for nack in self.model.values() if not nack.consumer and nack.time != LATEST]  # that is never
        assert self.pending.next_due() == min(dues, default=None)
        owned = [nack.time for nack in self.model.values() if nack.consumer]
        assert self.pending.oldest_time() == min(owned, default=None)

    def compare(self) -> None:
        assert plain(self.pending.scan(*EVERYTHING)) == sorted(self.model.items())
        found, totals = problems(self.txn, STREAM, GROUP, self.capacity)
        assert found == []
        assert totals == Counter(nack.consumer for nack in self.model.values())
        assert rows_of(self.txn, GROUP - 1) + rows_of(self.txn, GROUP + 1) == self.neighbours


def plain(rows: Any) -> list[Any]:
    """Rows without the running numbers, which the dict does not give out; owned ones have 0."""
    rows = list(rows)
    assert all(bool(nack.released) == (nack.consumer == 0) for _, nack in rows if nack is not None)
    return [(sid, None if nack is None else nack._replace(released=0)) for sid, nack in rows]


def by_age(model: dict[ID, Nack], before: int) -> list[tuple[ID, Nack]]:
    rows = [row for row in model.items() if row[1].consumer and row[1].time <= before]
    return sorted(rows, key=lambda row: (row[1].time, row[0]))


TestPendingListEqualsADict = PendingModel.TestCase
TestPendingListEqualsADict.settings = settings(max_examples=examples(80), stateful_step_count=30)


@pytest.fixture
def txn(tmp_path: Path) -> Any:
    with lmdb.open(str(tmp_path), map_size=1 << 28, sync=False) as env:
        txn = env.begin(write=True)
        yield txn
        txn.abort()


@pytest.fixture
def pending(txn: Any) -> PendingList:
    return PendingList(txn, STREAM, GROUP)


def batch_of(count: int, start: int = 1, ms: int = 5) -> list[ID]:
    return [(ms, seq) for seq in range(start, start + count)]


def bucket_sizes(txn: Any) -> list[int]:
    return [
        len(Bucket.decode(key, value)) for key, value in rows_of(txn)
        if key.startswith(group_family(STREAM, PENDING, GROUP))
    ]


def test_a_batch_is_three_rows_and_acknowledging_it_leaves_none(
    txn: Any, pending: PendingList
) -> None:
    pending.add(batch_of(100), 1, 7000)
    assert len(rows_of(txn)) == 3
    assert len(pending.remove(batch_of(100))) == 100
    assert rows_of(txn) == []


def test_small_batches_share_a_bucket_and_large_ones_begin_their_own(
    txn: Any, pending: PendingList
) -> None:
    for at in range(11):
        pending.add(batch_of(10, 1 + 10 * at), 1, 7000 + at)
    pending.add(batch_of(100, 111), 1, 8000)
    pending.add(batch_of(113, 211), 1, 8001)
    assert bucket_sizes(txn) == [110, 100, 56, 57]


def test_no_bucket_leaves_its_page_however_different_its_entries_are(
    txn: Any, pending: PendingList
) -> None:
    for at in range(500):
        time = (at * 7919 % 500) << 54
        pending.add([(LATEST - 600 + at, LATEST)], at % 3 + 1, time, 1 << 62 | at)
    for at in range(0, 500, 7):
        pending.release([((LATEST - 600 + at, LATEST), 1 << 62, LATEST - at % 5)])
    assert max(len(value) for _, value in rows_of(txn)) <= MAX_VALUE
    assert problems(txn, STREAM, GROUP)[0] == []


def test_delivering_one_by_one_fills_buckets_well(txn: Any, pending: PendingList) -> None:
    for at in range(1000):
        pending.add([(5, at + 1)], 1, 1_700_000_000_000 + 3 * at)
    assert min(bucket_sizes(txn)[:-1]) >= 90


def test_entries_inserted_in_descending_order_do_not_make_a_bucket_each(
    txn: Any, pending: PendingList
) -> None:
    for seq in range(1000, 0, -1):
        pending.set([((5, seq), 1, 7000, 1)])
    assert len(bucket_sizes(txn)) <= 20
    assert problems(txn, STREAM, GROUP)[0] == []


def test_the_first_released_is_the_first_claimed_even_after_others_were_taken(
    pending: PendingList
) -> None:
    pending.add(batch_of(6), 1, 7000)
    for seq in (4, 2, 6):
        pending.release([((5, seq), 1, 9000)])
    pending.set([((5, 6), 2, 9001, 2)])
    pending.release([((5, 1), 1, 9000), ((5, 4), 1, 9000)])
    pending.release([((5, 3), 1, 8000), ((5, 5), 1, 9002)])
    assert [sid[1] for sid, _ in pending.released(9001)] == [3, 2, 1, 4]
    assert [sid[1] for sid, _ in pending.oldest(LATEST)] == [6]
    assert pending.next_due() == 8000


def test_the_oldest_hundred_open_only_the_buckets_they_lie_in(
    txn: Any, pending: PendingList
) -> None:
    for at in range(50):
        pending.add(batch_of(100, 1 + 100 * at), 1, 7000)
    pending.set([((5, 4321), 1, 6000, 1)])
    opened = 0

    class Counting:
        cursor = txn.cursor

        def get(self, key: bytes) -> Any:
            nonlocal opened
            opened += key.startswith(group_family(STREAM, PENDING, GROUP))
            return txn.get(key)

    rows = PendingList(Counting(), STREAM, GROUP).oldest(7000)  # type: ignore[arg-type]
    assert [next(rows)[0] for _ in range(100)] == [(5, 4321), *batch_of(99)]
    assert opened == 2


def test_an_old_row_in_the_place_of_a_newer_one_is_no_shorter_answer(txn: Any, pending: PendingList) -> None:
    """What a write leaves that goes through a damaged page of LMDB's."""
    first = batch_of(10)
    pending.add(first, 1, 7000)
    key = group_family(STREAM, PENDING, GROUP) + pack_id(*first[0])
    old = txn.get(key)
    pending.add(batch_of(5, 11), 1, 7000)
    assert len(list(pending.oldest(7000))) == 15
    txn.put(key, old)
    with pytest.raises(CorruptionError, match="not the one that its consumers' rows count"):
        list(pending.oldest(7000))


def test_a_list_with_a_damaged_row_by_time_is_not_whole(txn: Any, pending: PendingList) -> None:
    pending.add(batch_of(150), 1, 7000)
    assert pending.is_whole(150)
    *_, (last, value) = family_rows(txn, group_family(STREAM, PENDING_BY_TIME, GROUP))
    txn.put(last, value[:-1] + bytes([value[-1] ^ 1]))
    with pytest.raises(CorruptionError):
        pending.is_whole(150)


def test_a_missing_row_by_time_is_no_shorter_answer(txn: Any, pending: PendingList) -> None:
    pending.add(batch_of(150), 1, 7000)
    assert len(list(pending.scan_idle(*EVERYTHING, 7000))) == 150
    *_, (last, _) = family_rows(txn, group_family(STREAM, PENDING_BY_TIME, GROUP))
    txn.delete(last)
    with pytest.raises(CorruptionError, match="lead to other buckets"):
        list(pending.scan_idle(*EVERYTHING, 7000))


def test_one_consumers_entries_are_found_among_many_of_others(
    txn: Any, pending: PendingList
) -> None:
    for at in range(60):
        pending.add(batch_of(100, 1 + 100 * at), 1, 7000)
    mine = [(5, 17), (5, 2000), (5, 2001), (5, 5999)]
    pending.set([(sid, 2, 7001, 1) for sid in mine])
    assert [sid for sid, _ in pending.scan(*EVERYTHING, consumer=2)] == mine
    assert [sid for sid, _ in pending.scan((5, 18), (5, 2000), consumer=2)] == [(5, 2000)]
    assert list(pending.scan(*EVERYTHING, consumer=0)) == []


@given(st.lists(st.tuples(st.integers(0, LATEST), st.integers(0, LATEST))))
def test_ids_pack_to_what_each_packs_to(some: list[ID]) -> None:
    assert pack_ids(some) == b"".join(pack_id(*sid) for sid in some)
    assert unpack_ids(pack_ids(some)) == some


MSGPACK_STEPS = [0, 1, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1]


@given(st.data(), st.sampled_from([1, 2, 15, 16, 17, 112, 300, 70_000 // 16]), st.booleans())
@settings(max_examples=examples(60, 1000))
def test_a_buckets_record_is_what_msgpack_makes_of_its_row(data: st.DataObject, size: int, has_keys: bool) -> None:
    """The kernel writes it byte by byte."""
    numbers = st.sampled_from(MSGPACK_STEPS)

    def column_of(values: st.SearchStrategy[int]) -> int | list[int]:
        some = data.draw(st.lists(values, min_size=1, max_size=5))
        return some[0] if data.draw(st.booleans()) else [some[at % len(some)] for at in range(size)]

    ids = pack_ids([(5, seq) for seq in range(size)])
    held = column_of(st.sampled_from([0, 1, 4, 127, 128, 1 << 31]))
    counted, released, later = column_of(numbers), column_of(numbers), column_of(numbers)
    base = data.draw(st.sampled_from([0, 1, 1 << 40, 1 << 63]))
    offsets: int | list[int] = 0 if isinstance(later, int) else [offset - min(later) for offset in later]
    times: int | list[int] = base if isinstance(offsets, int) else [base + offset for offset in offsets]
    keys = bytes(range(17)) * size if has_keys else b""
    at = group_family(STREAM, PENDING, GROUP) + pack_id(5, 0)
    row = [joined(ids, keys), held, base, offsets, counted, released]
    assert Bucket(at, ids, held, times, counted, released, keys).encode() == seal(at, [*row, 17] if has_keys else row)


@given(st.lists(st.integers(0, 20), min_size=1, unique=True).map(sorted), st.data())
def test_ids_are_found_in_a_row_where_they_are_and_nowhere_else(seqs: list[int], data: st.DataObject) -> None:
    row = [(5, 256 * seq) for seq in seqs]
    wanted = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True).map(sorted))
    some = [(5, 256 * seq) for seq in wanted]
    expected = next((at for at in range(len(row)) if row[at : at + len(some)] == some), -1)
    assert Bucket(b"", pack_ids(row), 1, 1, 1).position(pack_ids(some)) == expected


def test_the_records_of_a_group_and_its_consumers_are_what_msgpack_makes_of_their_rows() -> None:
    state = GroupState(STREAM, GROUP, b"a" * 40)
    member = ConsumerState(1, b"c", 0)
    member.key = state.consumer_key(1)
    member.seed = seed_of(member.key)
    for number in MSGPACK_STEPS:
        state.last, state.entries_read, state.pending = (number, LATEST - number), number, number
        member.seen, member.pending = number, number
        assert state.sealed() == seal(state.key, state.row())
        assert member.sealed() == seal(member.key, member.row())
        state.entries_read, member.active, state.gone = -1, number, state.gone + 1


def test_every_flipped_bit_is_noticed_and_no_missing_or_added_row_passes_the_check(
    txn: Any, pending: PendingList
) -> None:
    pending.add(batch_of(150), 1, 7000)
    pending.set([((5, 3), 2, 6000, 4)])
    pending.release([((5, 9), 1, 8000)])
    for key, value in rows_of(txn):
        txn.delete(key)
        assert problems(txn, STREAM, GROUP)[0]
        for at in range(0, len(value), 11):
            txn.put(key, value[:at] + bytes([value[at] ^ 16]) + value[at + 1 :])
            assert problems(txn, STREAM, GROUP)[0]
        txn.put(key, value)
        astray = key[:-1] + bytes([key[-1] ^ 129])
        txn.put(astray, value)
        assert problems(txn, STREAM, GROUP)[0]
        txn.delete(astray)
    assert problems(txn, STREAM, GROUP) == ([], Counter({1: 148, 2: 1, 0: 1}))


def test_a_missing_bucket_and_a_damaged_one_are_errors_when_they_are_asked_for(
    txn: Any, pending: PendingList
) -> None:
    pending.add(batch_of(5), 1, 7000)
    key = group_family(STREAM, PENDING, GROUP) + pack_id(5, 1)
    value = txn.get(key)
    txn.put(key, value[:40] + b"?" + value[41:])
    with pytest.raises(CorruptionError):
        pending.get((5, 2))
    txn.delete(key)
    with pytest.raises(CorruptionError, match=r"group 3.*bucket 5-1 is missing"):
        list(pending.oldest(LATEST))
    with pytest.raises(CorruptionError):
        list(pending.scan(*EVERYTHING, consumer=1))
