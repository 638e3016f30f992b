"""Groups on disk are what docs/format-groups.md says: a reader made from it sees what raxlog sees.

raxlog writes ──> store ──> second_reader_groups.py (knows the pages only)
                    └─────> raxlog reads            both must say the same

The clock stands still, so that idle times can be compared to the millisecond.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import raxlog
import raxlog.testing
import second_reader
import second_reader_groups as reader
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from moments import moment
from raw_records import raw_records, resealed
from raxlog.stream import stream as stream_module
from raxlog.stream.group import deliver as group_read_module
from raxlog.stream.group import group as group_module
from raxlog.stream.group import parking as parking_module

PAGE = Path(__file__).parents[2] / "docs" / "format-groups.md"
READERS = Path(__file__).parents[1] / "support" / "readers"
NOW = 1_732_185_600_000
WEEKS = 10.0**7  # seconds; idle longer than anything here

LONG = b"long" * 101  # 404 bytes: in a key by its hash
NAMES = [b"billing", b"", b"\xff\x00", b"n" * 400, b"n" * 401, LONG, b"h" * 65536]


class Clock:
    """The clock that raxlog reads in these tests."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@contextmanager
def standing_clock() -> Iterator[Clock]:
    """A clock that goes on only when told to."""
    clock = Clock()
    with ExitStack() as stack:
        for module in (group_module, group_read_module, parking_module, stream_module):
            stack.enter_context(patch.object(module, "now_ms", clock))
        yield clock


@pytest.fixture
def clock() -> Iterator[Clock]:
    with standing_clock() as standing:
        yield standing


def read_again(path: Path) -> reader.Rest:
    """What the second reader says. LMDB forbids a process to open a store twice: read a copy."""
    copy = path.with_name(path.name + ".copy")
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(path, copy)
    return reader.read_all(copy)


def assert_same(store: raxlog.Store, clock: Clock) -> reader.Rest:
    """Assert that both readers tell the same of every group, consumer, pending entry and state."""
    read = read_again(store.path)
    assert read.state == dict(store.state)
    assert sorted(read.groups) == store.streams()
    for name, groups in read.groups.items():
        stream = store.stream(name)
        assert sorted(groups) == [info.name for info in stream.groups()]
        assert [(entry.due, dict(entry.pairs)) for entry in read.deferred[name]] == [
            (one.due.timestamp() * 1000, dict(one.pairs)) for one in stream.deferred()
        ]
        for group_name, group in groups.items():
            assert_same_group(stream.group(group_name), group, read.streams.streams[name], clock.now)
    return read


def assert_same_group(
    ours: raxlog.Group, group: reader.Group, stream: second_reader.Stream, now: int
) -> None:
    """Assert that raxlog says of a group what the second reader has read."""
    info = ours.info()
    assert group.last == tuple(info.last_delivered_id)
    assert group.entries_read == (-1 if info.entries_read is None else info.entries_read)
    assert group.pending == info.pending
    to_come = sum(entry.id > group.last and not entry.deleted for entry in stream.entries)
    assert to_come == info.lag == ours.lag
    stored = sorted(group.consumers.values(), key=lambda consumer: consumer.name)
    told = ours.consumers()
    assert [
        (c.name, c.pending, None if c.active < 0 else c.active) for c in stored
    ] == [(one.name, one.pending, one.active and round(one.active.timestamp() * 1000)) for one in told]
    # That a consumer was here is on disk some seconds later (test_seen.py).
    assert all(0 <= round(one.seen.timestamp() * 1000) - c.seen < 5000 for c, one in zip(stored, told, strict=True))
    assert [
        (p.id, p.consumer, None if p.consumer is None else (now - p.time) / 1000, p.count)
        for p in group.pel.values()
    ] == [(tuple(p.id), p.consumer, p.idle, p.deliveries) for p in ours.pending_entries("-")]


def filled(store: raxlog.Store, entries: int = 400) -> tuple[raxlog.Group, list[raxlog.StreamID]]:
    """A stream of so many entries, a second apart, and a group that begins before them."""
    stream = store.stream("orders")
    ids = stream.extend(({"n": n} for n in range(entries)), ids=[f"{n + 1}000-1" for n in range(entries)])
    return stream.create_group("billing", start="0"), ids


def test_the_second_reader_of_groups_knows_nothing_of_raxlog() -> None:
    loaded = "import sys, second_reader_groups; print('raxlog' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", loaded], cwd=READERS, check=True, capture_output=True
    )
    assert answer.stdout.strip() == b"False"


