"""Sublist: the handle on the subject index of a store, each call a transaction of its own.

    sublist = Sublist(source)
    number = sublist.insert("orders.*.new", owner="s1", queue="billing")
    sublist.match("orders.eu.new").queues[b"billing"]
    sublist.remove(number)

With the source of an open transaction (transaction.py) every call is part of that; with an encoding, as
``store.subjects`` has, names come as text. The functions behind it, which take a transaction, work in bytes, and are
in sublist.py and match.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import islice
from typing import Concatenate, Final, ParamSpec, TypeVar

from ...storage.handles import made_by_a_call
from ...stream.entries.session import Source, ask, asking, changing
from ...stream.node.arguments import Text
from . import match as matching
from . import sublist
from .match import Cache, Match, PatternInterest, Statistics, Subscribers
from .subscription import LIVE, Subscription, SubscriptionInfo

A = ParamSpec("A")
R = TypeVar("R")
T = TypeVar("T")

_PAGE = 1000


def _info(found: Subscription | None, encoding: str | None) -> SubscriptionInfo | None:
    return None if found is None else found.info(encoding)


def _infos(found: Iterable[Subscription], encoding: str | None) -> list[SubscriptionInfo]:
    return [one.info(encoding) for one in found]


def _shown(method: Callable[Concatenate[Sublist, A], T], make: Callable[[T, str | None], R],
           ) -> Callable[Concatenate[Sublist, A], R]:
    """The method with what it returns as users get it: made of the result and the handle's encoding."""

    @wraps(method)
    def call(self: Sublist, /, *args: A.args, **options: A.kwargs) -> R:
        return make(method(self, *args, **options), self._encoding)

    return call


class Sublist:
    """The subscriptions of one store. Safe to share by threads; every process sees the same ones."""

    __slots__ = ("_encoding", "_source", "cache")

    @made_by_a_call
    def __init__(self, source: Source, cache: Cache | None = None, encoding: str | None = None) -> None:
        self._source = source
        self._encoding = encoding
        self.cache: Cache = Cache() if cache is None else cache  # Cache(0) remembers nothing

    def with_cache(self, cache: Cache) -> Sublist:
        """The same subscriptions through another cache; Cache(0) remembers nothing."""
        return Sublist(self._source, cache, self._encoding)

    def insert(self, subject: Text, *, kind: int = LIVE, owner: Text = b"", queue: Text | None = None, weight: int = 1,
               name: Text | None = None, options: Mapping[str, object] | None = None) -> int:
        """Store a subscription, durable when this returns; its ID.

        ``kind``     1 (live), 2 (durable) or 3 (binding); publishing serves none of them unless it made them itself
        ``owner``    a session, a connection: remove_owner() removes all that it has
        ``queue``    a queue group, of which a match gives the members; ``weight``: 1 to 65,535
        ``name``     a durable name, unique in the store: inserted again, it is the subscription that has it
        ``options``  numbers, str, bytes, lists and dicts of these, which the index only stores

        SubjectError, InvalidName, InvalidArgument, SubscriptionExists. 150 µs and a flush; see insert_many().
        """
        return self.insert_many([Subscription.of(
            subject, kind=kind, owner=owner, queue=queue, weight=weight, name=name, options=options)])[0]

    insert_many: Final = changing(sublist.insert_many)

    def remove(self, number: int) -> SubscriptionInfo:
        """Remove a subscription; what it was. NoSubscription if it is not there."""
        return self.remove_many([number])[0]

    def remove_many(self, numbers: Iterable[int]) -> list[SubscriptionInfo]:
        """Remove subscriptions, all or none, in one commit; what they were. See sublist.remove_many()."""
        wanted = list(numbers)
        return _infos(self._source.submit(lambda txn: sublist.remove_many(txn, wanted)), self._encoding)

    remove_owner: Final = _shown(changing(sublist.remove_owner), _infos)
    set_weight: Final = _shown(changing(sublist.set_weight), Subscription.info)

    def match(self, subject: Text) -> Subscribers:
        """All subscribers of a literal subject: 1.5 µs from the cache, 12 µs from the index."""
        with self._source.read() as txn:
            return self.cache.match(txn, subject).subscribers(self._encoding)

    def match_many(self, wanted: Iterable[Text]) -> list[Subscribers]:
        """The matches of several subjects, all of one moment: 0.6 µs each from the cache."""
        match, encoding = self.cache.match, self._encoding
        with self._source.read() as txn:
            return [match(txn, subject).subscribers(encoding) for subject in wanted]

    reverse_match: Final = _shown(asking(matching.reverse_match), Match.subscribers)

    def has_interest(self, subject: Text) -> bool:
        """Whether a literal subject has subscribers."""
        with self._source.read() as txn:
            return self.cache.has_interest(txn, subject)

    def patterns(self, within: Text = ">") -> list[PatternInterest]:
        """The patterns that overlap ``within``, with the number of their subscriptions."""
        return ask(self._source, lambda txn: list(matching.patterns(txn, within)))

    num_interest: Final = asking(matching.num_interest)
    __len__: Final = asking(sublist.count)

    get: Final = _shown(asking(sublist.get), Subscription.info)
    by_name: Final = _shown(asking(sublist.by_name), _info)
    by_owner: Final = _shown(asking(sublist.by_owner), _infos)
    by_queue: Final = _shown(asking(sublist.by_queue), _infos)

    def __iter__(self) -> Iterator[SubscriptionInfo]:
        """All subscriptions in the order they were made, read 1,000 at a time."""
        after = 0
        while True:
            with self._source.read() as txn:
                page = _infos(islice(sublist.all_subscriptions(txn, after), _PAGE), self._encoding)
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].id

    @property
    def generation(self) -> int:
        """How often the subscriptions have changed; 0 before the first."""
        return ask(self._source, lambda txn: sublist.state_of(txn).generation)

    def statistics(self) -> Statistics:
        """Exact counts of the index, and of the matches made through this handle's cache."""
        return ask(self._source, self.cache.statistics)
