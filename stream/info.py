"""What a stream tells of itself: XINFO STREAM, with our own figures added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..storage.errors import CorruptionError, NoStream
from ..storage.format import block, keys
from ..storage.trees.rax import Rax
from .entries import header as headers
from .entries.header import shown
from .entries.range_read import read_range
from .entries.session import Source
from .node.entry import Entry
from .node.names import text_of
from .node.stream_id import StreamID, make_id

if TYPE_CHECKING:
    from .stream import Stream

_CODECS = {block.RAW: "none", block.ZSTD: "zstd"}


class StreamInfo(NamedTuple):
    """A stream at one moment. The first eight figures are those of XINFO STREAM."""

    name: bytes | str
    length: int  # live entries
    radix_tree_keys: int  # nodes
    radix_tree_nodes: int | None  # nodes of the rax, inner ones included; None where they were not counted
    last_generated_id: StreamID
    max_deleted_entry_id: StreamID
    entries_added: int
    recorded_first_entry_id: StreamID
    first_entry: Entry | None
    last_entry: Entry | None
    next_ordinal: int  # entries really ever added, whatever set_id made of entries_added
    node_bytes: int  # page rule: what a block fills, or more to fill its pages; Redis' rule: node_max_bytes
    node_rule: str  # "page" or "redis"
    node_max_entries: int
    compression: str

    def as_dict(self) -> dict[str, Any]:
        """The figures under the names XINFO STREAM uses, for printing as JSON."""
        figures = {name.replace("_", "-"): value for name, value in self._asdict().items()}
        if self.radix_tree_nodes is None:
            del figures["radix-tree-nodes"]
        return figures


def describe(source: Source, name: bytes, number: int | None, encoding: str | None,
             full: bool = False) -> StreamInfo | None:
    """The figures of a stream, None if there is none. With ``full`` the keys of all nodes are walked once."""
    with source.read() as txn:
        found = headers.find(txn, name, number)
        if found is None:
            return None
        number, header = found
        inner = None
        if full:
            nodes = Rax(txn, keys.family(number, keys.NODE))
            inner, leaves = nodes.numnodes, nodes.numele
            if leaves != header.leaves:
                raise CorruptionError(f"{header.leaves} nodes should be there and {leaves} are", stream=shown(name))
    everything = (source, name, StreamID.MIN, StreamID.MAX, 1)
    first = next(iter(read_range(*everything, False, encoding)), None)
    last = next(iter(read_range(*everything, True, encoding)), None)
    limits = header.limits
    return StreamInfo(
        name=text_of(name, encoding),
        length=header.length,
        radix_tree_keys=header.leaves,
        radix_tree_nodes=inner,
        last_generated_id=make_id(*header.last),
        max_deleted_entry_id=make_id(*header.max_deleted),
        entries_added=header.entries_added,
        recorded_first_entry_id=make_id(*header.first),
        first_entry=first,
        last_entry=last,
        next_ordinal=header.next_ordinal,
        node_bytes=limits.page_bytes if limits.max_bytes is None else limits.max_bytes,
        node_rule="page" if limits.max_bytes is None else "redis",
        node_max_entries=limits.max_entries,
        compression=_CODECS[limits.codec],
    )


# -- beneath: what drawings are made of -----------------------------------------------------


def header_of(stream: Stream) -> headers.StreamHeader | None:
    """The stream's own record, for figures that must not cost a walk. None where there is no stream."""
    with stream._source.read() as txn:
        found = headers.find(txn, stream.name)
    return None if found is None else found[1]


def draw_rax(stream: Stream) -> str:
    """The radix tree over the master IDs of the stream's nodes, as raxShow draws it. NoStream."""
    with stream._source.read() as txn:
        return Rax(txn, keys.family(_found(txn, stream)[0], keys.NODE)).show()


def stored_node(stream: Stream, id: StreamID) -> tuple[bytes, bytes] | None:
    """The node that holds an ID, or would: its key and its block as stored, unchecked. NoStream.

    None where every node begins behind the ID.
    """
    with stream._source.read() as txn:
        prefix = keys.family(_found(txn, stream)[0], keys.NODE)
        leaf = Rax(txn, prefix).floor(bytes(id))
        return None if leaf is None else (prefix + leaf[0], bytes(leaf[1]))


def _found(txn: Any, stream: Stream) -> tuple[int, headers.StreamHeader]:
    found = headers.find(txn, stream.name)
    if found is None:
        raise NoStream(f"there is no stream {shown(stream.name)} in {stream._source.env.path}")
    return found
