"""Dead letters: entries that a group has given up, in a stream of their own, each with what has happened.

    orders             5-0  item=book                      pending in group mail, delivered 20 times
          │  one commit: appended there, acknowledged here
    orders.mail.dead   8-0  $dead={"id":"5-0", …}  item=book

The first field, ``$dead``, is a JSON object; the fields behind it are those of the entry, in their order:

    id           the entry's ID in its stream              stream, group, consumer    where it was pending
    deliveries   how often it was delivered                reason    failed, discarded, exhausted, malformed, cancelled
    error        the last exception's type and text, or    traceback its text, the last 4,000 characters
                 why it was cancelled

Several groups can have one stream of dead letters: "b.c" of "a" and "c" of "a.b" do by default. So a letter is that
of the group which it names; one that cannot be read is shown by each group of the stream, and is never replayed. A
stream whose first entry has no ``$dead`` holds something else, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic

from ...storage.engine.environment import Attachment, Environment
from ...storage.errors import InvalidArgument, InvalidStreamID
from ...storage.figures import Figures
from ...storage.format import keys
from ...storage.handles import made_by_a_call
from ...storage.log.transaction import WriteTransaction
from ..entries import delete as deleting
from ..entries import header as headers
from ..entries import writer
from ..entries.header import NodeLimits
from ..entries.range_read import get, read_range
from ..entries.session import SnapshotSource, Source, StoreSource, in_pieces
from ..jobs.results import CANCELLED, FOUND_FOR, UNTIL_PASSED, Given, name_of
from ..jobs.results import put as put_result
from ..node.arguments import Name, Text, name_bytes, text_of
from ..node.entry import Entry
from ..node.packed_ids import row_of
from ..node.stream_id import AUTO, MAX64, IDLike, IDs, StreamID, ascending, given_ids, now_ms, parse_id
from ..node.typed import V
from . import deliver, subject_filter
from .state import UNOWNED, GroupState, locate_group, require_group
from .unique import take_again

if TYPE_CHECKING:
    from ..node import typed

DEAD_FIELD = b"$dead"

_TRACEBACK = 4000  # characters
_PIECE = 1000  # letters a commit
_KINDS = {"id": str, "stream": str, "group": str, "consumer": str, "deliveries": int, "reason": str, "error": str,
          "traceback": str}


@dataclass(frozen=True, slots=True)
class DeadLetter(Figures, Generic[V]):
    """One dead letter: ``id`` is its ID in the dead letters' stream, ``entry`` the original, with its own ID.

    One that cannot be read is "malformed", with an error that says how, and an entry 0-0 with all its fields.
    """

    id: StreamID
    entry: typed.Entry[V]
    reason: str
    error: str
    traceback: str
    deliveries: int
    consumer: str

    @property
    def origin(self) -> StreamID:
        """The ID that the entry had in its stream."""
        return self.entry.id


class Counts(Attachment):
    """How many letters each group has, as counted last: what a stream has got since is counted on."""

    def __init__(self, _env: Environment) -> None:
        self.known: dict[tuple[int, bytes, bytes], tuple[int, int, StreamID, int]] = {}


class DeadLetters(Generic[V]):
    """The dead letters of one group, made by group.dead_letters; oldest first: ``for letter in group.dead_letters``."""

    __slots__ = ("_encoding", "_group", "_mark", "_name", "_origin", "_shown", "_source")

    @made_by_a_call
    def __init__(self, source: Source, stream: bytes, group: bytes, shown: Callable[..., list[typed.Entry[V]]],
                 encoding: str | None, name: Name | None) -> None:
        self._source = source
        self._encoding = encoding
        self._origin = stream
        self._group = group
        self._shown = shown
        self._mark = _json({"stream": _text(stream), "group": _text(group)})[1:-1]  # in all letters that bury() writes
        usual = (stream + b"." + group)[: keys.MAX_NAME - 5] + b".dead"  # a letter says whose it is, where that is cut
        self._name = usual if name is None else name_bytes(name)
        if self._name == stream:
            raise InvalidArgument(f"stream {headers.shown(stream)} cannot hold its own dead letters; name another")
        if name is not None:
            self._require()

    @property
    def name(self) -> Text:
        """The name of the stream that holds them."""
        return text_of(self._name, self._encoding)

    def __iter__(self) -> Iterator[DeadLetter[V]]:
        self._require()
        every = read_range(self._source, self._name, StreamID.MIN, StreamID.MAX, None, False, None)
        yield from map(self._letter, (entry for entry in every if is_letter_of(self, entry)))

    def __len__(self) -> int:
        self._require()
        with self._source.read() as txn:
            found = headers.find(txn, self._name)
            if found is None:
                return 0
            number, header = found
            is_final = isinstance(self._source, StoreSource | SnapshotSource)  # else what is seen may be undone
            known = self._source.env.attached(Counts).known if is_final else {}
            key = number, self._origin, self._group
            added, length, last, own = known.get(key, (0, 0, StreamID.MIN, 0))
            if header.next_ordinal - added != header.length - length or header.last < last:  # not only more, since
                last, own = StreamID.MIN, 0
            if header.last > last:
                new = SnapshotSource(self._source.env, txn)
                later = read_range(new, self._name, last.next(), StreamID.MAX, None, False, None)
                own += sum(is_letter_of(self, entry) for entry in later)
            known[key] = header.next_ordinal, header.length, StreamID(*header.last), own
            return own

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<raxlog.DeadLetters {headers.shown(self._name)} of group {headers.shown(self._group)}>"

    def get(self, id: IDLike) -> DeadLetter[V] | None:
        """The group's letter with this ID; None if there is none."""
        self._require()
        entry = get(self._source, self._name, parse_id(id), None)
        return self._letter(entry) if entry is not None and is_letter_of(self, entry) else None

    def replay(self, *ids: IDs, where: Callable[[DeadLetter[V]], object] | None = None) -> int:
        """Append the entries of dead letters to their stream again, with new IDs; returns how many.

        The group's letters with these IDs (arguments, or one iterable), or those for which ``where`` is true, or all
        where neither is given; a malformed one stays. One commit appends each entry and deletes its letter; it takes up
        to 1,000. All groups of the stream receive the entries.
        """
        def move(some: list[StreamID], txn: WriteTransaction) -> int:
            letters = writer.locate(txn, self._name)
            found = [] if letters is None else deliver.fetch(txn, letters, list(some))
            valid = [entry for entry in found if entry is not None  # no other call has moved it
                     and isinstance(_about(entry), dict)]
            if letters is None or not valid:
                return 0
            stream, now = writer.ensure(txn, self._origin, NodeLimits()), now_ms()
            for entry in valid:
                flat = list(chain.from_iterable(entry.pairs[1:]))
                take_again(txn, stream, flat, stream.append(txn, AUTO, now, flat), now)
            return deleting.delete(txn, letters, [entry.id for entry in valid])

        return sum(in_pieces(self._source, self._chosen(ids, where), move, _PIECE))

    def purge(self, *ids: IDs, where: Callable[[DeadLetter[V]], object] | None = None) -> int:
        """Delete letters, chosen as for replay(), and malformed ones; returns how many. 1,000 per commit."""
        def remove(some: list[StreamID], txn: WriteTransaction) -> int:
            letters = writer.locate(txn, self._name)
            return 0 if letters is None else deleting.delete(txn, letters, some)

        return sum(in_pieces(self._source, self._chosen(ids, where), remove, _PIECE))

    def _chosen(self, ids: tuple[IDs, ...], where: Callable[[DeadLetter[V]], object] | None) -> list[StreamID]:
        """The IDs of letters: those given, or of all, as far as ``where`` is true."""
        wanted = sorted({parse_id(sid) for sid in given_ids(ids)})
        letters = filter(None, map(self.get, wanted)) if ids else iter(self)
        return [letter.id for letter in letters if where is None or where(letter)]

    def _letter(self, entry: Entry) -> DeadLetter[V]:
        about, pairs = _about(entry), entry.pairs
        if isinstance(about, str):
            about = dict.fromkeys(_KINDS, "") | {"id": "0-0", "reason": "malformed", "error": about, "deliveries": 0}
        else:
            pairs = pairs[1:]
        own = Entry(*parse_id(about["id"]), pairs)
        own.deliveries = about["deliveries"]
        [shown] = self._shown([own])
        figures = ("reason", "error", "traceback", "deliveries", "consumer")
        return DeadLetter(entry.id, shown, *(about[name] for name in figures))

    def _require(self) -> None:
        """InvalidArgument if the stream's entries are no dead letters."""
        for first in read_range(self._source, self._name, StreamID.MIN, StreamID.MAX, 1, False, None):
            if first.names[:1] != [DEAD_FIELD]:
                raise InvalidArgument(
                    f"stream {headers.shown(self._name)} holds no dead letters: its first entry, {first.id}, has no "
                    "field $dead. Rename that stream, or name another with worker(dead_letters=)")


