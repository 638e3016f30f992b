"""Sublist: the handle on the subject index of a store, each call a transaction of its own.

    sublist = Sublist(source)
    number = sublist.insert("orders.*.new", owner="s1", queue="billing")
    sublist.match("orders.eu.new").queues[b"billing"]
    sublist.remove(number)

With the source of an open transaction (transaction.py) every call is part of that.
The functions behind it, which take a transaction, are in sublist.py and match.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from ...stream.entries.session import Source, ask, asking, changing
from . import match as matching
from . import sublist
from .match import Cache, Match, PatternInterest, Statistics
from .subscription import Subscription

_PAGE = 1000


class Sublist:
    """The subscriptions of one store. Safe to share by threads; every process sees the same ones."""

    __slots__ = ("_source", "cache")

    def __init__(self, source: Source, cache: Cache | None = None) -> None:
        self._source = source
        self.cache: Cache = Cache() if cache is None else cache  # Cache(0) remembers nothing

    def with_cache(self, cache: Cache) -> Sublist:
        """The same subscriptions through another cache; Cache(0) remembers nothing."""
        return Sublist(self._source, cache)

    def insert(self, subject: str | bytes, **options: Any) -> int:
        """Store a subscription, durable when this returns; its ID. The options of Subscription.of()."""
        return self.insert_many([Subscription.of(subject, **options)])[0]

    insert_many: Final = changing(sublist.insert_many)

    def remove(self, number: int) -> Subscription:
        """Remove a subscription; what it was. NoSubscription if it is not there."""
        return self.remove_many([number])[0]

    def remove_many(self, numbers: Iterable[int]) -> list[Subscription]:
        """Remove subscriptions, all or none, in one commit. See sublist.remove_many()."""
        wanted = list(numbers)
        return self._source.submit(lambda txn: sublist.remove_many(txn, wanted))

    remove_owner: Final = changing(sublist.remove_owner)
    set_weight: Final = changing(sublist.set_weight)

    def match(self, subject: str | bytes) -> Match:
        """All subscribers of a literal subject: 1.5 µs from the cache, 12 µs from the index."""
        with self._source.read() as txn:
            return self.cache.match(txn, subject)

    def match_many(self, wanted: Iterable[str | bytes]) -> list[Match]:
        """The matches of several subjects, all of one moment: 0.6 µs each from the cache."""
        match = self.cache.match
        with self._source.read() as txn:
            return [match(txn, subject) for subject in wanted]

    def has_interest(self, subject: str | bytes) -> bool:
        """Whether a literal subject has subscribers."""
        with self._source.read() as txn:
            return self.cache.has_interest(txn, subject)

    def patterns(self, within: str | bytes = ">") -> list[PatternInterest]:
        """The patterns that overlap ``within``, with the number of their subscriptions."""
        return ask(self._source, lambda txn: list(matching.patterns(txn, within)))

    num_interest: Final = asking(matching.num_interest)
    reverse_match: Final = asking(matching.reverse_match)
    get: Final = asking(sublist.get)
    by_name: Final = asking(sublist.by_name)
    by_owner: Final = asking(sublist.by_owner)
    by_queue: Final = asking(sublist.by_queue)
    __len__: Final = asking(sublist.count)

    def __iter__(self) -> Iterator[Subscription]:
        """All subscriptions in the order they were made, read 1,000 at a time."""
        after = 0
        while True:
            with self._source.read() as txn:
                page = list(islice(sublist.all_subscriptions(txn, after), _PAGE))
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
