"""CRC-64, with which a payload of DUMP and an RDB file end: Jones' polynomial, bits reflected, begun with 0.

Not that of zlib or xz, so no library of Python has it. The C types stand in crc64.pxd.
"""

from __future__ import annotations

from array import array

SOURCE_HASH = ""

_POLYNOMIAL = 0x95AC9329AC4BC9B5  # 0xad93d23594c935a9 with its bits reversed


def _table() -> bytes:
    made = array("Q")
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        made.append(crc)
    return made.tobytes()


_TABLE = _table()


def numbers_of(table: bytes) -> memoryview[int]:  # cimport
    """The table's 64-bit numbers."""
    return memoryview(table).cast("Q")


def crc64(data: bytes, crc: int = 0) -> int:
    """The checksum of the bytes, or, behind others with the checksum ``crc``, of all."""
    table = numbers_of(_TABLE)
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc
