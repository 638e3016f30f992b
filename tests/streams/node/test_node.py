"""Nodes: the bytes Redis writes, read back in every direction, and no trust in any others."""

from __future__ import annotations

import random

import pytest
import reference_listpack as reference
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog import CorruptionError, Entry
from raxlog.storage.format import records
from raxlog.stream.node import decode
from raxlog.stream.node.builder import NodeBuilder

TOP = (1 << 64) - 1
ALL = (0, 0, TOP, TOP)
NO_LIMITS = (-1, -1, -1)

# XADD k 1000-5 name bob age 7, XADD k 1003-0 name al age -1, XADD k 1003-1 x 300, XDEL k 1003-0
GOLDEN = bytes.fromhex(
    "4a000000 1900 0201 0101 0201 846e616d6505 8361676504 0001"
    "0201 0001 0001 83626f6204 0701 0501"
    "0301 0301 dffb02 82616c03 dfff02 0501"
    "0001 0301 dffc02 0101 817802 c12c02 0601 ff"
)
GOLDEN_ENTRIES = [
    (1000, 5, [b"name", b"bob", b"age", b"7"]),
    (1003, 0, [b"name", b"al", b"age", b"-1"]),
    (1003, 1, [b"x", b"300"]),
]

small = st.one_of(
    st.binary(max_size=8), st.integers(-5000, 5000).map(lambda n: b"%d" % n), st.just(b"x" * 70)
)
halves = st.one_of(st.integers(0, 300), st.integers(0, TOP), st.sampled_from([TOP, 1 << 63]))
flats = st.one_of(
    st.lists(small, min_size=2, max_size=2).map(lambda v: [b"name", v[0], b"age", v[1]]),
    st.lists(st.tuples(small, small), min_size=1, max_size=4).map(
        lambda pairs: [part for pair in pairs for part in pair]
    ),
)  # fmt: skip
entry_lists = st.dictionaries(st.tuples(halves, halves), flats, min_size=1, max_size=12).map(
    lambda found: [(*sid, found[sid]) for sid in sorted(found)]
)


def build(entries: list[tuple[int, int, list[bytes]]]) -> NodeBuilder:
    ms, seq, flat = entries[0]
    builder = NodeBuilder.start(ms, seq, flat)
    for ms, seq, flat in entries:
        assert builder.push(ms, seq, flat, *NO_LIMITS)
        assert builder.size == len(builder.listpack())
    return builder


def flat_of(entry: Entry) -> tuple[int, int, list[bytes]]:
    return entry.ms, entry.seq, [part for pair in entry.pairs for part in pair]


def test_the_golden_vector_of_redis():
    built = build(GOLDEN_ENTRIES).listpack()
    pack, done, live = decode.mark_deleted(built, 1000, 5, [(1003, 0)])
    assert pack == GOLDEN == reference.node(1000, 5, GOLDEN_ENTRIES, {(1003, 0)})
    assert (done, live) == ([(1003, 0)], 2)
    assert decode.counts(GOLDEN) == (2, 1)
    assert decode.validate_node(GOLDEN, 1000, 5) == (2, 1, 1003, 1)
    assert decode.decode(GOLDEN, 1000, 5, *ALL) == [
        Entry(1000, 5, [(b"name", b"bob"), (b"age", b"7")]),
        Entry(1003, 1, [(b"x", b"300")]),
    ]


