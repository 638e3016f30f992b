"""The streams of one open store: handles on them, their names, renaming and deleting."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..storage.commit.write_transaction import WriteTransaction
from ..storage.errors import StreamExists
from ..storage.format import keys, records
from ..storage.trees.rax import RaxTransaction
from .entries import header as headers
from .entries import writer
from .entries.header import NodeLimits, shown
from .entries.session import Direct, Source, ask
from .entries.sweep import doom_stream, sweep
from .group.expiry import expire_named
from .node.arguments import Name, Text, name_bytes, text_of
from .node.model import model_of
from .node.stream_id import now_ms
from .node.values import checked_codec
from .stream import Stream


class Streams:
    """A part of ``Store``: its source, and the limits and the encoding that handles on streams get."""

    __slots__ = ("encoding", "limits", "source")

    def __init__(self, source: Direct, limits: NodeLimits, encoding: str | None) -> None:
        self.source = source
        self.limits = limits
        self.encoding = encoding
        if not source.env.readonly:
            sweep(source)

    def handle(self, name: Name, compression: str | None, node_max_bytes: int | None,
               node_max_entries: int | None, codec: str | None, kind: Any, source: Source | None = None) -> Stream:
        """A handle on the stream of that name: of a transaction, if ``source`` is its."""
        limits = self.limits.changed(compression, node_max_bytes, node_max_entries)
        checked_codec(codec)
        return Stream(source or self.source, name_bytes(name), limits, self.encoding, codec, model_of(kind))

    def names(self) -> list[Text]:
        """The names of all streams, in order of their bytes."""
        return [text_of(name, self.encoding) for name in ask(self.source, headers.all_names)]

    def rename(self, old: Name, new: Name) -> bool:
        """Rename a stream; False if it has that name already. NoStream, StreamExists."""
        before, after = name_bytes(old), name_bytes(new)

        def operation(txn: WriteTransaction) -> bool:
            stream = writer.require(txn, before)
            if before == after:
                return False
            if writer.locate(txn, after) is not None:
                raise StreamExists(f"there is a stream {shown(after)} already; delete it first")
            txn.delete(keys.NAMES + before)
            txn.put(keys.NAMES + after, records.seal(keys.NAMES + after, [stream.number]))
            stream.header.name = after
            txn.warm[after] = txn.warm.pop(before)
            stream.changed(txn)
            return True

        self.source.require_writable("write")
        return self.source.submit(operation)

    def delete(self, name: Name) -> bool:
        """Delete a stream in one commit, then its nodes in further ones; False if there is none."""
        wanted = name_bytes(name)
        self.source.require_writable("write")
        gone = self.source.submit(lambda txn: doom_stream(txn, wanted))
        if gone:
            sweep(self.source)
        return gone

    def maintain(self) -> dict[Text, int]:
        """Apply every stream's retention, in pieces; the entries that went, by stream."""
        self.source.require_writable("maintain")
        freed: dict[Text, int] = {}
        for name in ask(self.source, _retaining):
            gone, more = 0, True
            while more:
                some, more = self.source.submit(partial(expire_named, name, now_ms()))
                gone += some
            if gone:
                freed[text_of(name, self.encoding)] = gone
        return freed


def _retaining(txn: RaxTransaction) -> list[bytes]:
    """The names of the streams that have a retention."""
    found = ((name, headers.find(txn, name)) for name in headers.all_names(txn))
    return [name for name, there in found if there is not None and there[1].retention is not None]
