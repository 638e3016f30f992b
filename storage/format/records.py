"""Records: the values of LMDB, each under a checksum over its key and itself.

    record of a few values                        node: the block of one listpack
    offset  size  what                            offset  size  what
    ------  ----  ---------------------------     ------  ----  ----------------------------------------------
         0     8  xxh3_64 of all that follows          0     8  xxh3_64 of all that follows
         8     1  format                               8     1  format
         9     -  msgpack array; see frame()           9     1  codec: 0 raw, 1 zstd
                                                      10     8  ordinal: entries ever added to the stream
                                                                before this node's first
                                                      18     4  span: entries ever added to this node
                                                                (ordinals it covers)
                                                      22     4  live: entries of it that are not deleted
                                                      26     4  raw size of the listpack
                                                      30     -  the listpack, byte for byte as Redis writes it
                                                                (or its zstd frame)

Integers are little-endian. The checksum covers everything behind it, and is seeded by the hash of the key, so
that a value under another key is as wrong as one with a flipped bit. LMDB itself returns between 16 and 47 %
of flipped bits as data; with this none comes through.

Sizes follow LMDB's pages: a value above 2,006 bytes goes to overflow pages, k of which hold
4,096 k - 16 bytes. A value of 4,080 bytes fills one page exactly; 4,081 take two.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
from xxhash import xxh3_64, xxh3_64_digest, xxh3_64_intdigest

from ..errors import CorruptionError, NotAStore, UnsupportedFormat
from .binary import flipped, joined  # cimport
from .keys import FORMAT, NODE, STORE_FORMAT, STORE_KEY

SOURCE_HASH = ""

FORMAT_BYTE = bytes([FORMAT])
_packers: list[Any] = []  # that no call has; half the time of packb(), which makes a packer each time
checksum = xxh3_64_digest  # of what is stored, with the key's seed. Big-endian: reversed it lies little-endian on disk
seed_of = xxh3_64_intdigest

RAW = 0
ZSTD = 1
HEADER_SIZE = 30
PAGE = 4096
PAGE_HEADER = 16  # once per run of overflow pages
MAX_LISTPACK = 1 << 30  # Redis' limit for one listpack

_BODY = struct.Struct("<BBQIII")
_NODE_KEY = struct.Struct(">QBQQ")
_CHECKSUM = struct.Struct("<Q")
_ORDINALS = struct.Struct("<QI")
_HEADER = struct.Struct("<QBBQIII")
_new = tuple.__new__


def pack(value: Any) -> bytes:
    """A value as msgpack.

    A packer is one call's alone: it makes an iterator of a named tuple, with which the collector of garbage may run
    finalizers, and with these other threads, and what they pack would go into the middle. After an exception it is
    dropped: where memory runs out as it hands out what it has packed, it keeps that.
    """
    try:
        packer = _packers.pop()
    except IndexError:
        packer = msgpack.Packer()
    packed: bytes = packer.pack(value)
    _packers.append(packer)
    return packed


def seal(key: bytes, row: Sequence[Any]) -> bytes:
    """The bytes to store under ``key`` for the row."""
    body = FORMAT_BYTE + pack(row)
    return joined(flipped(checksum(body, seed_of(key))), body)


def unseal(key: bytes, value: bytes) -> list[Any]:
    """The row stored under ``key``. CorruptionError if a bit of key or value is wrong."""
    if len(value) < 10:
        raise CorruptionError(f"the record under key {key.hex()} is cut off", offset=len(value))
    body = value[8:]
    if checksum(body, seed_of(key))[::-1] != value[:8]:
        raise CorruptionError(f"the record under key {key.hex()} fails its checksum", offset=0)
    if body[0] > FORMAT:
        raise UnsupportedFormat(
            f"the record under key {key.hex()} has format {body[0]}, this raxlog reads up to "
            f"{FORMAT}; open the store with a newer raxlog"
        )
    try:
        row: list[Any] = msgpack.unpackb(body[1:], use_list=True, strict_map_key=False)
    except ValueError as error:
        raise CorruptionError(f"the record under key {key.hex()} is no msgpack, if whole", offset=9) from error
    return row


def frame(name: bytes, size: int, rest: Sequence[Any]) -> tuple[bytes, bytes]:
    """What stands before and behind ``size`` bytes of numbers in a record ``[name, numbers, *rest]``.

    The numbers change with nearly each commit, all else hardly ever: that is packed once, and joined from then on.
    """
    return FORMAT_BYTE + bytes([0x90 + 2 + len(rest)]) + pack(name) + bytes([0xC4, size]), b"".join(map(pack, rest))


def store_row(value: Any, what: object) -> list[Any]:
    """The row of a store's own record. NotAStore: there is none; UnsupportedFormat: another version has written it."""
    if value is None:
        raise NotAStore(f"{what} holds an LMDB file, but no raxlog store is in it.")
    row = unseal(STORE_KEY, bytes(value))
    require_format(row[0], what)
    return row


def require_format(number: int, what: object) -> None:
    """UnsupportedFormat for a store, or a copy of one, that another version has written."""
    if number != STORE_FORMAT:
        raise UnsupportedFormat(
            f"{what} is of store format {number}, and this raxlog reads format {STORE_FORMAT} alone. Take the entries "
            "out with 'raxlog export' of the version that wrote it, and bring them in with 'raxlog import' of this one."
        )


