"""Reading several streams in one call: XREAD, and XREADGROUP over more than one stream."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TypeVar

from ..storage import clocks
from ..storage.errors import InvalidArgument, InvalidStreamID
from ..storage.trees.rax import RaxTransaction
from ..storage.wake.stop import StopFlag, is_stopped
from .entries import header as headers
from .entries.range_read import read_range
from .entries.session import Source, parse_timeout
from .group.deliver import Answer, GroupRead, ReplyBudget, Target, history_start, parse_ids, read_group
from .group.state import SeenTimes
from .group.waiter import Condition, Seen, WaitQueues, stream_moves
from .jobs.deferred import release_due
from .node.arguments import Name, duration_ms, member_name, name_bytes, texts_of, whole
from .node.stream_id import MAX64, IDLike, StreamID, make_id, parse_id
from .node.typed import Entry

N = TypeVar("N", bound=Name)  # the names as they are given, under which entries are returned
M = TypeVar("M", bound=Name)

Asked = Mapping[N, IDLike] | Iterable[tuple[N, IDLike]]  # streams, each with an ID; pairs may name one twice


class Found(dict[N, list[Entry]]):
    """What a read has found: {name: entries}, of those streams that have any.

    ``pairs``               (name, entries), one for each time that a stream was named, in their order
    ``consumers_created``   the streams in whose group the consumer is new
    """

    __slots__ = ("consumers_created", "pairs")

    def __init__(self, pairs: Iterable[tuple[N, list[Entry]]] = (), consumers_created: Iterable[N] = ()) -> None:
        super().__init__()
        self.pairs: list[tuple[N, list[Entry]]] = list(pairs)
        self.consumers_created: list[N] = list(consumers_created)
        for name, entries in self.pairs:
            self[name] = self[name] + entries if name in self else entries


def read_streams(source: Source, streams: Asked[N], count: int | None, timeout: float | None,
                 total: int | None, max_bytes: int | None, stop: StopFlag | None, encoding: str | None) -> Found[N]:
    """Entries behind an ID of each stream, under the names asked for; only streams with such."""
    wait = parse_timeout(source, timeout)
    looks = look_behind(source, streams, count, total, max_bytes, encoding)
    deadline = clocks.monotonic() + wait if wait < math.inf else None
    for found, seen, due in looks:
        if is_stopped(stop):
            break
        if found or not wait:
            return found
        if not source.env.attached(WaitQueues).wait(seen, deadline, due, stop=stop):
            break
    return Found()


def look_behind(source: Source, streams: Asked[N], count: int | None, total: int | None,
                max_bytes: int | None, encoding: str | None,
                ) -> Iterator[tuple[Found[N], Seen, float | None]]:
    """What is there now, at each next(); else what was seen, and when to look again."""
    _check_counts(count, total, max_bytes)
    named = [(key, name_bytes(key), after) for key, after in _pairs(streams)]
    if not named:
        raise InvalidArgument("read() needs at least one stream: {name: ID behind which to read}")
    with source.read() as txn:
        starts = [(key, name, _start(txn, source, name, after)) for key, name, after in named]
    while True:
        with source.read() as txn:
            moves = {name: stream_moves(txn, name) for _, name, _ in starts}
        dues = [release_due(source, name, move[3]) for name, move in moves.items() if move is not None]
        found = _read_once(source, starts, count, total, max_bytes, encoding)
        seen = {Condition(stream_moves, name): move for name, move in moves.items()}
        yield found, seen, min((due for due in dues if due is not None), default=None)


def _read_once(source: Source, starts: list[tuple[N, bytes, StreamID | None]], count: int | None,
               total: int | None, max_bytes: int | None, encoding: str | None) -> Found[N]:
    budget = ReplyBudget(total, max_bytes)
    found: list[tuple[N, list[Entry]]] = []
    for key, name, start in starts:
        if start is None:
            continue
        entries = []
        for entry in read_range(source, name, start, StreamID.MAX, budget.left_of(count), False, None):
            if budget.takes is not None and not budget.takes(entry):
                break
            entries.append(entry)
        budget.took(len(entries))
        if entries:
            found.append((key, texts_of(entries, encoding)))
    return Found(found)


def _start(txn: RaxTransaction, source: Source, name: bytes, after: IDLike) -> StreamID | None:
    """The first ID to read: one behind ``after``. None behind the last possible one."""
    if after in ("$", b"$", "+", b"+"):
        found = headers.find(txn, name)
        last = StreamID.MIN if found is None else make_id(*found[1].last)
        if after in ("+", b"+") and found is not None and found[1].length:
            return next(iter(read_range(source, name, StreamID.MIN, StreamID.MAX, 1, True, None))).id
    elif after in (">", b">"):
        raise InvalidStreamID("the ID > reads what a group has not delivered; it is for read_group() and Group.read()")
    else:
        last = parse_id(after, "$, +, ")
    return None if last == (MAX64, MAX64) else last.next()


def read_group_streams(source: Source, group: Name, consumer: Name, streams: Asked[N],
                       count: int | None, timeout: float | None, total: int | None, max_bytes: int | None,
                       noack: bool, claim_idle: float | None, ack: Mapping[M, Iterable[IDLike]] | None,
                       stop: StopFlag | None, encoding: str | None, keeps_gone: bool = False) -> Found[N]:
    """Deliver from several streams that have a group of the same name, in one commit."""
    wait = parse_timeout(source, timeout)
    wanted, targets, keys = parse_group_read(group, consumer, streams, count, total, max_bytes, noack, claim_idle, ack,
                                             stop)
    wanted = wanted._replace(keeps_gone=keeps_gone)
    return found_by(read_group(source, source.env.attached(SeenTimes), wanted, targets, wait), keys, encoding)


def found_by(answer: Answer, keys: Mapping[bytes, N], encoding: str | None) -> Found[N]:
    """A group's answer under the names that were given."""
    return Found([(keys[name], texts_of(entries, encoding)) for name, entries in answer],
                 [keys[name] for name in answer.created])


