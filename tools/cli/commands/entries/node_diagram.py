"""One node drawn: the block around it, its master entry, its entries, their bytes.

    node 1-1 of stream 'orders'
      block      82 bytes, codec raw, 1 page, entries no. 0 to 1 of the stream, 2 live
      listpack   52 bytes, 14 elements, frame 34 00 00 00 0e 00

      offset  bytes  what            flags               fields
           6     21  master          2 live, 0 deleted   item qty
          27     14  1-1             SAMEFIELDS          item=book  qty=2
                     02 01 00 01 00 01 84 62 6f …

The whole node is validated first; then the elements are read one by one, as decode.py lays
them out.
"""

from __future__ import annotations

from typing import NamedTuple

from .....storage.errors import CorruptionError
from .....storage.format import records
from .....stream.entries.header import shown
from .....stream.entries.writer import located
from .....stream.node import decode, listpack
from .....stream.node.json_form import fields_form
from .....stream.node.stream_id import MAX64, StreamID
from .... import output

_DELETED = 1
_SAMEFIELDS = 2
_FLAGS = ("-", "DELETED", "SAMEFIELDS", "DELETED SAMEFIELDS")
_MOST_BYTES = 32  # of an element row in text; JSON has them all
_CODECS = {records.RAW: "raw", records.ZSTD: "zstd"}


class _StoredEntry(NamedTuple):
    offset: int
    raw: bytes
    id: StreamID
    flags: int
    pairs: list[tuple[bytes, bytes]]


class DrawnNode:
    """The block ``value`` under ``key``, taken apart. CorruptionError, with the place, if it is damaged."""

    def __init__(self, stream: bytes, key: bytes, value: bytes) -> None:
        self.stream, self.stored = stream, len(value)
        self.id: StreamID = StreamID(*records.node_id(key))
        try:
            self.head, self.listpack = records.open_block(key, value)
            self.live, self.deleted, _, _ = decode.validate_node(self.listpack, *self.id)
        except CorruptionError as error:
            raise located(error, shown(stream), *self.id) from None
        offsets, values = _elements(self.listpack)
        self.elements: int = len(values)
        width = int(values[2])
        self.fields: list[bytes] = values[3 : 3 + width]
        at = 4 + width  # after the 0 that ends the master entry
        self.master: bytes = self.listpack[offsets[0] : offsets[at]]
        self.rows: list[_StoredEntry] = []
        while at < len(values):
            start, flags = at, int(values[at])
            ms, seq = self.id.ms + int(values[at + 1]) & MAX64, self.id.seq + int(values[at + 2]) & MAX64
            at += 3
            if flags & _SAMEFIELDS:
                pairs = list(zip(self.fields, values[at : at + width], strict=True))
                at += width
            else:
                own = int(values[at])
                flat = values[at + 1 : at + 1 + 2 * own]
                pairs = list(zip(flat[::2], flat[1::2], strict=True))
                at += 1 + 2 * own
            at += 1  # lp-count
            raw = self.listpack[offsets[start] : offsets[at]]
            self.rows.append(_StoredEntry(offsets[start], raw, StreamID(ms, seq), flags, pairs))

    def to_dict(self) -> dict[str, object]:
        """The node for JSON, its bytes in hexadecimal."""
        return {
            "stream": self.stream,
            "node": self.id,
            "block": {"bytes": self.stored, "codec": _CODECS[self.head.codec], "ordinal": self.head.ordinal,
                      "span": self.head.span, "live": self.head.live},
            "listpack": {"bytes": len(self.listpack), "elements": self.elements, "frame": self.listpack[:6].hex()},
            "master": {"offset": 6, "bytes": self.master.hex(), "live": self.live, "deleted": self.deleted,
                       "fields": self.fields},
            "entries": [
                {"id": row.id, "offset": row.offset, "bytes": row.raw.hex(), "flags": row.flags,
                 "deleted": bool(row.flags & _DELETED), "same_fields": bool(row.flags & _SAMEFIELDS),
                 "fields": fields_form(row.pairs)}
                for row in self.rows
            ],
        }  # fmt: skip

    def text(self) -> str:
        head = self.head
        pages = output.many(records.page_run(self.stored), "page") if self.stored > 2006 else "within a shared page"
        counted = f"{self.live} live, {self.deleted} deleted"
        cells = [("6", str(len(self.master)), "master", counted, " ".join(map(output.text, self.fields)))]
        for row in self.rows:
            fields = "  ".join(f"{output.text(name)}={output.text(value)}" for name, value in row.pairs)
            cells.append((str(row.offset), str(len(row.raw)), str(row.id), _FLAGS[row.flags], fields))
        heading, *table = output.table(cells, (0, 1), ("offset", "bytes", "what", "flags", "fields"))
        lines = [
            f"node {self.id} of stream {shown(self.stream)}",
            f"  block      {self.stored:,} bytes, codec {_CODECS[head.codec]}, {pages}, "
            f"entries no. {head.ordinal:,} to {head.ordinal + head.span - 1:,} of the stream, {head.live} live",
            f"  listpack   {len(self.listpack):,} bytes, {output.many(self.elements, 'element')}, "
            f"frame {self.listpack[:6].hex(' ')}",
            "",
            f"  {heading}",
        ]
        for line, raw in zip(table, (self.master, *(row.raw for row in self.rows)), strict=True):
            dump = raw[:_MOST_BYTES].hex(" ") + (" …" if len(raw) > _MOST_BYTES else "")
            lines += [f"  {line}", f"                 {dump}"]
        return "\n".join(lines)


def _elements(packed: bytes) -> tuple[list[int], list[bytes]]:
    """Offsets and values of all elements; the offsets end with that of the end mark."""
    offsets = []
    at = listpack.first(packed)
    while at >= 0:
        offsets.append(at)
        at = listpack.next(packed, at)
    return [*offsets, len(packed) - 1], [listpack.get(packed, at) for at in offsets]