def test_names_of_every_length_lead_to_their_groups_and_consumers(
    store: raxlog.Store, clock: Clock
) -> None:
    for stream_name in ("a", "b"):
        stream = store.stream(stream_name)
        stream.append({"n": 1})
        for name in NAMES:
            group = stream.create_group(name, start="0")
            for consumer in NAMES:
                group.create_consumer(consumer)
            group.read(NAMES[1])
    read = assert_same(store, clock)
    assert set(read.groups[b"a"]) == set(read.groups[b"b"][LONG].consumers) == set(NAMES)


def test_batches_read_acknowledged_and_read_again_leave_the_buckets_the_page_describes(
    store: raxlog.Store, clock: Clock
) -> None:
    group, _ = filled(store)
    batch: list[raxlog.StreamID] = []
    for number in range(4):
        clock.now += 50
        batch = [entry.id for entry in group.read(f"w{number % 2}", count=70, ack=batch[:55])]
        assert_same(store, clock)
    group.ack(*batch[::3])
    assert_same(store, clock)
    clock.now += 7
    group.read("w1", count=9, ids="0")
    group.read("w2", count=20, noack=True)
    group.create_consumer("idle")
    read = assert_same(store, clock).groups[b"orders"][b"billing"]
    assert len({entry.time for entry in read.pel.values()}) > 3
    assert {entry.count for entry in read.pel.values()} == {1, 2}


def test_claims_and_consumers_that_go_move_what_the_indexes_say(
    store: raxlog.Store, clock: Clock
) -> None:
    group, ids = filled(store)
    group.read("w1", count=300)
    store.stream("orders").delete(*ids[10:30])
    for number in range(60):
        clock.now += 13
        group.claim("w2", ids[number * 5], ids[(number * 37) % 300], deliveries=number, force=True)
    assert_same(store, clock)
    group.autoclaim("w3", min_idle=0.5, count=40)
    group.read("w4", count=25, claim_idle=0.2)
    assert_same(store, clock)
    with pytest.raises(raxlog.ConsumerBusy):
        group.delete_consumer("w1")
    group.delete_consumer("w2", to="w3")
    group.delete_consumer("w4", pending="drop")
    assert_same(store, clock)
    group.set_id("5000-1", entries_read=3)
    assert assert_same(store, clock).groups[b"orders"][b"billing"].moves == 1


def test_released_entries_are_handed_out_in_the_order_that_lies_on_disk(
    store: raxlog.Store, clock: Clock
) -> None:
    group, ids = filled(store)
    group.read("w1", count=200)
    group.nack(*ids[50:40:-1], mode="fatal")
    group.nack(*ids[100:104], delay=5)
    group.nack(*ids[0:4], ids[2], delay=2)
    group.nack(*ids[300:303], force=True, mode="silent")
    group.nack(ids[60], deliveries=9)
    order = assert_same(store, clock).groups[b"orders"][b"billing"].released
    assert len(order) == 10 + 4 + 4 + 3 + 1
    clock.now += 10_000
    handed_out = group.read("w2", count=len(order), claim_idle=WEEKS)
    assert [tuple(entry.id) for entry in handed_out] == order
    assert assert_same(store, clock).groups[b"orders"][b"billing"].released == []


def test_deletion_policies_and_destroyed_groups_leave_nothing_behind(
    store: raxlog.Store, clock: Clock
) -> None:
    group, ids = filled(store)
    other = store.stream("orders").create_group("audit", start="0")
    group.read("w", count=200)
    other.read("w", count=100)
    group.ack(*ids[:50])
    store.stream("orders").delete_ex(*ids[:150:3], refs="acked")
    assert_same(store, clock)
    group.ack_delete(*ids[50:60], refs="delref")
    store.stream("orders").trim(maxlen=320, refs="delref")
    read = assert_same(store, clock)
    assert min(read.groups[b"orders"][b"audit"].pel) > tuple(ids[50])
    other.destroy()
    store.stream("orders").create_group("audit", "$")
    assert assert_same(store, clock).groups[b"orders"][b"audit"].number == 3
    kinds = {key[8] for key in raw_records(store.path.with_name(store.path.name + ".copy"))}
    assert 0x03 not in kinds
    store.delete_stream("orders")
    assert assert_same(store, clock).groups == {}


