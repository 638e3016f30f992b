"""RDB files, in which Redis saves all its keys, read key by key.

    REDIS0012   { 0xFA name value }   { 0xFE database   { [ 0xFC ms ]  type  key  value } }   0xFF   CRC-64

A value is encoded as in a payload of DUMP (payload.py). A stream is yielded as such a payload, a string and a list as
their values; of any other kind, and of lists from before Redis 7, only the name of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from mmap import mmap
from typing import NamedTuple

from ...storage.errors import DumpChecksum, InvalidDump
from ..node import listpack
from . import payload
from .crc64 import crc64
from .rdb import RdbReader

_AUX, _RESIZE, _FUNCTION, _MODULE_AUX, _IDLE, _FREQUENCY = 0xFA, 0xFB, 0xF5, 0xF7, 0xF8, 0xF9
_MS, _SECONDS, _DATABASE, _END = 0xFC, 0xFD, 0xFE, 0xFF
_PIECE = 16 << 20
_STRING, _LIST, _QUICKLIST = 0, 1, 18
_PLAIN = 1  # a node of a quicklist that is one item
_KINDS = {
    "set": (2, 11, 20), "sorted set": (3, 5, 12, 17), "hash": (4, 9, 13, 16, 22, 23, 24, 25),
    "list of an old Redis": (10, 14), "module's value": (6, 7),
}


class Row(NamedTuple):
    """A key. ``value``: the payload of a stream, a string, the items of a list; None: its kind cannot be kept."""

    database: int
    key: bytes
    kind: str
    value: bytes | list[bytes] | None
    at: int | None  # when it goes, ms since 1970
    place: int = 0  # in the file, behind it


def rows(data: mmap) -> Iterator[Row]:
    """The keys of a file. InvalidDump, DumpChecksum: before the first key where the file is damaged or cut off."""
    if data[:5] != b"REDIS" or len(data) < 18:
        raise InvalidDump("this is no RDB file: it does not begin with REDIS")
    given, crc = int.from_bytes(data[-8:], "little"), 0
    for start in range(0, len(data) - 8, _PIECE):
        crc = crc64(data[start : min(start + _PIECE, len(data) - 8)], crc)
    if given and given != crc:
        raise DumpChecksum("the RDB file does not end with its checksum: it is damaged or cut off")
    if not given:  # Redis writes none with rdbchecksum no: then all of it is read twice
        for _ in _read(data):
            pass
    yield from _read(data)


def _read(data: mmap) -> Iterator[Row]:
    reader = RdbReader(data, len(data) - 8)
    reader.take(9)
    database, at = 0, None
    while (code := reader.take(1)[0]) != _END:
        if code == _AUX:
            reader.string()
            reader.string()
        elif code == _RESIZE:
            reader.pair()
        elif code == _DATABASE:
            database = reader.number()
        elif code == _MS:
            at = reader.signed()
        elif code == _SECONDS:
            at = int.from_bytes(reader.take(4), "little") * 1000
        elif code == _IDLE:
            reader.number()
        elif code == _FREQUENCY:
            reader.take(1)
        elif code == _FUNCTION:
            reader.string()
        elif code == _MODULE_AUX:
            _skip_module(reader)
        else:
            key = reader.string()
            kind, value = read_value(reader, code)
            yield Row(database, key, kind, value, at, reader.at)
            at = None


def read_dump(data: bytes) -> tuple[str, bytes | list[bytes] | None]:
    """The kind and the value in a payload of DUMP."""
    return read_value(RdbReader(data[1:], len(data) - 11), data[0])


def read_value(reader: RdbReader, code: int) -> tuple[str, bytes | list[bytes] | None]:
    """The kind of a value of that type, and the value where it can be kept."""
    if code == _STRING:
        return "string", reader.string()
    if code == _LIST:
        return "list", [reader.string() for _ in reader.many(1)]
    if code == _QUICKLIST:
        return "list", [item for _ in reader.many(2) for item in _items(reader)]
    if code in payload.TYPES:
        start = reader.at
        payload.read_stream(reader, code)
        return "stream", payload.sealed(bytes([code]) + reader.since(start))
    kind = next((kind for kind, codes in _KINDS.items() if code in codes), None)
    if kind is None:
        raise InvalidDump(f"type {code} at {reader.at - 1} is unknown")
    _SKIPS.get(code, RdbReader.string)(reader)
    return kind, None


def _items(reader: RdbReader) -> list[bytes]:
    container, node = reader.number(), reader.string()
    if container == _PLAIN:
        return [node]
    listpack.validate(node)
    items = []
    at = listpack.first(node)
    while at >= 0:
        items.append(listpack.get(node, at))
        at = listpack.next(node, at)
    return items


def _skip(*parts: Callable[[RdbReader], object], head: int = 0) -> Callable[[RdbReader], None]:
    def skip(reader: RdbReader) -> None:
        reader.take(head)
        for _ in reader.many(len(parts)):
            for part in parts:
                part(reader)

    return skip


def _skip_score(reader: RdbReader) -> None:
    size = reader.take(1)[0]
    reader.take(size if size < 253 else 0)


def _skip_module(reader: RdbReader) -> None:
    reader.number()
    read: dict[int, Callable[[], object]] = {
        1: reader.number, 2: reader.number, 3: lambda: reader.take(4), 4: lambda: reader.take(8), 5: reader.string}
    while (code := reader.number()) != 0:
        if code not in read:
            raise InvalidDump(f"{code} at {reader.at - 1} is no part of a module's value")
        read[code]()


_SKIPS: dict[int, Callable[[RdbReader], object]] = {
    2: _skip(RdbReader.string), 3: _skip(RdbReader.string, _skip_score), 4: _skip(RdbReader.string, RdbReader.string),
    5: _skip(RdbReader.string, RdbReader.signed), 7: _skip_module, 10: RdbReader.string,
    14: _skip(RdbReader.string), 22: _skip(RdbReader.number, RdbReader.string, RdbReader.string),
    24: _skip(RdbReader.number, RdbReader.string, RdbReader.string, head=8),
    25: lambda reader: (reader.take(8), reader.string()),
}