def parse_group_read(group: Name, consumer: Name, streams: Asked[N], count: int | None, total: int | None,
                     max_bytes: int | None, noack: bool, claim_idle: float | None,
                     ack: Mapping[M, Iterable[IDLike]] | None,
                     stop: StopFlag | None) -> tuple[GroupRead, list[Target], dict[bytes, N]]:
    """The arguments of a read, checked, and the streams' names as they were given."""
    _check_counts(count, total, max_bytes)
    acked: dict[bytes, bytes] = {}
    if ack is not None and not isinstance(ack, Mapping):
        raise InvalidArgument(f"ack must be a mapping from stream names, not {type(ack).__name__}")
    for acked_key, ids in (ack or {}).items():
        _once("ack", acked, name_bytes(acked_key))
        acked[name_bytes(acked_key)] = parse_ids(f"ack[{acked_key!r}]", ids)
    keys: dict[bytes, N] = {}
    targets = []
    for key, after in _pairs(streams):
        name = name_bytes(key)
        if isinstance(streams, Mapping):
            _once("streams", keys, name)
        keys.setdefault(name, key)
        behind = None if after in (">", b">") else history_start(after)
        targets.append(Target(name, behind, acked.pop(name, b"")))
    if not targets:
        raise InvalidArgument("read_group() needs at least one stream: {name: '>' or an ID}")
    if acked:
        raise InvalidArgument(f"ack names {sorted(acked)}, which the call does not read")
    return GroupRead(
        member_name(group, "group"), member_name(consumer, "consumer"), count, total, max_bytes, noack,
        None if claim_idle is None else duration_ms("claim_idle", claim_idle), stop,
    ), targets, keys


def _pairs(streams: Asked[N]) -> list[tuple[N, IDLike]]:
    if isinstance(streams, Mapping):
        return list(streams.items())
    try:
        return [(name, after) for name, after in streams]
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"streams must be a mapping from stream names, or pairs of a name and an ID, not {streams!r:.60}") from None


def _once(what: str, names: Container[bytes], name: bytes) -> None:
    if name in names:
        raise InvalidArgument(f"{what} names the stream {headers.shown(name)} twice, as str and as bytes perhaps")


def _check_counts(count: int | None, total: int | None, max_bytes: int | None) -> None:
    for name, value in (("count", count), ("total", total), ("max_bytes", max_bytes)):
        whole(name, value, 1, none=", or None for no limit")
    if count is not None and total is not None and total < count:
        raise InvalidArgument(f"total={total} must not be smaller than count={count}")
