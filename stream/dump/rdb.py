"""RDB: numbers and strings as Redis writes them in its files and in payloads of DUMP.

    00······            a number of 6 bits              11000000  byte       the text of an integer, little-endian
    01······ ········   of 14                           11000001  2 bytes
    10000000  4 bytes   of 32, big-endian               11000010  4 bytes
    10000001  8 bytes   of 64                           11000011  number  number  LZF: sizes packed and unpacked

    string: a number and so many bytes, or one of those on the right
    LZF: 000····· literal bytes, one more than the number; else a copy of what came: size (3 bits, or 8 more), distance
"""

from __future__ import annotations

from mmap import mmap

from ...storage.errors import InvalidDump

_INTEGER_TEXT = 11  # bytes: longer texts are never stored as integers
_LZF_GAIN = 264  # one copy of LZF makes so many bytes of 3


class RdbReader:
    """Reads a payload from its beginning. InvalidDump where it ends too early, or says what cannot be."""

    def __init__(self, data: bytes | mmap, end: int) -> None:
        self._data = data
        self._end = end
        self.at: int = 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes. InvalidDump where the payload ends before."""
        if size > self._end - self.at:
            raise InvalidDump(f"the payload ends within {size} bytes that it states, at {self.at}")
        self.at += size
        return self._data[self.at - size : self.at]

    def since(self, start: int) -> bytes:
        """What has been read since it was at ``start``."""
        return self._data[start : self.at]

    def number(self) -> int:
        """The next length in RDB's encoding: 6, 14, 32 or 64 bits."""
        first = self.take(1)[0]
        if first < 0x40:
            return first
        if first < 0x80:
            return (first & 0x3F) << 8 | self.take(1)[0]
        if first == 0x80:
            return int.from_bytes(self.take(4), "big")
        if first == 0x81:
            return int.from_bytes(self.take(8), "big")
        raise InvalidDump(f"{first:#04x} at {self.at - 1} begins no number")

    def many(self, least: int) -> range:
        """A number of things of at least ``least`` bytes each, to be counted through."""
        count = self.number()
        if count > (self._end - self.at) // least:
            raise InvalidDump(f"{count} parts are stated at {self.at}, and the payload is too short for that")
        return range(count)

    def pair(self) -> tuple[int, int]:
        """An ID of two numbers."""
        return self.number(), self.number()

    def signed(self) -> int:
        """A time: 8 bytes, little-endian, with a sign."""
        return int.from_bytes(self.take(8), "little", signed=True)

    def string(self) -> bytes:
        """The next string: plain, a number in binary, or compressed by LZF."""
        first = self._data[self.at] if self.at < self._end else 0
        if first < 0xC0:
            return self.take(self.number())
        self.at += 1
        if first <= 0xC2:
            return b"%d" % int.from_bytes(self.take(1 << (first & 3)), "little", signed=True)
        if first != 0xC3:
            raise InvalidDump(f"{first:#04x} at {self.at - 1} begins no string")
        size, unpacked = self.number(), self.number()
        return _unpacked(self.take(size), unpacked)

    def require_end(self) -> None:
        """InvalidDump unless all has been read."""
        if self.at != self._end:
            raise InvalidDump(f"{self._end - self.at} bytes follow the stream")


def number(value: int) -> bytes:
    """A number, to be read by RdbReader.number()."""
    if value < 0x40:
        return bytes([value])
    if value < 0x4000:
        return bytes([0x40 | value >> 8, value & 0xFF])
    if value < 1 << 32:
        return b"\x80" + value.to_bytes(4, "big")
    return b"\x81" + value.to_bytes(8, "big")


def string(value: bytes) -> bytes:
    """A string, uncompressed; as an integer where Redis would make one of it."""
    if len(value) <= _INTEGER_TEXT and value.removeprefix(b"-").isdigit() and b"%d" % (plain := int(value)) == value:
        for kind in range(3):
            if -1 << (8 << kind) - 1 <= plain < 1 << (8 << kind) - 1:
                return bytes([0xC0 | kind]) + plain.to_bytes(1 << kind, "little", signed=True)
    return number(len(value)) + value


def signed(value: int) -> bytes:
    """A time as it is written: 8 bytes, little-endian, with a sign."""
    return value.to_bytes(8, "little", signed=True)


def _unpacked(packed: bytes, size: int) -> bytes:
    """What LZF made ``packed`` of, so many bytes."""
    if size > _LZF_GAIN * len(packed):
        raise InvalidDump(f"{len(packed)} bytes of LZF cannot hold {size}")
    made = bytearray()
    at = 0
    try:
        while at < len(packed):
            control = packed[at]
            at += 1
            if control < 32:
                if at + control >= len(packed):
                    raise IndexError
                made += packed[at : at + control + 1]
                at += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += packed[at]
                at += 1
            start = len(made) - ((control & 31) << 8 | packed[at]) - 1
            at += 1
            length += 2
            if start < 0 or len(made) + length > size:
                raise IndexError
            piece = made[start : start + length]
            made += (piece * (length // len(piece) + 1))[:length]  # it may reach into itself
    except IndexError:
        raise InvalidDump(f"a string that LZF has packed is damaged, at byte {at} of {len(packed)}") from None
    if len(made) != size:
        raise InvalidDump(f"a string that LZF has packed has {len(made)} bytes, and {size} are stated")
    return bytes(made)
