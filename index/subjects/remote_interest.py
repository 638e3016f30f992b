"""Remote interest: the subjects that servers reached by a route subscribe to, account by account.

    kind 18   size account | orders 00 02 00 | 00 | size route | queue     -> [weight]
    kind 19   size route | size account | orders 00 02 00 | 00 | queue     -> [weight]
    kind 1A                                                                -> how many of each

One row for a (route, account, subject, queue), in two orders. The first is walked like the
index's own patterns (subject.py), within one account: a match costs what it finds, not what
others have stored. The second makes losing a route, or one account of it, the deletion of a range.

A queue's row carries a weight, 1 to 65,535: its number of members. 0 is refused, not
stored: remove the row instead. Remote interest does not change the generation of the
index, for no match of local subscriptions depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...storage.errors import CorruptionError, InvalidArgument, SubjectError
from ...storage.figures import Figures
from ...storage.format.keys import MAX_KEY, REMOTE, REMOTE_BY_ROUTE, REMOTE_COUNT, family
from ...storage.format.records import seal, unseal
from ...storage.handles import made_by_a_call
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction, family_rows
from ...stream.entries.session import Source, ask, asking, changing
from ...stream.node.arguments import Text, text_of
from . import subject as subjects
from .match import heads
from .subscription import checked_weight, name_bytes, sized

COUNT_KEY = family(0, REMOTE_COUNT)
ROWS = family(0, REMOTE)
BY_ROUTE = family(0, REMOTE_BY_ROUTE)


@dataclass(frozen=True, slots=True)
class RemoteSubscription(Figures):
    """One row of remote interest. ``weight`` is 1 where there is no queue."""

    route: Text
    account: Text
    subject: Text
    queue: Text | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class RemoteMatch(Figures):
    """Where a message must be sent: every plain route, and one route of each queue."""

    plain: tuple[Text, ...]  # routes, each once however many of its patterns match
    queues: dict[Text, dict[Text, int]]  # queue -> {route: weight}, over all patterns


def apply(txn: WriteTransaction, route: str | bytes, account: str | bytes, subject: str | bytes,
          queue: str | bytes | None = None, weight: int = 1) -> bool:
    """Note that a route wants a subject. False if that row was there; its weight is then replaced.

    SubjectError for a pattern that cannot be stored, or where route, account, pattern and queue
    have more than 498 bytes together; InvalidName for one of the names; InvalidArgument for a
    weight outside 1 to 65,535, or other than 1 without a queue. Two puts and the count.
    """
    checked_weight(weight)
    if queue is None and weight != 1:
        raise InvalidArgument(f"weight={weight} is given without a queue; a plain subscription is sent to once")
    keys = _keys(route, account, subject, queue)
    new = txn.get(keys[0]) is None
    _put(txn, keys, weight)
    if new:
        _count_up(txn, 1)
    return new


def update(txn: WriteTransaction, route: str | bytes, account: str | bytes, subject: str | bytes,
           queue: str | bytes, weight: int) -> bool:
    """Set the weight of a row that is there; False, and nothing done, if it is not.

    What the .NET SubList calls UpdateRemoteQSub. Raises what apply() raises.
    """
    checked_weight(weight)
    keys = _keys(route, account, subject, name_bytes(queue, "queue"))
    exists = txn.get(keys[0]) is not None
    if exists:
        _put(txn, keys, weight)
    return exists


def remove(txn: WriteTransaction, route: str | bytes, account: str | bytes, subject: str | bytes,
           queue: str | bytes | None = None) -> bool:
    """Remove one row; False, and nothing done, if it is not there."""
    key, mirror = _keys(route, account, subject, queue)
    if txn.get(key) is None:
        return False
    txn.delete(key)
    txn.delete(mirror)
    _count_up(txn, -1)
    return True


def remove_route(txn: WriteTransaction, route: str | bytes, account: str | bytes | None = None) -> int:
    """Remove all rows of a route, or those of one account of it; how many there were.

    RemoveRemoteSubs and RemoveRemoteSubsForAccount. Costs two deletes a row that goes, whatever
    other routes have.
    """
    prefix = BY_ROUTE + sized(name_bytes(route, "route"))
    if account is not None:
        prefix += sized(name_bytes(account, "account"))
    gone = [key for key, _ in family_rows(txn, prefix)]
    for mirror in gone:
        txn.delete(parsed_mirror(mirror)[1])
        txn.delete(mirror)
    if gone:
        _count_up(txn, -len(gone))
    return len(gone)


def has_remote_interest(txn: RaxTransaction, account: str | bytes, subject: str | bytes) -> bool:
    """Whether any route wants this literal subject of the account. SubjectError if it is none."""
    return next(_matching(txn, account, subject), None) is not None


def match_remote(txn: RaxTransaction, account: str | bytes, subject: str | bytes) -> RemoteMatch:
    """Which routes want this literal subject of the account, and with which weights.

    Where several patterns of a queue match, the weights of a route add up: each pattern has
    members of its own. SubjectError for a subject that is invalid or has a wildcard.
    """
    plain: dict[Text, None] = {}
    queues: dict[Text, dict[Text, int]] = {}
    for row in _matching(txn, account, subject):
        if row.queue is None:
            plain[row.route] = None
        else:
            routes = queues.setdefault(row.queue, {})
            routes[row.route] = routes.get(row.route, 0) + row.weight
    return RemoteMatch(tuple(plain), queues)


def all_remote(txn: RaxTransaction) -> Iterator[RemoteSubscription]:
    """All rows, by account and subject."""
    return (parsed(key, value) for key, value in family_rows(txn, ROWS))


def count(txn: RaxTransaction) -> int:
    """How many rows there are. Exact, 1 µs."""
    value = txn.get(COUNT_KEY)
    return 0 if value is None else int(unseal(COUNT_KEY, value)[0])


def parsed(key: bytes, value: bytes) -> RemoteSubscription:
    """The row of kind 18 under this key. CorruptionError if it is damaged."""
    weight: int = unseal(key, value)[0]
    account, at = _name_at(key, len(ROWS))
    subject, at = _subject_at(key, at)
    route, at = _name_at(key, at)
    return RemoteSubscription(route, account, subject, key[at:] or None, weight)


def parsed_mirror(key: bytes, value: bytes | None = None) -> tuple[RemoteSubscription, bytes]:
    """The row of kind 19 under this key, and the key of kind 18 that it mirrors."""
    weight = 1 if value is None else unseal(key, value)[0]
    route, at = _name_at(key, len(BY_ROUTE))
    account, at = _name_at(key, at)
    subject, at = _subject_at(key, at)
    row = RemoteSubscription(route, account, subject, key[at:] or None, weight)
    return row, _keys(route, account, row.subject, row.queue)[0]


def _matching(txn: RaxTransaction, account: str | bytes, subject: str | bytes) -> Iterator[RemoteSubscription]:
    form = subjects.key_form(subjects.literal(subject))
    prefix = ROWS + sized(name_bytes(account, "account"))
    # The walk stops at a pattern's first row; those of further routes stand right behind it.
    for first, _ in heads(txn, prefix, form):
        pattern = first[: first.index(b"\0\0", len(prefix)) + 2]
        for key, value in family_rows(txn, pattern):
            yield parsed(key, value)


def _keys(route: str | bytes, account: str | bytes, subject: str | bytes,
          queue: str | bytes | None) -> tuple[bytes, bytes]:
    """The keys of a row, in kind 18 and in kind 19."""
    via, of = sized(name_bytes(route, "route")), sized(name_bytes(account, "account"))
    form = subjects.key_form(subjects.pattern(subject)) + b"\0"
    group = b"" if queue is None else name_bytes(queue, "queue")
    key = ROWS + of + form + via + group
    if len(key) > MAX_KEY:
        raise SubjectError(
            f"route, account, subject and queue have {len(key) - len(ROWS) - 4} bytes together; "
            f"{MAX_KEY - len(ROWS) - 4} are allowed"
        )
    return key, BY_ROUTE + via + of + form + group


def _put(txn: WriteTransaction, keys: tuple[bytes, bytes], weight: int) -> None:
    for key in keys:
        txn.put(key, seal(key, [weight]))


def _name_at(key: bytes, at: int) -> tuple[bytes, int]:
    end = at + 1 + key[at] if 0 <= at < len(key) else len(key) + 1
    if end > len(key):
        raise _damaged(key)
    return key[at + 1 : end], end


def _subject_at(key: bytes, at: int) -> tuple[bytes, int]:
    end = key.find(b"\0\0", at)
    if end < 0:
        raise _damaged(key)
    return subjects.from_key_form(key[at : end + 1]), end + 2


def _damaged(key: bytes) -> CorruptionError:
    return CorruptionError(f"the key {key.hex()} of remote interest cannot be read")


def _count_up(txn: WriteTransaction, by: int) -> None:
    txn.put(COUNT_KEY, seal(COUNT_KEY, [count(txn) + by]))


class RemoteInterest:
    """``store.remote``: the functions above, each a transaction of its own."""

    __slots__ = ("_encoding", "_source")

    @made_by_a_call
    def __init__(self, source: Source, encoding: str | None = None) -> None:
        self._source = source
        self._encoding = encoding

    apply: Final = changing(apply)
    update: Final = changing(update)
    remove: Final = changing(remove)
    remove_route: Final = changing(remove_route)
    has_interest: Final = asking(has_remote_interest)
    __len__: Final = asking(count)

    def match(self, account: str | bytes, subject: str | bytes) -> RemoteMatch:
        """Which routes want this literal subject of the account, and with which weights. See match_remote()."""
        found = ask(self._source, lambda txn: match_remote(txn, account, subject))
        return RemoteMatch(tuple(map(self._text, found.plain)), {
            self._text(queue): {self._text(route): weight for route, weight in routes.items()}
            for queue, routes in found.queues.items()
        })

    def __iter__(self) -> Iterator[RemoteSubscription]:
        """All rows of one moment, by account and subject; in memory, 100 bytes and the names of each."""
        for row in ask(self._source, lambda txn: list(all_remote(txn))):
            queue = None if row.queue is None else self._text(row.queue)
            subject = text_of(subjects.raw_subject(row.subject), "utf-8")
            yield RemoteSubscription(self._text(row.route), self._text(row.account), subject, queue, row.weight)

    def _text(self, name: Text) -> Text:
        return text_of(name_bytes(name, "name"), self._encoding)

    def __bool__(self) -> bool:
        return True