@settings(max_examples=examples(200))
@given(entry_lists, st.data())
def test_a_node_is_byte_for_byte_the_reference_and_reads_back(entries, data):
    ms, seq = entries[0][:2]
    ids = [entry[:2] for entry in entries]
    dead = set(data.draw(st.lists(st.sampled_from(ids), unique=True)))
    pack = build(entries).listpack()
    assert pack == reference.node(ms, seq, entries)

    pack, done, left = decode.mark_deleted(
        pack, ms, seq, sorted(dead | {(0, 0), (TOP, TOP)} - set(ids))
    )
    live = [entry for entry in entries if entry[:2] not in dead]
    assert pack == reference.node(ms, seq, entries, dead)
    assert (done, left) == (sorted(dead), len(live))
    assert decode.mark_deleted(pack, ms, seq, sorted(dead)) == (pack, [], left)

    assert decode.validate_node(pack, ms, seq) == (len(live), len(dead), *ids[-1])
    assert decode.counts(pack) == (len(live), len(dead))
    assert decode.last_entry_id(pack, ms, seq) == ids[-1]
    assert decode.first_live(pack, ms, seq) == (live[0][:2] if live else None)
    assert decode.last_live(pack, ms, seq) == (live[-1][:2] if live else None)
    for k, entry in enumerate(live):
        assert decode.nth_live(pack, ms, seq, k) == entry[:2]
    for k in (-1, len(live)):
        with pytest.raises(IndexError):
            decode.nth_live(pack, ms, seq, k)
    probe = data.draw(st.one_of(st.sampled_from(ids), st.tuples(halves, halves)))
    assert decode.live_before(pack, ms, seq, *probe) == sum(entry[:2] < probe for entry in live)

    low = data.draw(st.one_of(st.just((0, 0)), st.sampled_from(ids), st.tuples(halves, halves)))
    high = data.draw(
        st.one_of(st.just((TOP, TOP)), st.sampled_from(ids), st.tuples(halves, halves))
    )
    limit = data.draw(st.sampled_from([-1, 0, 1, 2, 5]))
    wanted = [entry for entry in live if low <= entry[:2] <= high]
    assert decode.live_ids(pack, ms, seq, *low, *high) == [entry[:2] for entry in wanted]
    for reverse in (False, True):
        expected = wanted[::-1] if reverse else wanted
        found = decode.decode(pack, ms, seq, *low, *high, limit, reverse)
        assert [flat_of(e) for e in found] == (expected if limit < 0 else expected[:limit])

    compacted = decode.compact(pack, ms, seq)
    assert compacted == reference.node(ms, seq, live, names=entries[0][2][::2])
    if live:
        assert decode.validate_node(compacted, ms, seq) == (len(live), 0, *live[-1][:2])


@given(entry_lists, entry_lists)
def test_a_stored_node_goes_on_where_it_was_left(first, more):
    builder = build(first)
    stored = builder.listpack()
    opened = NodeBuilder.open(stored, *first[0][:2])
    assert opened.listpack() == stored
    for name in ("ms", "seq", "last_ms", "last_seq", "live", "dead", "size", "elements"):
        assert getattr(opened, name) == getattr(builder, name)
    later = [entry for entry in more if entry[:2] > first[-1][:2]]
    for ms, seq, flat in later:
        opened.push(ms, seq, flat, *NO_LIMITS)
    assert opened.listpack() == reference.node(*first[0][:2], first + later)


@given(entry_lists, st.integers(0, 1 << 40), st.integers(0, 1 << 31))
def test_after_each_entry_the_stored_block_is_that_of_the_listpack(entries, ordinal, span):
    ms, seq, flat = entries[0]
    key = records.node_key(3, ms, seq)
    builder = NodeBuilder.start(ms, seq, flat)
    for number, (ms, seq, flat) in enumerate(entries):
        assert not builder.push(ms, seq, flat, builder.size, -1, -1)
        assert builder.push(ms, seq, flat, *NO_LIMITS)
        pack = reference.node(*entries[0][:2], entries[: number + 1])
        stored = builder.sealed(records.seed_of(key), ordinal + number, span)
        assert stored == records.encode_block(key, pack, ordinal + number, span, number + 1)


def test_a_node_whose_counts_are_stored_wide_goes_on_with_narrow_ones():
    first, second = GOLDEN_ENTRIES[:2]
    pack = build([first]).listpack()
    wide = b"\xc0\x01\x02" + b"\xc0\x00\x02"  # 1 and 0, as numbers of 13 bits
    opened = NodeBuilder.open((len(pack) + 2).to_bytes(4, "little") + pack[4:6] + wide + pack[10:], *first[:2])
    assert opened.listpack() == pack
    assert opened.push(*second, *NO_LIMITS)
    assert opened.listpack() == build([first, second]).listpack()