def bury(letters: DeadLetters[Any], consumer: bytes, entry: Entry, reason: str, error: str, traceback: str) -> None:
    """Give up an entry that is pending with this consumer. NotOwner if it is not, with nothing changed.

    InvalidArgument, MalformedValue or StreamExhausted where the dead letters' stream takes no letter.
    """
    row = row_of([entry.id])
    letters._require()

    def operation(txn: WriteTransaction) -> None:
        stream = writer.locate(txn, letters._origin)
        group = None if stream is None else locate_group(txn, stream, letters._group)
        deliver.require_owner(txn, letters._origin, group, letters._group, consumer, row)
        assert group is not None
        _put(txn, letters, group, consumer, entry, reason, error, traceback, FOUND_FOR)
        deliver.ack(txn, group, row)

    letters._source.submit(operation)


def cancel(letters: DeadLetters[Any], ids: Iterable[IDLike], why: str) -> int:
    """Give up entries that are pending or not delivered yet; how many of them were. NoGroup; errors as of bury()."""
    if not isinstance(why, str):
        raise InvalidArgument(f"reason={why!r:.60} must be a text: why the entry is cancelled")
    error = why[:_TRACEBACK].encode("utf-8", "backslashreplace").decode()
    letters._require()

    def act(some: list[StreamID], txn: WriteTransaction) -> int:
        stream = writer.locate(txn, letters._origin)
        group = require_group(txn, stream, letters._origin, letters._group)
        assert stream is not None
        matches = subject_filter.matcher_of(group.subjects) if group.subjects else None
        pending = group.pel(txn).find(list(some))
        given_up: list[StreamID] = []
        for sid, entry in zip(some, deliver.fetch(txn, stream, list(some)), strict=True):
            nack = pending.get(sid)
            if entry is None or (nack is None and (sid <= group.last or group.has_cancelled(txn, sid)
                                                   or (matches is not None and not matches(entry)))):
                continue
            owner = b"" if nack is None or nack.consumer == UNOWNED else group.consumer_no(txn, nack.consumer).name
            entry.deliveries = 0 if nack is None else nack.count
            _put(txn, letters, group, owner, entry, CANCELLED, error, "",
                 FOUND_FOR if sid <= group.last else UNTIL_PASSED)
            given_up.append(sid)
        if given_up:
            group.changed(txn)
            group.cancelled = max(group.cancelled, *given_up)
            deliver.ack(txn, group, row_of(given_up))
        return len(given_up)

    return sum(in_pieces(letters._source, ascending(ids), act, _PIECE))


