r"""Small requests that have come whole, as nearly all of them have, cut out of the bytes in one loop.

    *2\r\n$4\r\nXLEN\r\n$1\r\ns\r\n*1\r\n$4\r\nPI     ->  [[XLEN, s]], and where the next begins

What is anything else is left to requests.py: lines, large words, half a request, and what is no request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...stream.node.stream_id import StreamID

SOURCE_HASH = ""

STAR = 0x2A
DOLLAR = 0x24
ZERO = 0x30
NINE = 0x39
CR = 0x0D
LF = 0x0A
LONGEST = 1000  # a word has less than ten times as many bytes
MOST = 1 << 20


def cut(data: bytearray, at: int, count: int, limit: int) -> tuple[list[list[bytes]], int]:
    """Up to ``count`` requests of up to ``limit`` bytes each, from that place on, and the place behind them."""
    p = data
    size = len(data)
    found: list[list[bytes]] = []
    while len(found) < count and size - at > 4 and p[at] == STAR and ZERO < p[at + 1] <= NINE:
        words_left = p[at + 1] - ZERO
        i = at + 2
        if ZERO <= p[i] <= NINE:
            words_left = words_left * 10 + p[i] - ZERO
            i += 1
        if p[i] != CR or p[i + 1] != LF:
            break
        i += 2
        words: list[bytes] = []
        while words_left and size - i > 4 and p[i] == DOLLAR and ZERO <= p[i + 1] <= NINE:
            length = p[i + 1] - ZERO
            i += 2
            while i < size and 0 < length < LONGEST and ZERO <= p[i] <= NINE:
                length = length * 10 + p[i] - ZERO
                i += 1
            if size - i < length + 4 or p[i] != CR or p[i + 1] != LF:
                break
            i += 2
            words.append(bytes(p[i : i + length]))
            i += length + 2
            words_left -= 1
        if words_left or i - at > limit:
            break
        found.append(words)
        at = i
    return found, at


def plain_appends(requests: list[list[bytes]], at: int) -> list[list[bytes]]:
    """The fields of the XADDs from that place on that have the first one's key, the ID * and no option, and are small.

    Up to a megabyte of them.
    """
    flats: list[list[bytes]] = []
    key = requests[at][1]
    size = 0
    while at < len(requests):
        words = requests[at]
        if words[1] != key or words[2] != b"*" or len(words) % 2 == 0:
            break
        for word in words:
            size += len(word)
        if size > MOST:
            break
        flats.append(words[3:])
        at += 1
    return flats


def id_replies(ids: list[StreamID]) -> bytes:
    """IDs as bulk strings."""
    parts: list[bytes] = []
    for ms, seq in ids:
        text = b"%d-%d" % (ms, seq)
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)