def test_a_transaction_leaves_state_and_groups_of_one_moment(
    store: raxlog.Store, clock: Clock
) -> None:
    filled(store)
    with store.transaction() as tx:
        batch = tx.group("orders", "billing").read("w", count=10)
        tx.stream("invoices").extend(entry.fields for entry in batch)
        tx.group("orders", "billing").ack(*[entry.id for entry in batch[:5]])
        tx.state["offset"] = bytes(batch[-1].id)
        tx.state[b""] = b""

    def change_of_mind() -> None:
        with store.transaction() as tx:
            tx.group("orders", "billing").read("w")
            tx.state["k" * 502] = b"v"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change_of_mind()
    read = assert_same(store, clock)
    assert set(read.state) == {b"offset", b""}
    assert len(read.groups[b"orders"][b"billing"].pel) == 5


def test_idempotent_appends_are_remembered_as_the_page_says(
    store: raxlog.Store, clock: Clock
) -> None:
    stream = store.stream("orders")
    stream.append({"made": "first"})
    stream.configure(idempotence_cap=3, idempotence_window=100)
    made = {}
    for number in range(5):
        clock.now += 1000
        for producer in ("p1", "p" * 70):
            sid = stream.append({"n": number}, producer=producer, idempotent_id=f"order-{number}")
            made[producer.encode(), b"order-%d" % number] = tuple(sid)
    stream.append({"b": 2, "a": 1}, producer="by content")
    read = assert_same(store, clock)
    found = {(r.producer, r.idempotent_id): r.id for r in read.remembered[b"orders"]}
    content = next(iid for producer, iid in found if producer == b"by content")
    assert len(content) == 16
    assert found.pop((b"by content", content)) == tuple(stream.last_id)
    assert found == dict(list(made.items())[-6:])
    assert stream.append({"a": 1, "b": 2}, producer="by content") == stream.last_id
    assert read.streams.streams[b"orders"].idempotence == (100, 3)


_OPERATION = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 150)),
    st.tuples(st.just("read"), st.integers(1, 150), st.integers(0, 2)),
    st.tuples(st.just("again"), st.integers(1, 20), st.integers(0, 2)),
    st.tuples(st.just("ack"), st.integers(0, 300), st.integers(1, 120), st.integers(1, 4)),
    st.tuples(st.just("nack"), st.integers(0, 300), st.integers(1, 30), st.integers(0, 3)),
    st.tuples(st.just("claim"), st.integers(0, 300), st.integers(1, 30), st.integers(0, 2)),
    st.tuples(st.just("idle"), st.integers(1, 50), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.integers(0, 300), st.integers(1, 30)),
    st.tuples(st.just("hand over"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("back"), st.integers(0, 300)),
)


def apply(group: raxlog.Group, stream: raxlog.Stream, ids: list[raxlog.StreamID],
          what: str, how: list[int]) -> None:
    """One random operation on a group."""
    if what == "append":
        ids += stream.extend({"n": n} for n in range(how[0]))
    elif what == "read":
        group.read(f"w{how[1]}", count=how[0])
    elif what == "again":
        group.read(f"w{how[1]}", count=how[0], ids="0")
    elif what == "ack":
        group.ack(*ids[how[0] : how[0] + how[1] : how[2]])
    elif what == "nack":
        group.nack(*ids[how[0] : how[0] + how[1]], delay=how[2], force=how[2] == 3)
    elif what == "claim":
        group.claim(f"w{how[2]}", *ids[how[0] : how[0] + how[1]], force=True)
    elif what == "idle":
        group.read(f"w{how[1]}", count=how[0], claim_idle=0.02)
    elif what == "delete":
        stream.delete(*ids[how[0] : how[0] + how[1]])
    elif what == "hand over" and how[0] != how[1]:
        group.delete_consumer(f"w{how[0]}", to=f"w{how[1]}")
    elif what == "back" and ids:
        group.set_id(ids[min(how[0], len(ids) - 1)])


def test_deferred_entries_lie_in_the_order_in_which_they_are_due(store: raxlog.Store, clock: Clock) -> None:
    stream = store.stream("orders")
    made = [stream.defer([("n", n), ("n", b"\xff")], at=moment(NOW * 2 + at)) for n, at in enumerate((9, 3, 5, 3))]
    assert [int(one.pairs[0][1]) for one in assert_same(store, clock).deferred[b"orders"]] == [1, 3, 2, 0]
    stream.configure(schema={"n": "string"})
    made[1].cancel()
    assert_same(store, clock)
    for one in made:
        one.cancel()
    assert assert_same(store, clock).deferred == {b"orders": []}


