"""Bytes in memory: the few operations that C does through a pointer, for kernels run as plain Python.

In the compiled kernels their place is taken by the inline functions of the same names in
column_buffers.pxd, listpack.pxd and decode.pxd, which check nothing: their caller has made room.
"""

from __future__ import annotations

import struct

_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_DOUBLE = struct.Struct("<d")


def copy(to: bytearray, at: int, p: bytes, pos: int, size: int) -> None:
    """Copy ``size`` bytes at ``pos`` of ``p`` to ``at`` of ``to``."""
    to[at : at + size] = p[pos : pos + size]


def copy_short(to: bytearray, at: int, p: bytes, pos: int) -> None:
    """Copy 16 bytes. A shorter text may be copied with the bytes behind it, where both sides have so many."""
    to[at : at + 16] = p[pos : pos + 16]


def same(p: bytes, pos: int, other: bytes, size: int) -> bool:
    """Are ``size`` bytes at ``pos`` of ``p`` the first ones of ``other``?"""
    return p[pos : pos + size] == other[:size]


def same_within(p: bytes, pos: int, other: int, size: int) -> bool:
    """Are ``size`` bytes at ``pos`` of ``p`` the same as those at ``other`` of it?"""
    return p[pos : pos + size] == p[other : other + size]


def same_part(p: bytes, pos: int, other: bytes, at: int, size: int) -> bool:
    """Are ``size`` bytes at ``pos`` of ``p`` the same as those at ``at`` of ``other``?"""
    return p[pos : pos + size] == other[at : at + size]


def put_int32(to: bytearray, place: int, value: int) -> None:
    """Write an int32 as the ``place``-th of an array of such."""
    _INT32.pack_into(to, 4 * place, value)


def get_int32(p: bytes, place: int) -> int:
    """The ``place``-th of an array of int32."""
    value: int = _INT32.unpack_from(p, 4 * place)[0]
    return value


def put_int64(to: bytearray, place: int, value: int) -> None:
    """Write an int64 as the ``place``-th of an array of such."""
    _INT64.pack_into(to, 8 * place, value)


def put_double(to: bytearray, place: int, value: float) -> None:
    """Write a double as the ``place``-th of an array of such."""
    _DOUBLE.pack_into(to, 8 * place, value)


def put_bit(to: bytearray, place: int) -> None:
    """Set the ``place``-th bit of a bitmap, from the low end of each byte on."""
    to[place >> 3] |= 1 << (place & 7)
