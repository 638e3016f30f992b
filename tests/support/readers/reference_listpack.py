"""A second listpack and node encoder, written from the format alone and sharing no code.

Slow and plain on purpose: integers by range, backlens by arithmetic, nodes by hand.
"""

from __future__ import annotations

import re

MASK = (1 << 64) - 1
INTEGER = re.compile(rb"0|-?[1-9][0-9]*")


def backlen(size: int) -> bytes:
    limits = (127, 16382, 2097150, 268435454)
    width = 1 + sum(size > limit for limit in limits)
    groups = [size >> 7 * i & 127 for i in range(width)][::-1]
    return bytes([groups[0], *(group | 128 for group in groups[1:])])


def integer_data(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    if -4096 <= value < 4096:
        return (0b110 << 13 | value % 8192).to_bytes(2, "big")
    for first, width in ((0xF1, 2), (0xF2, 3), (0xF3, 4), (0xF4, 8)):
        if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1:
            return bytes([first]) + (value % (1 << 8 * width)).to_bytes(width, "little")
    raise AssertionError(value)


def element(value: bytes | int) -> bytes:
    if isinstance(value, bytes) and INTEGER.fullmatch(value) and -(1 << 63) <= int(value) < 1 << 63:
        value = int(value)
    if isinstance(value, int):
        data = integer_data(value)
    elif len(value) < 64:
        data = bytes([0x80 + len(value)]) + value
    elif len(value) < 4096:
        data = (0xE000 + len(value)).to_bytes(2, "big") + value
    else:
        data = b"\xf0" + len(value).to_bytes(4, "little") + value
    return data + backlen(len(data))


def listpack(values: list[bytes | int]) -> bytes:
    body = b"".join(map(element, values))
    count = min(len(values), 65535)
    return (len(body) + 7).to_bytes(4, "little") + count.to_bytes(2, "little") + body + b"\xff"


def node(
    ms: int,
    seq: int,
    entries: list[tuple[int, int, list[bytes]]],
    deleted: set[tuple[int, int]] = frozenset(),
    names: list[bytes] | None = None,
) -> bytes:
    """The node of entries (ms, seq, [name, value, ...]), those in ``deleted`` marked."""
    if names is None:
        names = entries[0][2][::2]
    dead = sum((entry[0], entry[1]) in deleted for entry in entries)
    values: list[bytes | int] = [len(entries) - dead, dead, len(names), *names, 0]
    for entry_ms, entry_seq, flat in entries:
        same = flat[::2] == names
        diffs = [(entry_ms - ms) & MASK, (entry_seq - seq) & MASK]
        diffs = [diff - (1 << 64) if diff >> 63 else diff for diff in diffs]
        own = [2 * same + ((entry_ms, entry_seq) in deleted), *diffs]
        own += flat[1::2] if same else [len(flat) // 2, *flat]
        values += [*own, len(own)]
    return listpack(values)