def _put(txn: WriteTransaction, letters: DeadLetters[Any], group: GroupState, consumer: bytes, entry: Entry,
         reason: str, error: str, traceback: str, found_for: int) -> None:
    """Append a letter, and note that the entry has become one."""
    about = {"id": str(entry.id), "stream": _text(letters._origin), "group": _text(letters._group),
             "consumer": consumer.decode("utf-8", "backslashreplace"), "deliveries": entry.deliveries,
             "reason": reason, "error": error[:_TRACEBACK], "traceback": traceback[-_TRACEBACK:]}
    flat = [DEAD_FIELD, _json(about), *chain.from_iterable(entry.pairs)]
    stream, now = writer.ensure(txn, letters._name, NodeLimits()), now_ms()
    given = Given(letters._name, bytes(stream.append(txn, AUTO, now, flat)), reason, entry.deliveries, group.group)
    writer.after_append(txn, stream, now)
    put_result(txn, group.number, name_of(letters._group, entry.id), given.packed(error[:_TRACEBACK]), found_for)


def is_letter_of(letters: DeadLetters[Any], entry: Entry) -> bool:
    """Whether an entry of the stream is a letter of this group, or is too malformed to name any."""
    if entry.names[:1] == [DEAD_FIELD] and letters._mark in entry.values[0][: len(letters._mark) + 64]:
        return True  # without a look at the rest: letters are many, and long
    try:
        named = [_object(entry).get(what) for what in ("stream", "group")]
    except ValueError:
        return True
    return named == [_text(letters._origin), _text(letters._group)] or not all(isinstance(name, str) for name in named)


def _about(entry: Entry) -> dict[str, Any] | str:
    """What has happened to an entry, as its letter holds it; or what is wrong with that."""
    try:
        about = _object(entry)
        wrong = [name for name, kind in _KINDS.items() if type(about.get(name)) is not kind]
        if wrong or parse_id(about["id"]) == StreamID.MIN or not 0 <= about["deliveries"] <= MAX64:
            raise ValueError(f"{', '.join(wrong) or 'id or deliveries'} in $dead is not what it should be")
    except (ValueError, InvalidStreamID) as error:
        return f"the letter is malformed: {error}"
    return about


def _object(entry: Entry) -> dict[str, Any]:
    """The object of a letter. ValueError where it has none."""
    if entry.names[:1] != [DEAD_FIELD]:
        raise ValueError("the first field is not $dead")
    try:
        found = json.loads(entry.values[0])
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("$dead is not an object of JSON")
    return found


def _json(about: dict[str, Any]) -> bytes:
    return json.dumps(about, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")  # of two names no two are equal
