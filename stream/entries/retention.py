"""The retention of a stream: how long entries are kept. Set by configure(), held by the stream's header.

    Retention(maxlen=100_000, max_age=86_400)      the newest 100,000, and none older than a day
    Retention(acked=True, idle_group=3600)         what some group has still to deliver or to acknowledge

What one rule lets go, goes, whatever the others say. Which nodes that are: expiry.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...storage.errors import InvalidArgument
from ..node.arguments import duration_ms, whole

_MOST = (1 << 63) - 1


class Retention(NamedTuple):
    """The rules by which a stream's oldest entries go; one without any keeps everything.

    ``maxlen``      entries: keep the newest
    ``max_age``     seconds, by the milliseconds of the entries' IDs
    ``max_bytes``   bytes of all its nodes as stored
    ``acked``       True: what every consumer group has been given and has acknowledged goes. A stream
                    without a group that counts keeps all
    ``idle_group``  seconds: a group counts no more once its consumers have not read for so long (and some
                    5 s), and the entry that it holds back is as old. One without consumers counts
    """

    maxlen: int | None = None
    max_age: float | None = None
    max_bytes: int | None = None
    acked: bool = False
    idle_group: float | None = None

    def rules(self) -> dict[str, Any]:
        """The rules that are set, by their names."""
        return {name: rule for name, rule in self._asdict().items() if rule not in (None, False)}

    def row(self) -> list[Any]:
        """Its part of the header: times in milliseconds."""
        ages = (None if seconds is None else round(seconds * 1000) for seconds in (self.max_age, self.idle_group))
        return [self.maxlen, next(ages), self.max_bytes, self.acked, next(ages)]

    @classmethod
    def from_row(cls, row: list[Any]) -> Retention:
        """The inverse of row()."""
        maxlen, age, size, acked, idle = row[:5]
        return cls(maxlen, age and age / 1000, size, acked, idle and idle / 1000)


def parsed_retention(given: object) -> Retention | None:
    """The retention that a user has given, in whole milliseconds; None where it has no rule. InvalidArgument."""
    if not isinstance(given, Retention):
        raise InvalidArgument(f"retention={given!r:.80} must be a raxlog.Retention; Retention() removes it")
    whole("maxlen", given.maxlen, 1, _MOST, none=", or None")
    whole("max_bytes", given.max_bytes, 1, _MOST, none=", or None")
    ages: dict[str, Any] = {}
    for name in ("max_age", "idle_group"):
        seconds = getattr(given, name)
        ages[name] = None if seconds is None else duration_ms(name, seconds) / 1000
        if ages[name] == 0:
            raise InvalidArgument(f"{name}={seconds!r} must be more than 0 seconds")
    if type(given.acked) is not bool:
        raise InvalidArgument(f"acked={given.acked!r} must be True or False")
    if given.idle_group is not None and not given.acked:
        raise InvalidArgument("idle_group says which groups count for acked=True; give both")
    return given._replace(**ages) if given.rules() else None
