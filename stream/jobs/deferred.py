"""A deferred entry as its users hold it: made by Stream.defer() and Stream.deferred(), which explain it.

    defer ──> record ── due ──> release: by a read that waits, a group's read, an append      entries/deferred.py

A read that waits sleeps until the first entry is due, and then releases what is; so it does in every process, and
the first of them is enough. The time is the wall clock's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ...storage import clocks
from ...storage.errors import InvalidArgument, LockTimeout, StoreFull, TransactionError
from ...storage.handles import made_by_a_call
from ...storage.log.transaction import WriteTransaction
from ..entries import deferred as records
from ..entries import header as headers
from ..entries import writer
from ..entries.header import NodeLimits
from ..entries.session import Source, StoreSource
from ..entries.unique import Appended, Holder, Wish, appended
from ..node.arguments import duration_ms, moment_ms, text_of
from ..node.decode import flatten
from ..node.entry import Entry, FieldText
from ..node.stream_id import MAX64, now_ms, time_at, unpack_id

LATEST = moment_ms("the last", datetime.max.replace(tzinfo=UTC)) - 1
_TOKEN = re.compile(r"(\d{1,19})-(\d{1,15})-(\d{1,19})", re.ASCII)
_PATIENCE = 0.05  # seconds that a read which need not write waits for other writers
_RETRY = 20  # ms until it tries again

FindHolder = Callable[[WriteTransaction, writer.StreamWriter, Wish, int], Holder | None]
Take = Callable[[WriteTransaction, writer.StreamWriter, Wish, Holder, int], None]


class Deferred:
    """An entry that is appended once it is due, made by stream.defer(). In a transaction, cancel() is part of it.

    ``is_new``: False where defer(unique=…) has found that this one keeps the name, and has deferred nothing.
    """

    __slots__ = ("_due", "_encoding", "_flat", "_number", "_place", "_source", "_stream", "is_new")

    @made_by_a_call
    def __init__(self, source: Source | None, stream: bytes, encoding: str | None, number: int, due: int, place: int,
                 flat: list[bytes]) -> None:
        self._source = source
        self._stream = stream
        self._encoding = encoding
        self._number = number  # of the stream
        self._due = due
        self._place = place
        self._flat = flat
        self.is_new: bool = True

    @property
    def token(self) -> str:
        """The name of this deferred entry in every process: see Stream.cancel_deferred()."""
        return token_of(self._number, self._due, self._place)

    @property
    def due(self) -> datetime:
        """The time at which it is due, in UTC."""
        return time_at(self._due)

    @property
    def fields(self) -> dict[FieldText, FieldText]:
        """Its fields, like those of an Entry."""
        return Entry(0, 0, self.pairs).fields

    @property
    def pairs(self) -> list[tuple[FieldText, FieldText]]:
        """The fields as (name, value) pairs, in the order they were given."""
        texts = [text_of(text, self._encoding) for text in self._flat]
        return list(zip(texts[::2], texts[1::2], strict=True))

    def cancel(self) -> bool:
        """Stream.cancel_deferred() with its token. TransactionError of a copy by pickle, which has no store."""
        if self._source is None:
            raise TransactionError(f"{self!r} is a copy, and has no store: call cancel_deferred() with its token")
        return cancel(self._source, self._stream, self.token)

    def to_dict(self) -> dict[str, object]:
        """``{"token": "1-…", "due": …, "fields": {…}, "is_new": True}``, the fields as those of Entry.to_dict()."""
        fields = Entry(0, 0, self.pairs).to_dict()["fields"]
        return {"token": self.token, "due": self.due, "fields": fields, "is_new": self.is_new}

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Deferred) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.token)

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        return None, {name: None if name == "_source" else getattr(self, name) for name in self.__slots__}

    def __repr__(self) -> str:
        return f"<raxlog.Deferred {self.token}, due {self.due:%Y-%m-%d %H:%M:%S} UTC, {self.fields!r}>"


def defer(source: Source, stream: bytes, limits: NodeLimits, encoding: str | None, fields: Any, codec: str | None,
          delay: float | None, at: datetime | None, wish: Wish | None, find: FindHolder, take: Take
          ) -> Deferred | Appended:
    """Stream.defer(). ``find`` and ``take`` are those of group/unique.py: the groups know whether a name is kept."""
    flat = flatten(fields)
    now = now_ms()
    due = _parse_due(delay, at, now)

    def operation(txn: WriteTransaction) -> Deferred | Appended:
        located = writer.ensure(txn, stream, limits)
        kept = None if wish is None else find(txn, located, wish, now)
        if kept is not None:
            if not kept.is_deferred:
                return appended(kept.ms, kept.seq)
            fields = records.get(txn, located.number, kept.ms, kept.seq)
            found = Deferred(source, stream, encoding, located.number, kept.ms, kept.seq, fields)
            found.is_new = False
            return found
        had = located.header.next_ordinal
        given = flat if wish is None else wish.marked(flat)
        place = records.put(txn, located, due, now, given)
        if wish is not None:
            take(txn, located, wish, wish.holder(due, place, now, 1), now)
        if located.header.is_due(now):
            records.release(txn, located, now)
        located.header.begin_codec(codec, had)
        return Deferred(source, stream, encoding, located.number, due, place, given)

    return source.submit(operation)


def token_of(number: int, due: int, place: int) -> str:
    """The token of a deferred entry of the stream with this number."""
    return f"{number}-{due}-{place}"


def _parse_due(delay: float | None, at: datetime | None, now: int) -> int:
    """When an entry is due, in ms since 1970."""
    if (delay is None) == (at is None):
        raise InvalidArgument("defer() needs one of delay, in seconds, and at, a datetime")
    due = moment_ms("at", at) if delay is None else now + duration_ms("delay", delay)
    if due > LATEST:
        raise InvalidArgument(f"an entry cannot be deferred beyond the year 9999, to {due} ms since 1970")
    return max(due, 0)


def cancel(source: Source, stream: bytes, token: str) -> bool:
    """Stream.cancel_deferred()."""
    match = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    if match is None:
        raise InvalidArgument(f"{token!r:.60} is not a token of a deferred entry")
    number, due, place = map(int, match.groups())

    def operation(txn: WriteTransaction) -> bool:
        located = writer.locate(txn, stream)
        return located is not None and located.number == number and records.remove(txn, located, due, place)

    return source.submit(operation)


def read_deferred(source: Source, stream: bytes, encoding: str | None) -> Iterator[Deferred]:
    """Stream.deferred()."""
    after, number = b"", None
    while True:
        with source.read() as txn:
            found = headers.find(txn, stream, number)
            if found is None or number not in (None, found[0]):
                return
            number = found[0]
            rows = records.rows(txn, number, found[1], after, MAX64)
        if not rows:
            return
        for key, (flat, *_) in rows:
            due, place = unpack_id(key)
            yield Deferred(source, stream, encoding, number, due, place, flat)
        after = rows[-1][0]


def release_due(source: Source, stream: bytes, due: int | None) -> float | None:
    """Append what is due of a stream, for a read that need not write.

    ``due``: of the first entry deferred. Returns when to look again, in clocks.monotonic(); None for no reason to.
    In a store that it may not write to, or where it cannot just now, the read goes on without.
    """
    env = source.env
    if due is None or not isinstance(source, StoreSource) or env.readonly or env.commits.in_own_transaction():
        return None
    now = now_ms()
    if due <= now:
        due = now + _RETRY
        with suppress(LockTimeout, StoreFull):
            source.submit(partial(_release, stream, now), _PATIENCE)
    return clocks.monotonic() + (due - now) / 1000


def _release(stream: bytes, now: int, txn: WriteTransaction) -> None:
    located = writer.locate(txn, stream)
    if located is not None and located.header.is_due(now):
        records.release(txn, located, now)