edges = st.one_of(
    small,
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda n: b"%d" % n),
    st.sampled_from([sign * (1 << bits) + more for bits in (7, 12, 15, 23, 31, 63) for sign in (-1, 1)
                     for more in (-1, 0, 1)]).map(lambda n: b"%d" % n),
    st.sampled_from([0, 1, 63, 64, 124, 125, 126, 127, 128, 500, 980, 1024, 4095, 4096, 5000]).map(lambda n: b"z" * n),
    st.sampled_from([b"-0", b"01", b"+1", b"-", b"9" * 20]),
)
batches = st.lists(
    st.one_of(
        st.lists(edges, min_size=2, max_size=2).map(lambda v: [b"name", v[0], b"age", v[1]]),
        st.lists(st.tuples(edges, edges), min_size=1, max_size=40).map(
            lambda pairs: [part for pair in pairs for part in pair]
        ),
    ), min_size=1, max_size=20,
)  # fmt: skip


@given(batches, halves, st.integers(0, TOP - 100), st.integers(0, 5000), st.data())
def test_a_batch_fills_a_node_with_the_bytes_of_one_entry_after_the_other(flats, ms, seq, later, data):
    """Whatever its limits are: each stops it where the next entry would pass it."""
    single = NodeBuilder.start(ms, seq, flats[0])
    whole = NodeBuilder.start(ms, seq, flats[0])
    ms0, ms = ms, min(ms + later, TOP)
    capacity = data.draw(st.sampled_from([-1, 200, 1000, 4000, 1 << 20]))
    max_bytes = data.draw(st.sampled_from([-1, 150, 900, 4096]))
    max_entries = data.draw(st.sampled_from([-1, 1, 3, 100]))
    taken = 0
    for number, flat in enumerate(flats):
        before = single.listpack()
        larger = NodeBuilder.open(before, single.ms, single.seq) if taken else NodeBuilder.start(ms0, seq, flats[0])
        larger.push(ms, seq + number, flat, *NO_LIMITS)
        full = (0 <= max_entries <= number or (max_bytes >= 0 and single.size + sum(map(len, flat)) >= max_bytes)
                or 0 <= capacity < larger.size)
        assert single.push(ms, seq + number, flat, capacity, max_bytes, max_entries) is not full
        assert single.listpack() == (before if full else larger.listpack())
        if full:
            break
        taken += 1
    ids: list[object] = []
    assert whole.fill(flats, 0, ms, seq, capacity, max_bytes, max_entries, ids) == taken
    assert ids == [(ms, seq + number) for number in range(taken)]
    assert whole.listpack() == single.listpack()
    assert (whole.size, whole.live, whole.elements, whole.last_ms, whole.last_seq) == (
        single.size, single.live, single.elements, single.last_ms, single.last_seq)


@given(st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-1000, 1000)))
def test_a_number_reads_back_as_its_decimal_text(number):
    text = b"%d" % number
    (entry,) = decode.decode(build([(1, 1, [b"n", text])]).listpack(), 1, 1, 0, 0, TOP, TOP)
    assert entry.values == [text]


def test_counts_take_more_bytes_from_128_on():
    entries = [(5, seq, [b"n", b"%d" % seq]) for seq in range(200)]
    pack = build(entries).listpack()
    dead: list[tuple[int, int]] = []
    for seq in range(199):
        pack, _, live = decode.mark_deleted(pack, 5, 0, [(5, seq)])
        dead.append((5, seq))
        assert live == 199 - seq
        if seq in (0, 70, 71, 72, 126, 127, 128, 198):
            assert pack == reference.node(5, 0, entries, set(dead))


def test_a_node_with_more_elements_than_its_header_can_say():
    entries = [(1, seq, [b"n", b""]) for seq in range(14_000)]
    builder = build(entries[:13_105])
    for ms, seq, flat in entries[13_105:]:
        builder.push(ms, seq, flat, *NO_LIMITS)
    pack = builder.listpack()
    assert pack[4:6] == b"\xff\xff"
    assert pack == reference.node(1, 0, entries)
    assert decode.validate_node(pack, 1, 0) == (14_000, 0, 1, 13_999)
    assert NodeBuilder.open(pack, 1, 0).elements == 65535