def test_a_schedule_lies_under_its_name_and_its_tick_among_deferred_entries(store: raxlog.Store, clock: Clock) -> None:
    stream = store.stream("orders")
    given: dict[str, Any] = {"coalesce": "all", "misfire_grace": 60, "jitter": 9}
    stream.schedule("nightly", {"n": 1}, cron="30 2 * * *", tz="Europe/Berlin", **given)
    stream.schedule("beat", {"n": 2}, every=0.001)
    stream.schedule("paused", {"n": 3}, every=600)
    stream.pause_schedule("paused")
    stream.append({"n": 9})
    read = assert_same(store, clock).schedules[b"orders"]
    assert {name: (one.definition, one.tick is None) for name, one in read.items()} == {
        b"nightly": ([[b"n", b"1"], "30 2 * * *", 0, "Europe/Berlin", "all", 60_000, 9_000], False),
        b"beat": ([[b"n", b"2"], None, 1, "UTC", "latest", None, 0], False),
        b"paused": ([[b"n", b"3"], None, 600_000, "UTC", "latest", None, 0], True)}
    stream.remove_schedule("nightly")
    assert [*assert_same(store, clock).schedules[b"orders"]] == [b"beat", b"paused"]


def test_a_unique_name_lies_under_its_hash(tmp_path: Path) -> None:
    with raxlog.testing.clock() as clock, raxlog.open(tmp_path / "store.rax", encoding=None) as store:
        stream = store.stream("orders")
        stream.create_group("billing")
        first = stream.append({"n": 1}, unique="a")
        second = stream.append({"n": 2}, unique=b"\xff", until=60)
        third = stream.defer({"n": 3}, delay=1, unique="c", until="delivered")
        assert isinstance(third, raxlog.Deferred)
        due, number = map(int, third.token.split("-")[1:])
        assert read_again(store.path).unique[b"orders"] == {
            b"a": reader.Unique("done", tuple(first), False), b"c": reader.Unique("delivered", (due, number), True),
            b"\xff": reader.Unique(second.ms + 60_000, tuple(second), False, 60_000)}
        clock.advance(1)
        last = stream.append({"n": 4})
        read = read_again(store.path)
        assert read.unique[b"orders"][b"c"] == reader.Unique("delivered", tuple(last.next()), False)
        assert [dict(entry.pairs).get(b"$entry") for entry in read.streams.streams[b"orders"].entries] == [
            b'{"unique": "a"}', b'{"unique": "\\udcff", "until": 60.0}', None, b'{"unique": "c", "until": "delivered"}']


def test_keys_of_entries(store: raxlog.Store, clock: Clock) -> None:
    orders = store.stream("orders")
    group = orders.create_group("billing")
    group.configure(key="n", order=True)
    ids = orders.extend([{"n": "a"}, {"n": "a"}, {"m": "a"}, {"n": "b"}, {"n": "a"}])
    group.read("x", count=9)
    found = assert_same(store, clock).groups[b"orders"][b"billing"]
    mark = xxhash.xxh3_128_digest(b"a")
    assert (found.limits, found.key) == (None, [b"n", 1, True, 100_000, 2, 0, 0, 1])
    assert found.places == {ids[0]: (mark, 2), ids[1]: (mark, 3), ids[3]: (xxhash.xxh3_128_digest(b"b"), 2),
                            ids[4]: (mark, 3)}
    group.configure(order=False, max_in_flight=5)
    group.nack(ids[0], delay=5, consumer="x")
    found = assert_same(store, clock).groups[b"orders"][b"billing"]
    assert [found.places[sid][1] for sid in (ids[0], ids[1], ids[4])] == [1, 2, 3]
    group.configure(key=0, rate_key="n", rate=(1, 60.0))
    assert [entry.id for entry in group.read("x", count=9, claim_idle=1000)] == ids[1:2]
    found = assert_same(store, clock).groups[b"orders"][b"billing"]
    assert (found.limits, found.key) == ([5, 0, 0, 1, 0], [b"n", 0, False, 100_000, 0, 1, 60_000, 1])
    assert [found.places[sid][1] for sid in (ids[0], ids[1], ids[4])] == [1, 2, 4]
    group.configure(rate=0)
    assert assert_same(store, clock).groups[b"orders"][b"billing"].places == {}


