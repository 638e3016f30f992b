"""The words of stream commands: IDs, bounds, counts, the options of trims; and entries as replies."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from ....storage.errors import InvalidStreamID
from ....stream.node.arguments import Refs
from ....stream.node.entry import Entry
from ....stream.node.stream_id import StreamID, parse_end, parse_id, parse_new_id, parse_start
from ..replies import NIL, CommandError
from ..table import integer, syntax_error

STREAM_ID = "ERR Invalid stream ID specified as stream command argument"
_LONGEST_ID = 127
_POLICIES: dict[bytes, Refs] = {b"keepref": "keepref", b"delref": "delref", b"acked": "acked"}


def stream_id(word: bytes) -> StreamID:
    try:
        if len(word) > _LONGEST_ID:
            raise InvalidStreamID("too long")
        return parse_id(word)
    except InvalidStreamID:
        raise CommandError(STREAM_ID) from None


def new_id(word: bytes) -> str:
    """The ID that an entry is to get."""
    try:
        if len(word) > _LONGEST_ID:
            raise InvalidStreamID("too long")
        parse_new_id(word)
    except InvalidStreamID:
        raise CommandError(STREAM_ID) from None
    return word.decode()


def start_of(word: bytes) -> StreamID | None:
    """Where a range begins; None behind the last possible ID."""
    return _bound(word, "start")


def end_of(word: bytes) -> StreamID | None:
    return _bound(word, "end")


def _bound(word: bytes, side: str) -> StreamID:
    is_open = word[:1] == b"(" and len(word) > 1
    inner = word[1:] if is_open else word
    if is_open and inner in (b"-", b"+"):
        raise CommandError(STREAM_ID)
    if inner not in (b"-", b"+"):
        stream_id(inner)
    try:
        return parse_start(word) if side == "start" else parse_end(word)
    except InvalidStreamID:
        raise CommandError(f"ERR invalid {side} ID for the interval") from None


def _listed_ids(words: list[bytes], at: int) -> list[bytes]:
    """The words of ``IDS numids id …``, at the end of the words."""
    if at + 1 >= len(words):
        raise syntax_error()
    count = integer(words[at + 1], "ERR Number of IDs must be a positive integer")
    if count <= 0:
        raise CommandError("ERR Number of IDs must be a positive integer")
    if count > len(words) - at - 2:
        raise CommandError("ERR The `numids` parameter must match the number of arguments")
    return words[at + 2 : at + 2 + count]


def parse_ids(words: list[bytes], at: int) -> tuple[Refs, list[bytes]]:
    """The policy and the IDs of XDELEX and XACKDEL, in the words from that place on."""
    refs: Refs | None = None
    ids: list[bytes] | None = None
    while at < len(words):
        policy = _POLICIES.get(words[at].lower())
        if policy is not None and refs is None:
            refs = policy
            at += 1
        elif words[at].lower() == b"ids":
            ids = _listed_ids(words, at)
            at += 2 + len(ids)
        else:
            raise syntax_error()
    if ids is None:
        raise CommandError("ERR IDS option is required")
    return refs or "keepref", ids


class Trim(NamedTuple):
    """The options of XTRIM, and of XADD."""

    maxlen: int | None = None
    minid: StreamID | None = None
    approximate: bool = False
    limit: int | None = None
    refs: Refs = "keepref"
    create: bool = True
    producer: bytes | None = None
    idempotent_id: bytes | None = None
    id: str | None = None
    at: int = 0  # of the first word behind the options


_PLAIN = Trim(id="*", at=3)


def trim_options(words: list[bytes], adds: bool) -> Trim:
    """The options behind the key, as Redis reads them."""
    if adds and words[2] == b"*":
        return _PLAIN
    trim = Trim()
    limit_given = refs_given = False
    at = 2
    while at < len(words):
        option, more = words[at].lower(), len(words) - 1 - at
        if adds and option == b"*":
            trim = trim._replace(id="*")
            break
        if option in (b"maxlen", b"minid") and more:
            if trim.maxlen is not None or trim.minid is not None:
                raise CommandError(
                    "ERR syntax error, MAXLEN and MINID options at the same time are not compatible")
            following = words[at + 1]
            if following in (b"~", b"=") and more >= 2:
                trim = trim._replace(approximate=following == b"~")
                at += 1
            if option == b"maxlen":
                value = integer(words[at + 1])
                if value < 0:
                    raise CommandError("ERR The MAXLEN argument must be >= 0.")
                trim = trim._replace(maxlen=value)
            else:
                trim = trim._replace(minid=stream_id(words[at + 1]))
            at += 1
        elif option == b"limit" and more:
            value = integer(words[at + 1])
            if value < 0:
                raise CommandError("ERR The LIMIT argument must be >= 0.")
            trim, limit_given = trim._replace(limit=value), True
            at += 1
        elif adds and option == b"nomkstream":
            trim = trim._replace(create=False)
        elif option in _POLICIES and not refs_given:
            trim, refs_given = trim._replace(refs=_POLICIES[option]), True
        elif adds and option in (b"idmp", b"idmpauto") and more >= (2 if option == b"idmp" else 1):
            trim = _idempotent(trim, option.decode().upper(), words[at + 1 : at + 3])
            at += 2 if option == b"idmp" else 1
        elif adds:
            trim = trim._replace(id=new_id(words[at]))
            break
        else:
            raise syntax_error()
        at += 1
    is_trim = trim.maxlen is not None or trim.minid is not None
    if trim.limit and not is_trim:
        raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
    if not adds and not is_trim:
        raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
    if limit_given and not trim.approximate:
        raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")
    return trim._replace(at=at + 1)


def _idempotent(trim: Trim, option: str, words: list[bytes]) -> Trim:
    if trim.producer is not None:
        raise CommandError("ERR syntax error, IDMP/IDMPAUTO specified multiple times")
    if not words[0]:
        raise CommandError(f"ERR syntax error, {option} requires a non-empty producer ID")
    if option == "IDMP" and not words[1]:
        raise CommandError("ERR syntax error, IDMP requires a non-empty idempotent ID")
    return trim._replace(producer=words[0], idempotent_id=words[1] if option == "IDMP" else None)


def id_reply(sid: object) -> bytes:
    return str(sid).encode()


def entry_reply(entry: Entry) -> list[object]:
    """An entry; one that has been deleted has no fields."""
    fields = [part for pair in entry.pairs for part in pair]
    return [id_reply(entry.id), fields or NIL]


def entries_reply(entries: Iterable[Entry]) -> list[object]:
    return [entry_reply(entry) for entry in entries]


def ms_of(given: float | datetime | None) -> int:
    """A time, or a duration in seconds, in ms; -1 for none."""
    return -1 if given is None else round((given.timestamp() if isinstance(given, datetime) else given) * 1000)