def test_a_range_bound_needs_no_entry_of_its_own():
    pack = build(GOLDEN_ENTRIES).listpack()
    assert [str(e.id) for e in decode.decode(pack, 1000, 5, 1000, 6, 1003, 0)] == ["1003-0"]
    assert decode.decode(pack, 1000, 5, 1004, 0, 2000, 0) == []
    assert decode.decode(pack, 1000, 5, 0, 0, 999, 0) == []


def test_what_a_caller_does_to_the_fields_never_reaches_the_entry():
    first, second = decode.decode(build(GOLDEN_ENTRIES).listpack(), 1000, 5, *ALL)[:2]
    first.fields.clear()
    first.pairs.clear()
    assert first.fields == {b"name": b"bob", b"age": b"7"}
    assert second.fields == {b"name": b"al", b"age": b"-1"}


# What has been damaged

READS = (
    lambda pack: decode.validate_node(pack, 1000, 5),
    lambda pack: decode.decode(pack, 1000, 5, *ALL),
    lambda pack: decode.decode(pack, 1000, 5, *ALL, -1, True),
    lambda pack: decode.decode(pack, 1000, 5, 1003, 0, 1003, 0, 1),
    lambda pack: decode.decode(pack, 1000, 5, 0, 0, 1003, 0, 1, True),
    lambda pack: decode.live_before(pack, 1000, 5, 1003, 0),
    lambda pack: decode.nth_live(pack, 1000, 5, 0),
    decode.counts,
    lambda pack: decode.first_live(pack, 1000, 5),
    lambda pack: decode.last_live(pack, 1000, 5),
    lambda pack: decode.last_entry_id(pack, 1000, 5),
    lambda pack: decode.mark_deleted(pack, 1000, 5, [(1000, 5), (1003, 1)]),
    lambda pack: decode.compact(pack, 1000, 5),
    lambda pack: NodeBuilder.open(pack, 1000, 5).listpack(),
)


def read_in_every_way(pack: bytes) -> None:
    for read in READS:
        try:
            read(pack)
        except CorruptionError as error:
            assert 0 <= (error.offset or 0) <= len(pack)  # noqa: PT017
        except IndexError as error:  # nth_live() of a node that says it has no live entry
            assert "live entries" in str(error)  # noqa: PT017


def check_that_all_reads_agree(pack: bytes) -> None:
    """Of a node that passes validation: does every way of reading it tell the same?"""
    live, dead, last_ms, last_seq = decode.validate_node(pack, 1000, 5)
    found = decode.decode(pack, 1000, 5, *ALL)
    assert found == decode.decode(pack, 1000, 5, *ALL, -1, True)[::-1]
    assert len(found) == live
    assert decode.last_entry_id(pack, 1000, 5) == (last_ms, last_seq)
    assert decode.counts(pack) == (live, dead)
    opened = NodeBuilder.open(pack, 1000, 5)
    assert (opened.live, opened.dead, opened.last_ms, opened.last_seq) == (
        live, dead, last_ms, last_seq,
    )  # fmt: skip


def test_every_single_flipped_bit_of_a_node_is_an_error_or_a_consistent_node():
    for at in range(len(GOLDEN)):
        for bit in range(8):
            pack = bytearray(GOLDEN)
            pack[at] ^= 1 << bit
            read_in_every_way(bytes(pack))
            try:
                decode.validate_node(bytes(pack), 1000, 5)
            except CorruptionError:
                continue
            check_that_all_reads_agree(bytes(pack))


def test_a_node_cut_off_anywhere_is_refused():
    for size in range(len(GOLDEN)):
        for read in READS:
            with pytest.raises(CorruptionError):
                read(GOLDEN[:size])
        framed = size.to_bytes(4, "little") + GOLDEN[4 : size - 1] + b"\xff"
        read_in_every_way(framed)
        with pytest.raises(CorruptionError):
            decode.validate_node(framed, 1000, 5)


