"""The streams of one open store: handles on them, their names, renaming and deleting."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..storage.errors import StreamExists
from ..storage.format import keys, records
from ..storage.log.cursor import cursor_over
from ..storage.log.transaction import WriteTransaction
from ..storage.trees.rax import Rax, RaxTransaction
from .entries import header as headers
from .entries import writer
from .entries.header import NodeLimits, shown
from .entries.idempotent import forget_gone
from .entries.retention import Retention
from .entries.session import Source, StoreSource, ask, require_writable
from .group.expiry import expire_named
from .group.unique import forget_ended
from .info import Maintenance
from .node.arguments import Codec, Name, Text, name_bytes, text_of
from .node.model import model_of
from .node.stream_id import now_ms
from .node.typed import Kind
from .node.values import checked_codec
from .stream import Stream
from .sweep import doom_stream, sweep


class Streams:
    """A part of ``Store``: its source, and the limits and the encoding that handles on streams get."""

    __slots__ = ("encoding", "limits", "source")

    def __init__(self, source: Source, limits: NodeLimits, encoding: str | None) -> None:
        self.source: Source = source
        self.limits: NodeLimits = limits
        self.encoding: str | None = encoding

    def bound(self, source: Source) -> Streams:
        """The same streams, with calls that go elsewhere (entries/session.py)."""
        return Streams(source, self.limits, self.encoding)

    def handle(self, name: Name, compression: str | None, node_max_bytes: int | None, node_max_entries: int | None,
               codec: Codec | None, kind: Kind, retention: Retention | None) -> Stream[Any]:
        """A handle on the stream of that name, which is configured where a retention is given."""
        limits = self.limits.changed(compression, node_max_bytes, node_max_entries)
        checked_codec(codec)
        stream = Stream[Any](self.source, name_bytes(name), limits, self.encoding, codec, model_of(kind))
        if retention is not None:
            stream.configure(retention=retention, codec=codec)
        return stream

    def names(self) -> list[Text]:
        """The names of all streams, in order of their bytes."""
        return [text_of(name, self.encoding) for name in ask(self.source, headers.all_names)]

    def names_between(self, start: bytes, end: bytes | None, count: int | None) -> list[Text]:
        """Those from ``start`` up to ``end``, which is not one of them: ``count`` at most."""
        found = ask(self.source, partial(headers.names_between, start=start, end=end, count=count))
        return [text_of(name, self.encoding) for name in found]

    def rename(self, old: Name, new: Name) -> bool:
        """Rename a stream; False if it has that name already. NoStream, StreamExists."""
        before, after = name_bytes(old), name_bytes(new)

        def operation(txn: WriteTransaction) -> bool:
            stream = writer.require(txn, before)
            if before == after:
                return False
            _require_free(txn, after)
            txn.delete(keys.NAMES + before)
            txn.put(keys.NAMES + after, records.seal(keys.NAMES + after, [stream.number]))
            stream.header.name = after
            txn.warm[after] = txn.warm.pop(before)
            stream.changed(txn)
            return True

        require_writable(self.source, "write")
        return self.source.submit(operation)

    def copy(self, name: Name, to: Name) -> None:
        """Copy a stream with everything in it, in one commit. NoStream, StreamExists."""
        before, after = name_bytes(name), name_bytes(to)

        def operation(txn: WriteTransaction) -> None:
            stream = writer.require(txn, before)
            _require_free(txn, after)
            txn.flush()
            copy = writer.create(txn, after, stream.header.limits)
            _copy_rows(txn, stream.number, copy.number)
            copy.header = headers.StreamHeader.from_row([after, *stream.header.row()[1:]])
            copy.forget_tail()

        require_writable(self.source, "write")
        self.source.submit(operation)

    def restore(self, name: Name, payload: bytes, replace: bool) -> None:
        """Make a stream of a payload of DUMP, in one commit."""
        from .dump import dump  # noqa: PLC0415 - loaded where it is used

        require_writable(self.source, "write")
        dump.restore(self.source, name_bytes(name), payload, self.limits, replace)
        if replace and isinstance(self.source, StoreSource):
            sweep(self.source)

    def delete(self, name: Name) -> bool:
        """Delete a stream in one commit, then its nodes in further ones; False if there is none."""
        wanted = name_bytes(name)
        require_writable(self.source, "write")
        gone = self.source.submit(lambda txn: doom_stream(txn, wanted))
        if gone and isinstance(self.source, StoreSource):
            sweep(self.source)
        return gone

    def maintain(self, exact: bool) -> Maintenance:
        """Apply every stream's retention, in pieces, and forget idempotent IDs, and unique names that are free."""
        require_writable(self.source, "maintain")
        freed: dict[Text, int] = {}
        for name in ask(self.source, _to_maintain):
            gone, more = 0, True
            while more:
                some, more = self.source.submit(partial(expire_named, name, now_ms(), exact))
                gone += some
            if gone:
                freed[text_of(name, self.encoding)] = gone
            for forget in (forget_gone, forget_ended):
                after: bytes | None = b""
                while after is not None:
                    after = self.source.submit(partial(forget, name, now_ms(), after))
        return Maintenance(freed)


def _require_free(txn: WriteTransaction, name: bytes) -> None:
    if writer.locate(txn, name) is not None:
        raise StreamExists(f"there is a stream {shown(name)} already; delete it first")


def _copy_rows(txn: WriteTransaction, number: int, to: int) -> None:
    """Copy all rows of a stream but its header. Those of groups that were destroyed, and are to be swept, stay."""
    groups = {key for key, _ in Rax(txn, keys.family(number, keys.GROUP)).items()}
    start, behind = keys.stream_span(number)
    head = to.to_bytes(8, "big")
    cursor = cursor_over(txn)
    found = cursor.set_range(start)
    while found and (key := cursor.key()) < behind:
        if key[8] != keys.HEADER and (key[8] not in keys.GROUP_KINDS or key[9:13] in groups):
            txn.put(head + key[8:], records.moved(key, cursor.value(), head + key[8:]))
        found = cursor.set_range(key + b"\0")


def _to_maintain(txn: RaxTransaction) -> list[bytes]:
    """The names of the streams that have a retention, or remember idempotent IDs or unique names."""
    found = ((name, headers.find(txn, name)) for name in headers.all_names(txn))
    return [name for name, located in found if located is not None and (located[1].retention is not None or any(
        Rax(txn, keys.family(located[0], kind)).first() is not None for kind in (keys.IDEMPOTENT_AGE, keys.UNIQUE)))]
