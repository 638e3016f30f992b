"""Stream IDs: what is one, in which place, and how they count."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raxlog import InvalidStreamID, StreamID
from raxlog.stream.node.stream_id import make_id, parse_end, parse_id, parse_new_id, parse_start

TOP = (1 << 64) - 1
halves = st.one_of(
    st.integers(0, TOP), st.sampled_from([0, 1, TOP - 1, TOP, 1 << 63, (1 << 63) - 1])
)
ids = st.builds(make_id, halves, halves)


@pytest.mark.parametrize(
    ("text", "ms", "seq"),
    [
        ("1-1", 1, 1),
        ("5", 5, 0),
        ("0-0", 0, 0),
        (f"{TOP}-{TOP}", TOP, TOP),
        ("01-05", 1, 5),
        (" 2-1", 2, 1),
        ("\t2-\n1", 2, 1),
        ("+5-1", 5, 1),
        ("6-+1", 6, 1),
        ("0000000000000000000000000001-1", 1, 1),
        ("5- -1", 5, TOP),  # strtoull negates modulo 2**64, and Redis lets it
        ("5--01", 5, TOP),
        ("5--0", 5, 0),
    ],
)
def test_an_id_is_read_as_redis_reads_it(text, ms, seq):
    assert parse_id(text) == StreamID(text) == parse_id(text.encode()) == (ms, seq)


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", "+", "$", ">", "*", "5-*", "1-", "-1", "7--1", "0x9-0", "--", "1-1-1", "1.5",
     "(1", str(TOP + 1), f"1-{TOP + 1}", f"5--{1 << 63}", "1 ", "1- 1 ", "1_0",
     "é", "١", "1\0", "1-1\0"],
)  # fmt: skip
def test_what_is_no_id_is_refused(text):
    with pytest.raises(InvalidStreamID):
        parse_id(text)


def test_an_id_has_at_most_127_bytes():
    assert parse_id("0" * 125 + "-1") == (0, 1)
    with pytest.raises(InvalidStreamID):
        parse_id("0" * 126 + "-1")


@pytest.mark.parametrize("wrong", [None, 1.5, True, [], (1, 2), object(), -1, TOP + 1])
def test_other_types_and_numbers_out_of_range_are_refused(wrong):
    for parse in (parse_id, parse_start, parse_end, parse_new_id, StreamID):
        with pytest.raises(InvalidStreamID):
            parse(wrong)


def test_halves_out_of_range_are_refused():
    for ms, seq in ((-1, 0), (0, -1), (TOP + 1, 0), (0, TOP + 1), ("1", 1), (1, "1"), (1, 1.0)):
        with pytest.raises(InvalidStreamID):
            StreamID(ms, seq)


def test_a_long_wrong_id_is_not_repeated_in_full():
    with pytest.raises(InvalidStreamID) as caught:
        parse_id("x" * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("-", "0-0", "0-0"),
        ("+", f"{TOP}-{TOP}", f"{TOP}-{TOP}"),
        ("5", "5-0", f"5-{TOP}"),
        ("(5", "5-1", f"5-{TOP - 1}"),
        ("(1-1", "1-2", "1-0"),
        (f"(5-{TOP}", "6-0", f"5-{TOP - 1}"),
        ("(6-0", "6-1", f"5-{TOP}"),
        (7, "7-0", f"7-{TOP}"),
        (b"5-5", "5-5", "5-5"),
        (StreamID(5, 5), "5-5", "5-5"),
    ],
)
def test_ends_of_a_range(text, start, end):
    assert (str(parse_start(text)), str(parse_end(text))) == (start, end)


@pytest.mark.parametrize("text", ["(", "(-", "(+", "((1", "$", "*", "", "1-*", "(1-"])
def test_what_is_no_end_of_a_range_is_refused(text):
    for parse in (parse_start, parse_end):
        with pytest.raises(InvalidStreamID, match="allowed here"):
            parse(text)


def test_nothing_lies_beyond_the_outermost_ids():
    with pytest.raises(InvalidStreamID, match="invalid start ID for the interval"):
        parse_start(f"({TOP}-{TOP}")
    with pytest.raises(InvalidStreamID, match="invalid end ID for the interval"):
        parse_end("(0-0")
    assert parse_start("(0-0") == (0, 1)
    assert parse_end(f"({TOP}-{TOP}") == (TOP, TOP - 1)
    with pytest.raises(InvalidStreamID, match="after"):
        StreamID.MAX.next()
    with pytest.raises(InvalidStreamID, match="before 0-0"):
        StreamID.MIN.prev()


@pytest.mark.parametrize(
    ("text", "new"),
    [("*", (None, None)), ("5-*", (5, None)), ("05-*", (5, None)), ("5", (5, 0)), ("5-1", (5, 1)),
     (b"*", (None, None)), (8, (8, 0)), (StreamID(5, 1), (5, 1))],
)  # fmt: skip
def test_ids_of_an_append(text, new):
    assert parse_new_id(text) == new


@pytest.mark.parametrize("text", ["-", "+", "$", "*-1", "*-*", "-*", "5-**", "(5", "1-2-*", ""])
def test_what_an_append_refuses_as_id(text):
    with pytest.raises(InvalidStreamID, match="allowed here"):
        parse_new_id(text)


@given(ids, ids)
def test_ids_sort_the_same_as_tuples_bytes_and_numbers(a, b):
    assert (a < b) == (bytes(a) < bytes(b)) == (int(a) < int(b))
    assert (a == b) == (hash(a) == hash(b) and bytes(a) == bytes(b))


@given(ids)
def test_every_form_of_an_id_leads_back_to_it(sid):
    forms = (
        StreamID(str(sid)), StreamID(sid), StreamID(*sid), StreamID.from_bytes(bytes(sid)),
        StreamID.from_int(int(sid)), pickle.loads(pickle.dumps(sid)), eval(repr(sid)),
    )  # fmt: skip
    for form in forms:
        assert form == sid
        assert type(form) is StreamID


@given(ids, st.integers(0, 1 << 70))
def test_ids_count_over_128_bits(sid, n):
    if int(sid) + n < 1 << 128:
        later = sid + n
        assert type(later) is StreamID
        assert later - sid == n
        assert later - n == sid
    else:
        with pytest.raises(InvalidStreamID):
            sid + n


@given(ids)
def test_next_and_prev_are_neighbours(sid):
    if sid != StreamID.MAX:
        assert sid.next() == sid + 1
        assert sid.next().prev() == sid


def test_the_time_in_an_id():
    assert StreamID("1526919030474-55").datetime == datetime(
        2018, 5, 21, 16, 10, 30, 474000, tzinfo=UTC
    )
    assert StreamID.from_bytes(bytes(16)) == StreamID.MIN
    with pytest.raises(InvalidStreamID):
        StreamID.from_bytes(b"short")