@pytest.mark.parametrize("count", [1 << 40, 5000])
def test_a_node_that_counts_more_than_it_can_hold_is_refused_before_it_is_written_to(count):
    body = GOLDEN[:6] + reference.element(count) + GOLDEN[8:]
    with pytest.raises(CorruptionError, match=f"counts {count} entries"):
        NodeBuilder.open(len(body).to_bytes(4, "little") + body[4:], 1000, 5)


@settings(max_examples=examples(300))
@given(st.data())
def test_random_damage_never_crashes_a_reader(data):
    rng = random.Random(data.draw(st.integers(0, 1 << 32), label="seed"))
    entries = []
    for i in range(5):
        name, age = rng.randbytes(rng.choice([0, 3, 70])), b"%d" % rng.getrandbits(20)
        entries.append((1000 + i, 5, [b"name", name, b"age", age]))
    good = bytearray(reference.node(1000, 5, entries, {(1002, 5)}))
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(6, len(good) - 1)
        match rng.randrange(3):
            case 0:
                good[at] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xC0, 0xE0, 0xF0, 0xF4, 0xFF])
            case 1:
                good[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
            case 2:
                good[at : at + 1] = reference.element(rng.choice([0, -1, TOP >> 1, 1 << 40, 127]))
    good[:4] = len(good).to_bytes(4, "little")
    read_in_every_way(bytes(good))


@given(st.binary(max_size=80))
def test_random_bytes_in_a_right_frame_never_crash_a_reader(body):
    read_in_every_way((len(body) + 7).to_bytes(4, "little") + b"\xff\xff" + body + b"\xff")


@given(st.lists(st.one_of(st.integers(-3, 40), st.sampled_from([b"a", b"bb", 1 << 62, -(1 << 63)])),
                max_size=30))  # fmt: skip
def test_random_elements_never_crash_a_reader(values):
    read_in_every_way(reference.listpack(values))


def rewritten(change) -> bytes:
    """The golden node as a list of elements, changed by the test, and framed again."""
    values: list = [2, 1, 2, b"name", b"age", 0, 2, 0, 0, b"bob", 7, 5]
    values += [3, 3, -5, b"al", -1, 5, 0, 3, -4, 1, b"x", 300, 6]
    assert reference.listpack(values) == GOLDEN
    change(values)
    return reference.listpack(values)


@pytest.mark.parametrize(
    ("index", "wrong", "says"),
    [
        (0, 3, "states 3 live"), (1, 0, "states 2 live and 0 deleted"), (0, -1, "negative"),
        (2, 0, "0 fields"), (2, 3, "master entry"), (2, 1 << 60, "."), (5, 1, "not end with 0"),
        (6, 4, "unknown flags"), (6, 0, "."), (11, 6, "lp-count"), (11, b"x", "a string where"),
        (13, -1, "ascend"), (14, -1, "ascend"), (19, 2, "ascend"), (21, 2, "."),
        (21, 1 << 62, "fields"), (24, 5, "lp-count"), (24, 0, "lp-count"), (7, b"x", "a string"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_add_up_are_named(index, wrong, says):
    pack = rewritten(lambda values: values.__setitem__(index, wrong))
    for read in READS[:3]:
        with pytest.raises(CorruptionError):
            read(pack)
    with pytest.raises(CorruptionError, match=says):
        decode.validate_node(pack, 1000, 5)


def test_a_node_without_entries_is_not_valid_but_can_be_built():
    builder = NodeBuilder.start(7, 0, [b"a", b"1"])
    pack = builder.listpack()
    assert pack == reference.node(7, 0, [], names=[b"a"])
    assert NodeBuilder.open(pack, 7, 0).listpack() == pack
    assert decode.decode(pack, 7, 0, *ALL) == []
    assert decode.first_live(pack, 7, 0) is decode.last_live(pack, 7, 0) is None
    for read in (decode.validate_node, decode.last_entry_id):
        with pytest.raises(CorruptionError, match="no entries"):
            read(pack, 7, 0)
