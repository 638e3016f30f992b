"""Lost data: entries asked for that have been trimmed away, as Kafka's source understands it.

    startingOffsets       5-0
                           |         gone          | first node
    entries                . . . . . . . . . . . . | x x 9-0 9-1 …      first live one: 9-0

A scan that starts at an ID expects every entry after it. If the stream has been trimmed so that its
first entry follows that ID, entries may be missing, which the rows would not show. "earliest", and a
time, read what there is.

It may be a false alarm, as with Kafka: neither the IDs of what is gone are known, nor whether it was
trimmed or deleted by ID.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ...recovery.snapshot.manifest import StreamSummary
from ...storage.errors import StreamError
from ...storage.format import keys, records
from ...storage.trees.rax import Rax, RaxTransaction
from ...stream.entries import header as headers
from ...stream.entries.header import StreamHeader, shown
from ...stream.entries.session import Source
from ...stream.node.stream_id import StreamID, make_id
from .options import Options


def lost(what: str, options: Options) -> None:
    """Report what is gone: a StreamError, or a warning where ``failOnDataLoss`` is false."""
    if options.fail_on_data_loss:
        raise StreamError(f"{what}. Set option failOnDataLoss to false to go on with what is there.")
    warnings.warn(f"{what}; going on, since failOnDataLoss is false", stacklevel=3)


def check(source: Source, names: Sequence[bytes], options: Options) -> None:
    """Report streams that have lost entries after the ID that ``startingOffsets`` names. CorruptionError."""
    since = options.since
    if since is None:
        return
    with source.read() as txn:
        for name in names:
            found = headers.find(txn, name)
            if found is not None and _may_miss(txn, *found, since):
                _report(name, since, make_id(*found[1].first) if found[1].length else None, options)


def check_summaries(streams: Sequence[StreamSummary], names: Sequence[bytes], options: Options) -> None:
    """The same for shards, whose manifest holds only how many entries are gone, not from where."""
    since = options.since
    for stream in streams:
        if since is not None and stream._raw in names and stream.next_ordinal > stream.length:
            behind = stream.last_generated_id if stream.first is None else stream.first.prev()
            if since <= behind:
                _report(stream._raw, since, stream.first, options)


def _may_miss(txn: RaxTransaction, number: int, header: StreamHeader, since: StreamID) -> bool:
    prefix = keys.family(number, keys.NODE)
    first = Rax(txn, prefix).first()
    if first is None or not header.length:
        return since <= header.last and header.next_ordinal > 0
    if since >= header.first:
        return False
    # A node has the ID of the first entry it ever held.
    key = prefix + first[0]
    master = records.node_id(key)
    return master < header.first or (master >= since and records.block_header(key, first[1]).ordinal > 0)


def _report(name: bytes, since: StreamID, first: StreamID | None, options: Options) -> None:
    lost(
        f"entries of stream {shown(name)} from {since} on may have been trimmed away: its first entry is "
        f"{'none' if first is None else first}, and some that came before are gone",
        options,
    )
