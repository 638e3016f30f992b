"""Listpacks: the bytes Redis writes, and no trust in any others."""

from __future__ import annotations

import pytest
import reference_listpack as reference
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog import CorruptionError, InvalidArgument
from raxlog.stream.node import listpack as lp

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
BITS = (0, 7, 8, 12, 13, 15, 16, 23, 24, 31, 32, 53, 62)
EDGES = [sign * (1 << bits) + step for bits in BITS for sign in (1, -1) for step in (-1, 0, 1)]
EDGES += [-(1 << 63), (1 << 63) - 1]
texts = st.one_of(
    st.binary(max_size=80),
    INT64.map(lambda n: str(n).encode()),
    st.integers().map(lambda n: str(n).encode()),
    st.text("0123456789-+ ", max_size=22).map(str.encode),
    st.sampled_from([63, 64, 65, 125, 126, 127, 4095, 4096, 16380, 16381]).map(lambda n: b"x" * n),
)


def elements(pack: bytes) -> list[bytes]:
    found, at = [], lp.first(pack)
    while at != -1:
        found.append(lp.get(pack, at))
        at = lp.next(pack, at)
    return found


def elements_backwards(pack: bytes) -> list[bytes]:
    found, at = [], lp.last(pack)
    while at != -1:
        found.append(lp.get(pack, at))
        at = lp.prev(pack, at)
    return found


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"", "80 01"), (b"bob", "83626f62 04"), (b"127", "7f 01"), (b"128", "c080 02"),
        (b"-1", "dfff 02"), (b"-4096", "d000 02"), (b"4095", "cfff 02"), (b"4096", "f10010 03"),
        (b"32768", "f2008000 04"), (b"8388608", "f300008000 05"),
        (b"2147483648", "f40000008000000000 09"), (b"300", "c12c 02"),
    ],
)  # fmt: skip
def test_elements_as_observed_in_redis(value, data):
    assert lp.encode(value) == bytes.fromhex(data)


@pytest.mark.parametrize(
    "text",
    [b"-0", b"00", b"01", b"+1", b" 1", b"1 ", b"-", b"--1", b"-01", b"1.0", b"9223372036854775808",
     b"-9223372036854775809", b"18446744073709551615", b"99999999999999999999", b"1" * 21, b"1\0"],
)  # fmt: skip
def test_what_is_no_canonical_int64_stays_a_string(text):
    pack = lp.append(lp.empty(), text)
    assert lp.get(pack, 6) == text


@pytest.mark.parametrize("number", EDGES)
def test_integers_at_every_border_take_the_smallest_encoding(number):
    assert lp.encode_int(number) == lp.encode(b"%d" % number) == reference.element(number)
    pack = lp.append(lp.empty(), number)
    assert lp.get(pack, 6) == b"%d" % number


@pytest.mark.parametrize(
    "size",
    [0, 1, 62, 63, 64, 65, 124, 125, 126, 127, 4094, 4095, 4096, 4097, 16376, 16377, 16378, 16379,
     2097144, 2097145, 2097146, 2097147],
)  # fmt: skip
def test_strings_at_every_border_of_length_and_backlen(size):
    value = b"x" * size
    assert lp.encode(value) == reference.element(value)
    pack = lp.append(lp.append(lp.empty(), value), b"end")
    assert lp.validate(pack) == 2
    assert elements_backwards(pack) == [b"end", value]


def test_the_largest_backlen():
    value = bytes(268435455)
    pack = lp.append(lp.empty(), value)
    assert pack[-6:-1] == reference.backlen(len(value) + 5)
    assert lp.prev(pack, len(pack) - 1) == 6


def test_an_integer_beyond_64_bits_is_refused():
    for number in (1 << 63, -(1 << 63) - 1, 1 << 100):
        with pytest.raises(InvalidArgument, match="64 bits"):
            lp.encode_int(number)


@given(st.lists(texts, max_size=20))
def test_a_list_is_read_back_from_both_ends(values):
    pack = lp.empty()
    for value in values:
        pack = lp.append(pack, value)
    assert pack == reference.listpack(values)
    assert lp.validate(pack) == lp.length(pack) == len(values)
    assert lp.total_bytes(pack) == len(pack)
    assert elements(pack) == values
    assert elements_backwards(pack) == values[::-1]


