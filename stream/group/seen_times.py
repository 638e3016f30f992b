"""Seen-times: when the consumers of this process last asked for anything.

    noted     in memory, at once: (stream, group) -> consumer -> ms     read by consumers(), info(full=True)
                │ with the next change of the consumer, and of all of its group
                v once one of them is SEEN_EVERY behind
    on disk   in the consumer's record                                  all that other processes see

A read in vain need not write, then: fifty consumers that poll share a commit every few seconds.
Times of a transaction that is undone stay noted, for the consumer was here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Any

from ...storage.engine.environment import Attachment, Environment

SEEN_EVERY = 5000  # ms
MOST_NOTED = 10_000  # of a group: above, those of deleted consumers are forgotten
_MOST_VAIN = 100_000


class SeenTimes(Attachment):
    """Those of one environment. Each step is one of a dict or a set: no lock."""

    def __init__(self, _env: Environment) -> None:
        self.noted: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # all by numbers
        self.vain: set[Hashable] = set()  # consumers, with what they read, whose last read found nothing

    def came(self, line: Hashable, consumer: bytes, got: bool) -> None:
        """A consumer has read a line of waiter.py, and found something or nothing."""
        if got:
            self.vain.discard((line, consumer))
        elif len(self.vain) < _MOST_VAIN:  # more look for themselves each time
            self.vain.add((line, consumer))

    def show(self, stream: int, group: int, consumers: Iterable[Any]) -> None:
        """Bring these consumers, fresh from disk, to what is noted of them."""
        times = self.noted.get((stream, group), {})
        for one in consumers:
            one.seen = max(one.seen, times.get(one.number, 0))


def seen_times_of(env: Environment) -> SeenTimes:
    """The environment's, made by its first use, in a forked child anew."""
    return env.attached(SeenTimes)


def is_due(seen: int, now: int) -> bool:
    """Whether a consumer with this time on disk is to be written."""
    return not 0 <= now - seen < SEEN_EVERY
