"""The payload of DUMP: one stream in the bytes that Redis' RESTORE takes.

    type   nodes { 16 bytes, listpack }   length   last   [ first   max deleted   entries added ]          from 19 on
    groups { name   last   [ entries read ]                                                                from 19 on
             pending { 16 bytes, time, deliveries }
             consumers { name   seen   [ active ]   pending { 16 bytes } }                                 from 21 on
             [ released { 16 bytes } ] }                                                                   of 27
    [ window   cap   producers { name   { idempotent ID, ID } }   added   duplicates ]                     from 26 on
    version of RDB (2)   CRC-64 (8)

Types are 15 (Redis 5), 19 (7.0), 21 (7.2), 26 (8.6) and 27 (8.8). The first three are written, all are read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...storage.errors import DumpChecksum, InvalidArgument, InvalidDump
from ..node.stream_id import unpack_id
from . import rdb
from .crc64 import crc64
from .rdb import RdbReader

ID = tuple[int, int]

TYPES = (15, 19, 21, 26, 27)
_WRITTEN = (((7, 2), 21, 11), ((7, 0), 19, 10), ((5, 0), 15, 9))  # from this Redis on: type, version of RDB
_FOOTER = 10
_ID = 16  # bytes
_UNKNOWN = -1  # of entries read


class DumpedPending(NamedTuple):
    """A pending entry; the time of its delivery in ms."""

    id: ID
    time: int
    count: int  # type: ignore[assignment]  # hides tuple.count()


class DumpedConsumer(NamedTuple):
    """A consumer; its times in ms, -1 for never."""

    name: bytes
    seen: int
    active: int
    pending: list[ID]


class DumpedGroup(NamedTuple):
    """A group; what is pending with no consumer is ``released``, first released, first."""

    name: bytes
    last: ID
    entries_read: int | None  # -1: unknown. None: the payload does not have it
    pending: list[DumpedPending]
    consumers: list[DumpedConsumer]
    released: list[ID]


class DumpedProducer(NamedTuple):
    """A producer of idempotent appends."""

    name: bytes
    appends: list[tuple[bytes, ID]]


class DumpedStream(NamedTuple):
    """A stream. Those that are None a payload of type 15 does not have."""

    nodes: list[tuple[bytes, bytes]]
    length: int
    last: ID
    max_deleted: ID | None
    entries_added: int | None
    groups: list[DumpedGroup]
    idempotence: tuple[int, int] | None
    producers: list[DumpedProducer]


def version_of(redis_version: str) -> tuple[int, int]:
    """The type and the version of RDB for the oldest Redis that is to take the payload."""
    parts = re.fullmatch(r"(\d{1,9})\.(\d{1,9})(\.\d+)*", redis_version) if isinstance(redis_version, str) else None
    wanted = (0, 0) if parts is None else (int(parts[1]), int(parts[2]))
    for since, kind, version in _WRITTEN:
        if wanted >= since:
            return kind, version
    raise InvalidArgument(f"redis_version={redis_version!r:.40} must be text such as '7.2', and 5.0 or later")


def written(stream: DumpedStream, first: ID, kind: int, version: int) -> bytes:
    """The payload of a stream whose first live entry is ``first``."""
    number, string, signed = rdb.number, rdb.string, rdb.signed
    parts = [bytes([kind]), number(len(stream.nodes))]
    for key, listpack in stream.nodes:
        parts += [string(key), string(listpack)]
    counters = [stream.length, *stream.last]
    if kind >= 19:
        counters += [*first, *(stream.max_deleted or (0, 0)), stream.entries_added or 0]
    parts += map(number, [*counters, len(stream.groups)])
    for group in stream.groups:
        parts += [string(group.name), number(group.last[0]), number(group.last[1])]
        if kind >= 19:
            parts.append(number((group.entries_read or 0) % (1 << 64)))
        parts.append(number(len(group.pending)))
        for row in group.pending:
            parts += [_packed(row.id), signed(row.time), number(row.count)]
        parts.append(number(len(group.consumers)))
        for consumer in group.consumers:
            parts += [string(consumer.name), signed(consumer.seen), signed(consumer.active) if kind >= 21 else b""]
            parts += [number(len(consumer.pending)), *map(_packed, consumer.pending)]
    return sealed(b"".join(parts), version)


def sealed(value: bytes, version: int = _WRITTEN[0][2]) -> bytes:
    """A payload of a value, behind its type."""
    body = value + version.to_bytes(2, "little")
    return body + crc64(body).to_bytes(8, "little")


def read(payload: bytes) -> DumpedStream:
    """A payload taken apart. DumpChecksum, InvalidDump; whether its nodes are whole is not looked at."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidDump(f"a payload is bytes, not {type(payload).__name__}")
    payload = bytes(payload)
    if len(payload) <= _FOOTER or crc64(payload[:-8]) != int.from_bytes(payload[-8:], "little"):
        raise DumpChecksum(f"the payload of {len(payload)} bytes does not end with its checksum: it is damaged or cut "
                           "off. Dump the stream again")
    reader = RdbReader(payload, len(payload) - _FOOTER)
    kind = reader.take(1)[0]
    if kind not in TYPES:
        raise InvalidDump(f"the payload is of type {kind}, which is no stream; those are {', '.join(map(str, TYPES))}")
    stream = read_stream(reader, kind)
    reader.require_end()
    return stream


def read_stream(reader: RdbReader, kind: int) -> DumpedStream:
    """A stream of that type. InvalidDump."""
    nodes = [(reader.string(), reader.string()) for _ in reader.many(2)]
    length, last = reader.number(), reader.pair()
    max_deleted = entries_added = idempotence = None
    if kind >= 19:
        reader.pair()  # the first entry: the nodes say it
        max_deleted, entries_added = reader.pair(), reader.number()
    groups = [_group(reader, kind) for _ in reader.many(6)]
    producers = []
    if kind >= 26:
        idempotence = reader.pair()
        for _ in reader.many(2):
            name = reader.string()
            producers.append(DumpedProducer(name, [(reader.string(), reader.pair()) for _ in reader.many(3)]))
        reader.pair()  # how many appends there were: for people
    return DumpedStream(nodes, length, last, max_deleted, entries_added, groups, idempotence, producers)


def _group(reader: RdbReader, kind: int) -> DumpedGroup:
    name, last = reader.string(), reader.pair()
    entries_read = None
    if kind >= 19:
        entries_read = reader.number()
        if entries_read >= 1 << 63:
            entries_read = _UNKNOWN
    pending = [DumpedPending(unpack_id(reader.take(_ID)), reader.signed(), reader.number()) for _ in reader.many(25)]
    consumers = []
    for _ in reader.many(10):
        consumer, seen = reader.string(), reader.signed()
        active = reader.signed() if kind >= 21 else seen
        consumers.append(DumpedConsumer(consumer, seen, active, _ids(reader)))
    return DumpedGroup(name, last, entries_read, pending, consumers, _ids(reader) if kind >= 27 else [])


def _ids(reader: RdbReader) -> list[ID]:
    return [unpack_id(reader.take(_ID)) for _ in reader.many(_ID)]


def _packed(sid: ID) -> bytes:
    return sid[0].to_bytes(8, "big") + sid[1].to_bytes(8, "big")

