"""IDs in a row: the bytes their own bytes() give, whatever the IDs come as."""

from __future__ import annotations

import gc
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raxlog import Entry, InvalidStreamID, StreamID
from raxlog.stream.node.entry import delivered
from raxlog.stream.node.packed_ids import pack_ids, row_of

TOP = (1 << 64) - 1
halves = st.one_of(st.integers(0, 5), st.integers(0, TOP), st.sampled_from([255, 256, 1 << 63, TOP]))
pairs = st.lists(st.tuples(halves, halves), max_size=20)


@given(pairs)
def test_a_row_is_the_bytes_of_its_ids(found):
    expected = b"".join(bytes(StreamID(*pair)) for pair in found)
    assert pack_ids(found) == expected
    assert pack_ids([StreamID(*pair) for pair in found]) == expected
    assert pack_ids(list(pair) for pair in found) == expected


@given(pairs, st.sampled_from(["StreamID", "str", "mixed"]))
def test_ids_of_a_caller_come_into_order_and_each_once(found, form):
    given_ids = [StreamID(*pair) if form == "StreamID" or (form == "mixed" and place % 2) else f"{pair[0]}-{pair[1]}"
                 for place, pair in enumerate(found)]
    expected = pack_ids(sorted(set(found)))
    assert row_of(tuple(given_ids)) == expected
    assert row_of(iter(given_ids)) == expected
    assert row_of(sorted(set(map(StreamID, given_ids)))) == expected


@pytest.mark.parametrize("bad", ["x", "1-2-3", b"-", 1.5, None, (1, 2), [1, 2]])
def test_what_is_no_id_is_refused_wherever_it_stands(bad):
    for ids in ([bad], [StreamID(1, 1), bad], [bad, StreamID(1, 1)]):
        with pytest.raises(InvalidStreamID):
            row_of(ids)


@pytest.mark.parametrize("bad", [(1,), (), (-1, 2), (1 << 64, 1), "x", (1, "a"), (1.5, 2), None])
def test_a_pair_that_is_none_is_an_error_and_never_other_bytes(bad):
    with pytest.raises(Exception, match=r".") as caught:
        pack_ids([bad])
    assert not isinstance(caught.value, SystemError)


@given(pairs)
def test_delivered_entries_count_one_delivery(found):
    entries = [Entry(*pair, [(b"a", b"b")]) for pair in found]
    assert delivered(entries) == pack_ids(found)
    assert [entry.deliveries for entry in entries] == [1] * len(found)
    assert [entry.id for entry in entries] == found


def test_the_id_of_an_entry_is_like_any_other():
    sid = Entry(TOP, 7, []).id
    assert type(sid) is StreamID
    assert (sid, hash(sid), str(sid), sid.ms, sid.seq) == (
        StreamID(TOP, 7), hash((TOP, 7)), f"{TOP}-7", TOP, 7)
    assert pickle.loads(pickle.dumps(sid)) == sid
    assert [*sid, len(sid), sid[1:]] == [TOP, 7, 2, (7,)]
    many = [Entry(n, n, []).id for n in range(100_000)]
    gc.collect()
    assert many[99_999] == (99_999, 99_999)
    del many
    gc.collect()