def test_limits_lie_in_the_groups_record(store: raxlog.Store, clock: Clock) -> None:
    group, _ = filled(store, 20)
    assert assert_same(store, clock).groups[b"orders"][b"billing"].limits is None
    group.configure(max_in_flight=7)
    assert assert_same(store, clock).groups[b"orders"][b"billing"].limits == [7, 0, 0, 1, 0]
    group.configure(rate=(10, 2.0), burst=3)
    assert len(group.read("w", count=9)) == 3
    assert assert_same(store, clock).groups[b"orders"][b"billing"].limits == [7, 10, 2000, 3, clock.now * 10 + 3 * 2000]
    group.cancel(store.stream("orders").range(count=1).__next__().id)
    assert assert_same(store, clock).groups[b"orders"][b"billing"].limits == [7, 10, 2000, 3, clock.now * 10 + 3 * 2000]
    group.configure(max_in_flight=0, rate=0)
    assert assert_same(store, clock).groups[b"orders"][b"billing"].limits is None


@settings(max_examples=40)
@given(operations=st.lists(_OPERATION, min_size=1, max_size=30))
def test_whatever_a_group_goes_through_both_readers_agree(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[Any, ...]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "store.rax"
    with standing_clock() as clock, raxlog.open(path, durability="relaxed", encoding=None) as store:
        group, ids = filled(store, 150)
        for what, *how in operations:
            clock.now += 10
            apply(group, store.stream("orders"), ids, what, how)
        read = assert_same(store, clock)
        clock.now += 60_000
        live = {entry.id for entry in read.streams.streams[b"orders"].entries if not entry.deleted}
        order = [sid for sid in read.groups[b"orders"][b"billing"].released if sid in live]
        handed_out = group.read("w9", count=len(order), claim_idle=WEEKS)
        assert [tuple(entry.id) for entry in handed_out] == order
    shutil.rmtree(path.parent)


# -- what the second reader refuses ---------------------------------------------------------


@pytest.fixture
def closed(tmp_path: Path, clock: Clock) -> dict[bytes, bytes]:
    """All keys and values of a small store with every kind of record in it."""
    with raxlog.open(tmp_path / "closed.rax", encoding=None) as store:
        group, ids = filled(store, 200)
        group.read("w1", count=120)
        group.read("w2", count=30)
        group.nack(*ids[3:5], delay=1)
        store.state["k"] = b"v"
        store.stream("orders").append({"a": 1}, producer="p", idempotent_id="i")
        for at in (2, 1, 2):
            store.stream("orders").defer({"a": at, "b": 2}, at=moment(NOW * 2 + at))
        group.keep_results({ids[0]: raxlog.Result([1, "ü"]), ids[1]: raxlog.Result(None, "failed")}, 1000)
    return raw_records(tmp_path / "closed.rax")


GROUP_KINDS = (0x04, *range(0x22, 0x29), *range(0x32, 0x38))


def test_the_store_these_tests_damage_has_every_kind_of_record(closed: dict[bytes, bytes]) -> None:
    assert reader.understand_all(closed).groups[b"orders"][b"billing"].pending == 150
    assert {key[8] for key in closed}.issuperset(GROUP_KINDS)


def test_the_second_reader_notices_every_flipped_bit_of_a_group(closed: dict[bytes, bytes]) -> None:
    damaged = {key: value for key, value in closed.items() if key[8] in GROUP_KINDS}
    for key, value in damaged.items():
        for at in range(0, len(value), 1 + len(value) // 60):
            bad = value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :]
            with pytest.raises(second_reader.Wrong):
                reader.understand_all({**closed, key: bad})


# A pair of idempotent appends may stand alone (invariant 24), a state may be gone, an age too.
INDEXED = [kind for kind in GROUP_KINDS if kind not in (0x04, 0x24, 0x25)]


@pytest.mark.parametrize("kind", [*INDEXED, 0x24], ids=lambda kind: f"{kind:x}")
def test_the_second_reader_notices_every_row_that_is_missing(
    closed: dict[bytes, bytes], kind: int
) -> None:
    gone = [key for key in closed if key[8] == kind]
    assert gone
    for missing in gone:
        with pytest.raises(second_reader.Wrong):
            reader.understand_all({key: value for key, value in closed.items() if key != missing})


@pytest.mark.parametrize("kind", INDEXED, ids=lambda kind: f"{kind:x}")
def test_the_second_reader_notices_a_row_too_many(closed: dict[bytes, bytes], kind: int) -> None:
    key = max(key for key in closed if key[8] == kind)
    another = key[:-1] + bytes([key[-1] ^ 1])
    more = {**closed, another: resealed(another, closed[key], lambda row: None)}
    with pytest.raises(second_reader.Wrong):
        reader.understand_all(dict(sorted(more.items())))


def one_more(place: int, is_number: bool) -> Callable[[list[Any]], None]:
    """Let a row state one more in one place, or in one of its numbers."""

    def change(row: list[Any]) -> None:
        if is_number:
            more = int.from_bytes(row[1][8 * place : 8 * place + 8], "little") + 1
            row[1] = row[1][: 8 * place] + more.to_bytes(8, "little") + row[1][8 * place + 8 :]
        else:
            row[place] += 1

    return change


@pytest.mark.parametrize(
    ("kind", "place"),
    [(0x31, 12), (0x32, 3), (0x33, 2), (0x35, 0), (0x37, 0), (0x22, 0), (0x23, 0), (0x25, None)],
)
def test_the_second_reader_notices_a_count_that_is_wrong(
    closed: dict[bytes, bytes], kind: int, place: int | None
) -> None:
    key = min((key for key in closed if key[8] == kind), key=len)
    is_number = kind in (0x31, 0x32, 0x33)
    change = one_more(place, is_number) if place is not None else lambda row: row.__setitem__(0, b"another")
    with pytest.raises(second_reader.Wrong):
        reader.understand_all({**closed, key: resealed(key, closed[key], change)})


# -- the page's own examples ----------------------------------------------------------------


def examples(text: str, label: str) -> list[bytes]:
    """The bytes in hex that follow each ``label``, up to the next label; what is no hex is passed over."""
    found = []
    for block in text.split("```")[1::2]:
        bytes_here: list[bytes] = []
        for line in block.splitlines():
            if re.match(r"[a-z]+ (key|value)\b", line):
                bytes_here = []
                if line.startswith(label):
                    found.append(bytes_here)
                line = re.sub(r"^[a-z]+ (key|value) +", "", line)
            pairs = re.match(r"\s*((?:[0-9a-f]{2}\s+)*)", line + " ")
            assert pairs is not None
            bytes_here.append(bytes.fromhex(pairs[1]))
    return [b"".join(parts) for parts in found]


def test_the_examples_of_the_page_are_what_raxlog_writes(tmp_path: Path, clock: Clock) -> None:
    page = PAGE.read_text(encoding="utf-8")
    path = tmp_path / "example.rax"
    with raxlog.open(path, encoding=None) as store:
        stream = store.stream("orders")
        stream.append({"name": "bob", "age": 7}, id="1000-5")
        stream.append({"x": 300}, id="1003-1")
        stream.create_group("billing", start="0").read("w1")
    read = raw_records(path)
    with raxlog.open(path, encoding=None) as store:
        store.stream("orders").group("billing").nack("1003-1", delay=30)
    released = raw_records(path)
    ((key,), (as_read, as_released)) = examples(page, "bucket key"), examples(page, "bucket value")
    assert (read[key], released[key]) == (as_read, as_released)
    for label in ("name", "released"):
        ((key,), (value,)) = examples(page, f"{label} key"), examples(page, f"{label} value")
        assert released[key] == value


def test_the_page_says_how_an_idempotent_id_is_made_of_the_pairs(store: raxlog.Store) -> None:
    import xxhash  # noqa: PLC0415 - the page's formula needs it, nothing else here

    pairs = [(b"item", b"book"), (b"", b"x" * 300), (b"item", b"book")]
    store.stream("s").append(pairs, producer="p")
    hashes = [xxhash.xxh3_128_intdigest(n + len(n).to_bytes(8, "little") + v) for n, v in pairs]
    words = [[h % 2**64 for h in hashes], [h >> 64 for h in hashes]]
    sums, mixed = [sum(half) % 2**64 for half in words], [0, 0]
    for place, half in enumerate(words):
        for word in half:
            mixed[place] ^= word
    rotated = [word << 1 & 2**64 - 1 | word >> 63 for word in mixed]
    low, high = sums[0] ^ rotated[1], sums[1] ^ rotated[0]
    (found,) = read_again(store.path).remembered[b"s"]
    assert found.idempotent_id == low.to_bytes(8, "little") + high.to_bytes(8, "little")