@given(st.lists(texts, min_size=1, max_size=8), st.data())
def test_insert_replace_and_delete_do_what_a_list_does(values, data):
    pack = reference.listpack(values)
    model = list(values)
    for _ in range(data.draw(st.integers(1, 5))):
        if not model:
            break
        i = data.draw(st.integers(0, len(model) - 1))
        at = lp.first(pack)
        for _ in range(i):
            at = lp.next(pack, at)
        change = data.draw(st.sampled_from(["before", "after", "replace", "delete"]))
        if change == "delete":
            pack = lp.delete(pack, at)
            del model[i]
        else:
            value = data.draw(texts)
            pack, new = lp.insert(pack, at, value, change)
            assert lp.get(pack, new) == value
            if change == "replace":
                model[i] = value
            else:
                model.insert(i + (change == "after"), value)
    assert pack == reference.listpack(model)


def test_more_elements_than_the_header_can_say_are_counted():
    pack = reference.listpack([b"x"] * 65534)
    assert pack[4:6] == b"\xfe\xff"
    for expected in (65535, 65536, 65537):
        pack = lp.append(pack, b"y")
        assert pack[4:6] == b"\xff\xff"
        assert lp.length(pack) == lp.validate(pack) == expected
    assert lp.delete(pack, 6)[4:6] == b"\xff\xff"


@pytest.mark.parametrize(
    ("bad", "offset"),
    [
        ("", 0), ("07000000", 4), ("08000000 0000 ff", 0), ("07000000 0000 00", 6),
        ("07000000 0100 ff", 4), ("08000000 0100 05 ff", 6), ("09000000 0100 f5 01 ff", 6),
        ("09000000 0100 fe 01 ff", 6), ("09000000 0100 ff 01 ff", 6), ("09000000 0100 05 02 ff", 7),
        ("09000000 0100 05 00 ff", 7), ("0a000000 0100 85 61 06 ff", 6), ("08000000 0100 f0 ff", 6),
        ("0d000000 0100 f0 ffffffff 01 ff", 6), ("08000000 0100 e0 ff", 6),
        ("08000000 0100 f4 ff", 6),
    ],
)  # fmt: skip
def test_a_damaged_list_is_refused_with_the_offset(bad, offset):
    with pytest.raises(CorruptionError) as caught:
        lp.validate(bytes.fromhex(bad))
    assert caught.value.offset == offset


def test_an_integer_in_a_wide_encoding_is_allowed():
    wide = bytes.fromhex("0b000000 0100 f10500 03 ff")
    wide = len(wide).to_bytes(4, "little") + wide[4:]
    assert lp.validate(wide) == 1
    assert lp.get(wide, 6) == b"5"


def test_no_element_begins_outside_the_list():
    pack = reference.listpack([b"one", b"two"])
    for offset in (-1, 0, 5, len(pack) - 1, len(pack), 1 << 40):
        for read in (lp.get, lp.next, lp.delete):
            with pytest.raises(CorruptionError):
                read(pack, offset)
    for offset in (0, 5, len(pack), 1 << 40):
        with pytest.raises(CorruptionError):
            lp.prev(pack, offset)
    with pytest.raises(InvalidArgument):
        lp.insert(pack, 6, b"x", "beside")


@settings(max_examples=examples(500))
@given(st.lists(texts, min_size=1, max_size=6), st.data())
def test_changed_bytes_give_an_error_or_a_list_that_can_be_walked(values, data):
    pack = bytearray(reference.listpack(values))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(pack) - 1))
        pack[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0xF0, 0xFF, 0x80])))
    bad = bytes(pack)
    try:
        count = lp.validate(bad)
    except CorruptionError:
        for walk in (elements, elements_backwards, lp.length):
            try:
                walk(bad)
            except CorruptionError:
                continue
    else:
        assert elements(bad) == elements_backwards(bad)[::-1]
        assert len(elements(bad)) == count


@given(st.binary(max_size=60))
def test_random_bytes_never_pass_unseen(body):
    pack = (len(body) + 7).to_bytes(4, "little") + b"\xff\xff" + body + b"\xff"
    try:
        count = lp.validate(pack)
    except CorruptionError:
        return
    assert len(elements(pack)) == count


def test_a_backlen_of_five_bytes_leads_nowhere_in_a_small_list():
    for groups in ("7fffffffff", "0fffffffff", "08ffffffff", "01 80808080", "ffffffffff"):
        body = bytes.fromhex("80 01" + groups)
        pack = (len(body) + 7).to_bytes(4, "little") + b"\xff\xff" + body + b"\xff"
        with pytest.raises(CorruptionError) as caught:
            lp.last(pack)
        assert 0 <= caught.value.offset < len(pack)
