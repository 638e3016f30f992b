"""The writing end of a stream: its header and its tail node, worked on in memory.

    transaction n                         transaction n + 1
    ┌───────────────────────────┐         ┌──────────────────
    │ append, append, append    │ flush   │ append …            header and tail are found warm:
    │   header ┐                │ ──────> │                     no read, no check, no parse,
    │   tail   ┘ change here    │ 2 puts  │                     unless another process wrote
    └───────────────────────────┘         └──────────────────

However many entries a transaction appends to a node, the node is written once: when it is
full, or at the flush before the commit. A full node is only ever written in its sealed form,
because LMDB keeps the pages of a large value that is overwritten by a smaller one in the
same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...storage.errors import (
    CorruptionError,
    IDTooSmall,
    IDZero,
    MalformedValue,
    NoStream,
    StreamExhausted,
    StreamExists,
)
from ...storage.format import keys, records
from ...storage.format.records import HEADER_SIZE, RAW, run_bytes
from ...storage.log.transaction import WriteTransaction  # cimport
from ...storage.trees.ordinals import EVERY, DeadCounts, OrdinalIndex
from ...storage.trees.rax import Rax
from ..node.builder import NodeBuilder  # cimport
from ..node.flattened import TextColumns
from ..node.stream_id import (
    AUTO,
    MAX64,
    NewID,
    StreamID,
    make_id,
)
from . import header as headers
from .header import (
    NodeLimits,
    StreamHeader,  # cimport
    shown,
)

SOURCE_HASH = ""

_MAX = (MAX64, MAX64)
_PAGE = run_bytes(1)
# The largest block that entries are gathered into: each append rewrites the tail. Packed, a page mostly holds
# three pages of raw entries.
_MOST = 7 * _PAGE
_MOST_PACKED = 3
# A larger listpack is full. It is written at once, and never kept in memory.
_LARGE = 1 << 20


def id_from(cls: type[StreamID], pair: tuple[int, int]) -> StreamID:  # cimport
    """The ID of two numbers that are known to be right."""
    return tuple.__new__(cls, pair)


class StreamWriter:
    """One stream inside a write transaction. Kept warm between transactions."""

    __slots__ = (
        "begun", "epoch", "groups", "header", "header_key", "header_seed", "idle_from", "nodes_prefix", "number",
        "stored", "tail", "tail_bytes", "tail_changed", "tail_key", "tail_known", "tail_ordinal",
        "tail_put_in", "tail_room", "tail_seed", "tail_span", "trial",
    )

    def __init__(self, number: int, header: StreamHeader, epoch: int, stored: bytes | None = None) -> None:
        self.number: int = number
        self.header: StreamHeader = header
        self.epoch: int = epoch  # in which it was last compared with the disk (WriteTransaction)
        self.stored = stored  # its header's record
        self.header_key: bytes = keys.header_key(number)
        self.header_seed: int = records.seed_of(self.header_key)
        self.groups: dict[bytes, Any] = {}  # those worked on so far, by name
        self.idle_from: tuple[int, int] | None = None  # the least last ID of the other groups: none has entries pending
        self.begun: int = 0  # nodes, under a retention: above 0 it is to be looked at (group/expiry.py)
        self.nodes_prefix: bytes = keys.family(number, keys.NODE)
        self.tail: NodeBuilder | None = None
        self.tail_known: bool = header.leaves == 0
        self.tail_key: bytes = b""
        self.tail_seed: int = 0
        self.tail_ordinal: int = 0
        self.tail_span: int = 0
        self.tail_changed: bool = False
        self.tail_bytes: int = 0  # its block's, as stored
        self.tail_put_in: int = -1  # the transaction that last wrote the tail's block
        self.tail_room: int = 0  # under a codec: the bytes of the raw block that are likely to fill its pages
        self.trial: bytes | None = None  # the block of a tail that is found full, until it is sealed

    def nodes(self, txn: WriteTransaction) -> Rax:
        """The stream's nodes as a rax. What is still in memory is flushed first."""
        self.flush(txn)
        return Rax(txn, self.nodes_prefix)

    # -- appending ----------------------------------------------------------------------

    def append(self, txn: WriteTransaction, new: NewID, now: int, flat: list[bytes]) -> StreamID:
        """Append one entry: XADD without its options.

        ``now`` is the clock in milliseconds, read once by the caller. IDTooSmall, MalformedValue and
        StreamExhausted are raised before anything has changed.
        """
        if self.header.schema is not None:
            self.require_values((flat,))
        pair = self.next_id(new, now)
        ms, seq = pair
        if not self.tail_known:
            self._load_tail(txn)
        self.changed(txn)
        tail = self.tail
        if tail is not None and not self._push(tail, ms, seq, flat):
            self._seal_tail(txn, tail)
            tail = None
        if tail is None:
            tail = self._start_node(txn, ms, seq, flat)
            tail.push(ms, seq, flat, -1, -1, -1)
        self._added(1, pair, pair)
        if self._is_large(tail.size):
            self._seal_tail(txn, tail)
            self.tail = None
        return id_from(StreamID, pair)

    def _push(self, tail: NodeBuilder, ms: int, seq: int, flat: list[bytes]) -> bool:
        limits = self.header.limits
        max_entries = limits.max_entries or -1
        if limits.max_bytes is not None:
            return tail.push(ms, seq, flat, -1, limits.max_bytes, max_entries)
        return tail.push(ms, seq, flat, self._room(tail), -1, max_entries) or (
            not 0 < max_entries <= tail.live + tail.dead and self._grow(tail, ms, seq, flat)
        )

    def _is_large(self, size: int) -> bool:
        return size > _LARGE and size > (self.header.limits.max_bytes or 0)

    def extend(self, txn: WriteTransaction, now: int, flats: list[list[bytes]] | TextColumns) -> list[StreamID]:
        """Append many entries, their IDs made as for ``*``: the kernel fills node after node."""
        ids: list[StreamID] = []
        if self.header.schema is not None:
            self.require_values(flats)
        if self.header.last[0] == MAX64 and self.header.last[1] > MAX64 - len(flats):
            raise self._exhausted()
        while len(ids) < len(flats):
            at = len(ids)
            ms, seq = self.next_id(AUTO, now)
            if self.tail is not None and seq <= MAX64 - len(flats):
                self.changed(txn)
                limits = self.header.limits
                filled = self.tail.fill(
                    flats, at, ms, seq,
                    self._room(self.tail) if limits.max_bytes is None else -1,
                    -1 if limits.max_bytes is None else limits.max_bytes,
                    limits.max_entries or -1, ids,
                )
                if filled:
                    first, last = ids[at], ids[len(ids) - 1]
                    self._added(filled, (first[0], first[1]), (last[0], last[1]))
                    continue
            ids.append(self.append(txn, AUTO, now, flats[at]))
        return ids

    def require_values(self, flats: Iterable[list[bytes]]) -> None:
        """MalformedValue for a value that is not of its field's type, if the stream's schema is checked."""
        schema = self.header.schema
        if schema is None or not schema.checked:
            return
        for place, flat in enumerate(flats):
            wrong = schema.malformed(flat)
            if wrong is not None:
                raise MalformedValue(
                    f"entry {place}: field {shown(wrong[0])} is {schema.fields[wrong[0].decode()]} by the schema of "
                    f"stream {shown(self.header.name)}, which {wrong[1]!r:.80} is not. Append a value of that type, or "
                    "let configure() leave the schema unchecked"
                )

    def _added(self, count: int, first: tuple[int, int], last: tuple[int, int]) -> None:
        """Entries have been pushed to the tail: count them."""
        header = self.header
        self.tail_span += count
        self.tail_changed = True
        header.last = last
        header.next_ordinal += count
        header.entries_added += count
        if header.length == 0:
            header.first = first
        header.length += count

    def changed(self, txn: WriteTransaction) -> None:
        """Mark the header (at least) to be flushed. Before anything of it is changed."""
        txn.changes += 1
        txn.dirty[self.number] = self

    def next_id(self, new: NewID, now: int) -> tuple[int, int]:
        """The ID that an entry appended now would get. IDTooSmall, StreamExhausted."""
        last = self.header.last
        if new.ms is None and now > last[0]:
            return now, 0
        if new.ms == 0 and new.seq == 0:
            raise IDZero("the ID 0-0 is refused: an entry's ID must be greater than 0-0")
        if last == _MAX:
            raise self._exhausted()
        if new.ms is None:  # the clock has not advanced: IDs go on from the last one, over 128 bits
            return (last[0], last[1] + 1) if last[1] < MAX64 else (last[0] + 1, 0)
        if new.seq is not None:
            ms, seq = new.ms, new.seq
        elif new.ms == last[0] and last[1] < MAX64:
            ms, seq = new.ms, last[1] + 1
        else:
            ms, seq = new.ms, 0
        if (ms, seq) <= last:
            raise IDTooSmall(
                f"the ID {ms}-{seq} is not greater than the last ID of stream "
                f"{shown(self.header.name)}, {make_id(*last)}. Append with '*', or with a greater ID."
            )
        return ms, seq

    def _exhausted(self) -> StreamExhausted:
        return StreamExhausted(
            f"stream {shown(self.header.name)} has no IDs left for this behind {make_id(*self.header.last)}, and "
            f"{make_id(*_MAX)} is the last possible one. Go on in another stream."
        )

    def _room(self, tail: NodeBuilder) -> int:
        """The size up to which the tail's listpack grows before _grow() is asked."""
        limits = self.header.limits
        size = tail.size + HEADER_SIZE
        room = limits.page_bytes
        if limits.codec != RAW:
            room = max(room, self.tail_room)
        elif size > room:
            room = run_bytes(size)
        return room - HEADER_SIZE

    def _grow(self, tail: NodeBuilder, ms: int, seq: int, flat: list[bytes]) -> bool:
        """Push to the tail though it has reached its room, if it may go on; whether it did.

        It does while its pages, as it would be sealed now, are not full enough. Under a codec its block
        is made on trial, and shows how much more is likely to fill them: the room from now on. When the
        tail is full that is the next node's, for one page of entries like these.
        """
        limits = self.header.limits
        raw = stored = tail.size + HEADER_SIZE
        max_size, enough = _MOST, 0.8  # of fractions C would make 0
        if limits.codec != RAW:
            self.trial = self._tail_block(tail, limits.codec)
            stored = len(self.trial)
            if stored < raw:
                max_size, enough = min(_MOST_PACKED * limits.page_bytes, _MOST), 0.9
        pages = run_bytes(stored)
        grows = stored < pages * enough and tail.push(ms, seq, flat, max_size - HEADER_SIZE, -1, -1)
        rest = (pages - stored) * 3 // 4 if grows else _PAGE * 15 // 16 - stored
        self.tail_room = min(raw + rest * raw // stored, max_size)
        if grows:
            self.tail_room = max(self.tail_room, tail.size + HEADER_SIZE)
            self.trial = None
        return grows

    def _start_node(self, txn: WriteTransaction, ms: int, seq: int, flat: list[bytes]) -> NodeBuilder:
        header = self.header
        self.tail = tail = NodeBuilder.start(ms, seq, flat)
        self.tail_key = records.node_key(self.number, ms, seq)
        self.tail_seed = records.seed_of(self.tail_key)
        self.tail_ordinal = header.next_ordinal
        self.tail_span = self.tail_bytes = 0
        if header.retention is not None:
            self.begun += 1
        if header.leaves_added % EVERY == 0:
            OrdinalIndex(txn, self.number).note(header.next_ordinal, ms, seq)
        header.leaves += 1
        header.leaves_added += 1
        return tail

    # -- the tail and the disk ----------------------------------------------------------

    def _load_tail(self, txn: WriteTransaction) -> None:
        name, key = shown(self.header.name), self.tail_key
        block = txn.get(key) if key else None  # where it is known, no node has come or gone since
        if block is None:
            found = Rax(txn, self.nodes_prefix).last()
            if found is None:
                raise CorruptionError("the stream's last node is missing", stream=name)
            block = found[1]
            self.tail_key = key = self.nodes_prefix + found[0]
            self.tail_seed = records.seed_of(key)
        ms, seq = records.node_id(key)
        try:
            head = records.block_header(key, block)
            self.tail = None if self._is_large(head.raw_size) else NodeBuilder.open(
                records.listpack_of(key, block, head), ms, seq)
        except CorruptionError as error:
            raise located(error, name, ms, seq) from None
        self.tail_ordinal = head.ordinal
        # Nodes behind this one may have been freed. What is appended now comes after their
        # ordinals, so the node takes these over, marked as deleted as they are.
        self.tail_span = self.header.next_ordinal - head.ordinal
        self.tail_changed = False
        self.tail_bytes = len(block)
        self.tail_put_in = -1
        end = head.ordinal + head.span
        missing = self.header.next_ordinal - end
        if missing and (missing < 0 or DeadCounts(txn, self.number).dead_between(end, end + missing) != missing):
            raise CorruptionError(f"{missing} entries behind this node are missing", stream=name, node=f"{ms}-{seq}")
        self.tail_known = True

    def forget_tail(self) -> None:
        """The last node has been changed on disk, or is another: read it again when it is needed."""
        self.tail_key = b""
        self._read_tail_again()

    def _read_tail_again(self) -> None:
        self.tail = self.trial = None
        self.tail_known = self.header.leaves == 0
        self.tail_changed = False

    def _seal_tail(self, txn: WriteTransaction, tail: NodeBuilder) -> None:
        """Write the tail in its final form, now that it is full."""
        codec = self.header.limits.codec
        if codec != RAW and self.tail_put_in == txn.upto:
            txn.delete(self.tail_key)  # else the smaller value would keep the larger one's pages
        if self.tail_changed or codec != RAW:
            self._put_tail(txn, tail, codec)
        self.trial = None

    def _put_tail(self, txn: WriteTransaction, tail: NodeBuilder, codec: int) -> None:
        value = self.trial or self._tail_block(tail, codec)
        txn.put(self.tail_key, value)
        self.header.stored_bytes += len(value) - self.tail_bytes
        self.tail_bytes = len(value)
        self.tail_changed = False
        self.tail_put_in = txn.upto

    def _tail_block(self, tail: NodeBuilder, codec: int) -> bytes:
        if codec == RAW:
            return tail.sealed(self.tail_seed, self.tail_ordinal, self.tail_span)
        listpack = tail.listpack()
        if self._is_large(tail.size):
            tail.block.clear()  # it is full, and is not asked for it again
        return records.encode_block(self.tail_key, listpack, self.tail_ordinal, self.tail_span, tail.live, codec)

    def drop_node(self, txn: WriteTransaction, key: bytes, size: int) -> None:
        """Delete a node, whose block has ``size`` bytes."""
        txn.delete(key)
        self.header.leaves -= 1
        self.header.stored_bytes -= size

    def flush(self, txn: WriteTransaction) -> None:
        """Put tail and header, if changed, into the transaction."""
        if txn.dirty.pop(self.number, None) is None:
            return
        counted = txn.changes  # as they were made: what is put here is none that an error after it would undo
        if self.tail_changed and self.tail is not None:
            self._put_tail(txn, self.tail, RAW)
        header = self.header.sealed(self.header_seed)
        txn.put(self.header_key, header)
        self.stored = header
        txn.changes = counted

    def is_current(self, txn: WriteTransaction) -> bool:
        """Whether the stream is as it was left, or has been appended to, by what other processes have committed since.

        A change of its nodes changes its header, and no header recurs. The groups, which change independently,
        are asked by themselves, once they are needed. One read.
        """
        if self.epoch != txn.epoch:
            found = txn.get(self.header_key)
            if found != self.stored:
                if found is None or not self.header.follow(found, self.header_seed):
                    return False
                self.stored = found
                self._read_tail_again()
            self.idle_from = None
            self.epoch = txn.epoch
        return True


_follow: list[Callable[[WriteTransaction, StreamWriter, int, bool], None]] = []


def use(follow: Callable[[WriteTransaction, StreamWriter, int, bool], None]) -> None:
    """Register what after_append() calls where there is something to do: it asks the groups, which are above this."""
    _follow[:] = [follow]


def after_append(txn: WriteTransaction, stream: StreamWriter, now: int, releases: bool = True) -> None:
    """What follows the appends of a call to a stream: if it ``releases``, what is due; then the oldest nodes may go.

    A buffered append releases nothing: the IDs of those behind it have been given out.
    """
    if (releases and not stream.header.back <= now < stream.header.due) or stream.begun > 0:
        _follow[0](txn, stream, now, releases)


def append(name: bytes, limits: NodeLimits, new: NewID, now: int, flat: list[bytes], txn: WriteTransaction) -> StreamID:
    """Append one entry to the stream of that name, which is created where there is none; then what is due."""
    writer: StreamWriter | None = txn.warm.get(name)
    if writer is None or writer.epoch != txn.epoch:
        writer = ensure(txn, name, limits)
    sid = writer.append(txn, new, now, flat)
    after_append(txn, writer, now)
    return sid


def located(error: CorruptionError, stream: str, ms: int, seq: int) -> CorruptionError:
    """The same error with the names of stream and node in it."""
    error.stream = stream
    error.node = f"{ms}-{seq}"
    return error


def locate(txn: WriteTransaction, name: bytes) -> StreamWriter | None:
    """The writing end of the stream of that name; None if there is no such stream."""
    writer: StreamWriter | None = txn.warm.get(name)
    if writer is None or not writer.is_current(txn):
        found = headers.find(txn, name)
        if found is None:
            txn.warm.pop(name, None)
            return None
        groups = writer.groups if writer is not None and writer.number == found[0] else {}
        writer = txn.warm[name] = StreamWriter(*found, txn.epoch, txn.get(keys.header_key(found[0])))
        writer.groups = groups
    return writer


def forget(txn: WriteTransaction, stream: StreamWriter) -> None:
    """The stream is gone: nothing of it, its groups included, stays in memory."""
    for memory in (txn.warm, txn.dirty):
        for key, value in list(memory.items()):
            if getattr(value, "number", None) == stream.number:
                del memory[key]


def require(txn: WriteTransaction, name: bytes) -> StreamWriter:
    """locate(), or NoStream."""
    writer = locate(txn, name)
    if writer is None:
        raise NoStream(f"there is no stream {shown(name)}. The first append creates a stream.")
    return writer


def ensure(txn: WriteTransaction, name: bytes, limits: NodeLimits) -> StreamWriter:
    """locate(), or create()."""
    return locate(txn, name) or create(txn, name, limits)


def create(txn: WriteTransaction, name: bytes, limits: NodeLimits) -> StreamWriter:
    """A new, empty stream. StreamExists if the name is taken."""
    if locate(txn, name) is not None:
        raise StreamExists(f"there is a stream {shown(name)} already")
    value = txn.get(keys.STORE_KEY)
    if value is None:
        raise CorruptionError("the store's own record is missing")
    store = records.unseal(keys.STORE_KEY, value)
    number = store[3]
    store[3] = number + 1
    txn.put(keys.STORE_KEY, records.seal(keys.STORE_KEY, store))
    txn.put(keys.NAMES + name, records.seal(keys.NAMES + name, [number]))
    writer = txn.warm[name] = StreamWriter(number, StreamHeader(name, limits), txn.epoch)
    writer.changed(txn)
    return writer
