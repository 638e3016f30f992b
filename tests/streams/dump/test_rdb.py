"""The parts of a payload: checksum, numbers, strings, LZF."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raxlog import InvalidDump
from raxlog.stream.dump import rdb
from raxlog.stream.dump.crc64 import crc64


def reader(data: bytes) -> rdb.RdbReader:
    return rdb.RdbReader(data, len(data))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_the_checksum_is_that_of_redis_and_goes_on_over_parts(data: bytes, cut: int) -> None:
    assert crc64(b"123456789") == 0xE9C6D914C4B8D9CA
    assert crc64(data[cut:], crc64(data[:cut])) == crc64(data)
    crc = 0
    for byte in data:  # bit by bit, from the definition
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    assert crc64(data) == crc


@given(st.one_of(st.integers(0, 1 << 15), st.integers(0, (1 << 64) - 1)))
def test_numbers_are_read_as_they_are_written(value: int) -> None:
    data = rdb.number(value)
    assert len(data) == (1 if value < 64 else 2 if value < 1 << 14 else 5 if value < 1 << 32 else 9)
    assert reader(data).number() == value


@given(st.one_of(st.binary(max_size=100), st.integers(-(1 << 34), 1 << 34).map(lambda number: b"%d" % number)))
def test_strings_are_read_as_they_are_written(value: bytes) -> None:
    assert reader(rdb.string(value)).string() == value


def test_texts_of_integers_take_as_many_bytes_as_in_redis() -> None:
    for text, size in ((b"0", 2), (b"-128", 2), (b"128", 3), (b"-32768", 3), (b"32768", 5), (b"2147483647", 5),
                       (b"2147483648", 11), (b"-2147483648", 5), (b"007", 4), (b"-0", 3), (b"", 1)):
        assert len(rdb.string(text)) == size, text


def packed(data: bytes, rng: random.Random) -> bytes:
    """LZF of some bytes, with copies of all lengths and distances, near ones that reach into themselves too."""
    made = bytearray()
    at = 0
    while at < len(data):
        best, distance = 0, 0
        for back in rng.sample(range(1, min(at, 8192) + 1), min(at, 40)):
            size = 0
            while size < 264 and at + size < len(data) and data[at + size - back] == data[at + size]:
                size += 1
            if size > best:
                best, distance = size, back
        if best >= 3:
            size, back = best - 2, distance - 1
            head = min(size, 7) << 5 | back >> 8
            made += bytes([head, size - 7, back & 255] if size >= 7 else [head, back & 255])
            at += best
        else:
            run = data[at : at + rng.randrange(1, 33)]
            made += bytes([len(run) - 1]) + run
            at += len(run)
    return bytes(made)


@given(st.randoms(use_true_random=True), st.integers(1, 3000))  # one seed: else each byte is a draw of its own
def test_what_lzf_has_packed_is_unpacked(rng: random.Random, size: int) -> None:
    data = bytes(rng.choice(b"aab") for _ in range(size))
    small = packed(data, rng)
    string = b"\xc3" + rdb.number(len(small)) + rdb.number(size) + small
    assert reader(string).string() == data
    for wrong in (size - 1, size + 1, 1 << 40):
        with pytest.raises(InvalidDump):
            reader(b"\xc3" + rdb.number(len(small)) + rdb.number(wrong) + small).string()
    with pytest.raises(InvalidDump):
        reader(b"\xc3" + rdb.number(len(small) - 1) + rdb.number(size) + small[:-1]).string()


@pytest.mark.parametrize("data", [b"", b"\x40", b"\x80\0\0\0", b"\x81" + bytes(7), b"\x82", b"\xbf"])
def test_a_number_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidDump):
        reader(data).number()


@pytest.mark.parametrize("data", [b"", b"\x05abcd", b"\xc1\0", b"\xc4", b"\xff", b"\xc3\x03\x09\x20\0\0",
                                  b"\xc3\x01\x05\x04", b"\x81" + b"\xff" * 8, b"\xc3\0\x01", b"\xc3\x02\x03\x20\0"])
def test_a_string_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidDump):
        reader(data).string()
    with pytest.raises(InvalidDump):
        reader(b"\x81" + b"\xff" * 8).many(1)