def moved(key: bytes, value: bytes, to: bytes) -> bytes:
    """The record or block under ``key`` as it is to be stored under another key. CorruptionError if it is damaged."""
    body = value[8:]
    if checksum(body, seed_of(key))[::-1] != value[:8]:
        raise CorruptionError(f"the record under key {key.hex()} fails its checksum", offset=0)
    return joined(flipped(checksum(body, seed_of(to))), body)


def node_key(number: int, ms: int, seq: int) -> bytes:
    """The key of the node with the master ID ``ms-seq``."""
    return _NODE_KEY.pack(number, NODE, ms, seq)


def node_id(key: bytes) -> tuple[int, int]:
    """The master ID in a node's key: the inverse of node_key(). CorruptionError where it has another size."""
    try:
        _, _, ms, seq = _NODE_KEY.unpack(key)
    except struct.error:
        raise CorruptionError(f"the key {key.hex()} of a node has {len(key)} bytes, and not 25") from None
    return ms, seq


class BlockHeader(NamedTuple):
    """What a block says of its node without looking into the listpack."""

    codec: int
    ordinal: int
    span: int
    live: int
    raw_size: int


def page_run(size: int) -> int:
    """How many overflow pages a value of ``size`` bytes takes."""
    return (size + PAGE_HEADER + PAGE - 1) // PAGE


def run_bytes(size: int) -> int:
    """The most bytes that a value may have on as many pages as one of ``size`` bytes."""
    return page_run(size) * PAGE - PAGE_HEADER


def encode_block(key: bytes, listpack: bytes | bytearray, ordinal: int, span: int, live: int,
                 codec: int = RAW) -> bytes:
    """The block of a listpack, to be stored under ``key``. A frame that saves nothing stays raw. One copy is made."""
    stored, size = listpack, len(listpack)
    if codec == ZSTD:
        from . import zstd  # noqa: PLC0415

        frame = zstd.compress(bytes(listpack))
        stored, codec = (frame, ZSTD) if len(frame) < size else (listpack, RAW)
    head = _BODY.pack(FORMAT, codec, ordinal, span, live, size)
    checksum = xxh3_64(head, xxh3_64_intdigest(key))
    checksum.update(stored)
    return b"".join((_CHECKSUM.pack(checksum.intdigest()), head, stored))


def block_header(key: bytes, value: bytes | memoryview) -> BlockHeader:
    """The header of the block under ``key``, after its checksum has been verified."""
    if len(value) < HEADER_SIZE:
        raise _damaged(key, "is cut off", len(value))
    checksum, version, codec, ordinal, span, live, raw_size = _HEADER.unpack_from(value)
    if xxh3_64_intdigest(memoryview(value)[8:], xxh3_64_intdigest(key)) != checksum:
        raise _damaged(key, "fails its checksum", 0)
    if version > FORMAT or codec > ZSTD:
        raise UnsupportedFormat(
            f"a node has format {version} and codec {codec}, this raxlog reads format {FORMAT} "
            f"and codecs up to {ZSTD}; open the store with a newer raxlog"
        )
    if codec == RAW and len(value) - HEADER_SIZE != raw_size:
        raise _damaged(key, "does not have the size it states", 26)
    return _new(BlockHeader, (codec, ordinal, span, live, raw_size))  # a third of what calling it takes


def peek_ordinals(value: bytes) -> tuple[int, int]:
    """Ordinal and span as the block states them, unverified: good for finding one's way only."""
    ordinal, span = _ORDINALS.unpack_from(value, 10)
    return ordinal, span


def listpack_of(key: bytes, value: bytes, head: BlockHeader) -> bytes:
    """The listpack inside a block, after block_header() has verified it."""
    if head.codec == RAW:
        return value[HEADER_SIZE:]
    if head.raw_size > MAX_LISTPACK:
        raise _damaged(key, f"states a listpack of {head.raw_size} bytes", 26)
    from . import zstd  # noqa: PLC0415

    frame = value[HEADER_SIZE:]
    try:
        # zstandard takes as much memory as the frame states, whatever the limit.
        stated = zstd.stated_size(frame)
        if stated not in (None, head.raw_size):
            raise _damaged(key, f"holds a zstd frame that states {stated} bytes, not {head.raw_size}", HEADER_SIZE)
        raw = zstd.decompress(frame, head.raw_size)
    except zstd.ERRORS as error:
        raise _damaged(key, f"holds a zstd frame that cannot be read ({error})", HEADER_SIZE) from None
    if len(raw) != head.raw_size:
        raise _damaged(key, "does not unpack to the size it states", 26)
    return raw


def open_block(key: bytes, value: bytes) -> tuple[BlockHeader, bytes]:
    """block_header() and listpack_of() of the block under ``key``."""
    head = block_header(key, value)
    return head, listpack_of(key, value, head)


def _damaged(key: bytes, what: str, offset: int) -> CorruptionError:
    number = str(int.from_bytes(key[:8], "big"))
    node = "{}-{}".format(*node_id(key)) if len(key) == 25 else key.hex()
    return CorruptionError(f"a node's block {what}", stream=f"no. {number}", node=node, offset=offset)
