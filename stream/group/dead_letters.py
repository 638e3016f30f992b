"""Dead letters: entries that a group has given up, in a stream of their own, each with what has happened.

    orders             5-0  item=book                      pending in group mail, delivered 20 times
          │  one commit: appended there, acknowledged here
    orders.mail.dead   8-0  $dead={"id":"5-0", …}  item=book

The first field, ``$dead``, is a JSON object; the fields behind it are those of the entry, in their order:

    id           the entry's ID in its stream              stream, group, consumer    where it was pending
    deliveries   how often it was delivered                reason    failed, discarded, exhausted or malformed
    error        the last exception's type and text        traceback its text, the last 4,000 characters
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.errors import InvalidArgument
from ..entries import delete as deleting
from ..entries import header as headers
from ..entries import writer
from ..entries.header import NodeLimits
from ..entries.range_read import get, read_range
from ..entries.session import Source, in_pieces
from ..node.arguments import Name, name_bytes
from ..node.entry import Entry
from ..node.packed_ids import row_of
from ..node.stream_id import AUTO, IDLike, StreamID, now_ms, parse_id
from . import deliver
from .expiry import expire_begun
from .state import locate_group

DEAD_FIELD = b"$dead"

_TRACEBACK = 4000  # characters
_PIECE = 1000  # letters a commit


class DeadLetter(NamedTuple):
    """One dead letter: ``id`` is its ID in the dead letters' stream, ``entry`` the original, with its own ID."""

    id: StreamID
    entry: Entry
    reason: str
    error: str
    traceback: str
    deliveries: int
    consumer: str

    @property
    def origin(self) -> StreamID:
        """The ID that the entry had in its stream."""
        return self.entry.id


class DeadLetters:
    """The dead letters of one group, oldest first: ``for letter in group.dead_letters``."""

    __slots__ = ("_group", "_origin", "_shown", "_source", "name")

    def __init__(self, source: Source, stream: bytes, group: bytes, shown: Callable[..., list[Entry]],
                 name: Name | None) -> None:
        self._source = source
        self._origin = stream
        self._group = group
        self._shown = shown
        self.name = stream + b"." + group + b".dead" if name is None else name_bytes(name)
        if self.name == stream:
            raise InvalidArgument(f"stream {headers.shown(stream)} cannot hold its own dead letters; name another")

    def __iter__(self) -> Iterator[DeadLetter]:
        return map(self._letter, read_range(self._source, self.name, StreamID.MIN, StreamID.MAX, None, False, None))

    def __len__(self) -> int:
        with self._source.read() as txn:
            found = headers.find(txn, self.name)
        return 0 if found is None else found[1].length

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<raxlog.DeadLetters {headers.shown(self.name)} of group {headers.shown(self._group)}>"

    def get(self, id: IDLike) -> DeadLetter | None:
        """The letter with this ID; None if there is none."""
        entry = get(self._source, self.name, parse_id(id), None)
        return None if entry is None else self._letter(entry)

    def bury(self, consumer: bytes, entry: Entry, reason: str, error: str, traceback: str) -> None:
        """Give up an entry that is pending with this consumer. NotOwner if it is not, with nothing changed."""
        pairs = list(chain.from_iterable(entry.pairs))
        about = {"id": str(entry.id), "stream": _text(self._origin), "group": _text(self._group),
                 "consumer": _text(consumer), "deliveries": entry.deliveries, "reason": reason, "error": error,
                 "traceback": traceback[-_TRACEBACK:]}
        flat = [DEAD_FIELD, json.dumps(about, ensure_ascii=False).encode("utf-8", "backslashreplace"), *pairs]
        row = row_of([entry.id])

        def operation(txn: WriteTransaction) -> None:
            stream = writer.locate(txn, self._origin)
            group = None if stream is None else locate_group(txn, stream, self._group)
            deliver.require_owner(txn, self._origin, group, self._group, consumer, row)
            assert group is not None
            letters, now = writer.ensure(txn, self.name, NodeLimits()), now_ms()
            letters.append(txn, AUTO, now, flat)
            if letters.begun > 0:
                expire_begun(txn, letters, now)
            deliver.ack(txn, group, row)

        self._source.submit(operation)

    def replay(self, *ids: IDLike, where: Callable[[DeadLetter], object] | None = None) -> int:
        """Append the entries of dead letters to their stream again, with new IDs; returns how many.

        The letters with these IDs, or those for which ``where`` is true, or all. One commit appends each entry
        and deletes its letter; it takes up to 1,000 letters. All groups of the stream receive the entries.
        """
        def move(some: list[StreamID], txn: WriteTransaction) -> int:
            letters = writer.locate(txn, self.name)
            found = [] if letters is None else deliver.fetch(txn, letters, list(some))
            there = [entry for entry in found if entry is not None]  # no other call has moved it
            if letters is None or not there:
                return 0
            stream, now = writer.ensure(txn, self._origin, NodeLimits()), now_ms()
            for entry in there:
                stream.append(txn, AUTO, now, list(chain.from_iterable(_pairs(entry))))
            return deleting.delete(txn, letters, [entry.id for entry in there])

        return sum(in_pieces(self._source, self._chosen(ids, where), move, _PIECE))

    def purge(self, *ids: IDLike, where: Callable[[DeadLetter], object] | None = None) -> int:
        """Delete letters, chosen as for replay(); returns how many. 1,000 per commit."""
        def remove(some: list[StreamID], txn: WriteTransaction) -> int:
            letters = writer.locate(txn, self.name)
            return 0 if letters is None else deleting.delete(txn, letters, some)

        return sum(in_pieces(self._source, self._chosen(ids, where), remove, _PIECE))

    def _chosen(self, ids: tuple[IDLike, ...], where: Callable[[DeadLetter], object] | None) -> list[StreamID]:
        """The IDs of letters: those given, or of all, as far as ``where`` is true."""
        if ids and where is None:
            return sorted({parse_id(sid) for sid in ids})
        letters = iter(self) if not ids else filter(None, map(self.get, sorted({parse_id(sid) for sid in ids})))
        return [letter.id for letter in letters if where is None or where(letter)]

    def _letter(self, entry: Entry) -> DeadLetter:
        about = _about(entry)
        origin = parse_id(about.get("id", "0-0"))
        own = Entry(origin.ms, origin.seq, _pairs(entry))
        own.deliveries = about.get("deliveries", 0)
        [shown] = self._shown([own])
        reason, error, traceback, consumer = (
            str(about.get(name, "")) for name in ("reason", "error", "traceback", "consumer"))
        return DeadLetter(entry.id, shown, reason, error, traceback, own.deliveries, consumer)


def _about(entry: Entry) -> dict[str, Any]:
    """What has happened to an entry; nothing, where another program has put it there."""
    if entry.names[0] == DEAD_FIELD:
        with suppress(ValueError):
            about = json.loads(entry.values[0])
            return about if isinstance(about, dict) else {}
    return {}


def _pairs(entry: Entry) -> list[tuple[Any, Any]]:
    """The fields that the entry had."""
    return entry.pairs[1:] if entry.names[0] == DEAD_FIELD else entry.pairs


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
