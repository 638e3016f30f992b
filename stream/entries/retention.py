"""The retention of a stream: how long entries are kept. Set by configure(), held by the stream's header.

    Retention(maxlen=100_000, max_age=86_400)      the newest 100,000, and none older than a day
    Retention(acked=True, idle_group=3600)         what some group has still to deliver or to acknowledge

What one rule lets go, goes, whatever the others say. Which nodes that are: group/expiry.py. In the header's record it
is a row.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any

from ...storage.errors import InvalidArgument
from ...storage.figures import Figures
from ..node.arguments import duration_ms, whole

_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Retention(Figures):
    """The rules by which a stream's oldest entries are removed; without any rule everything is kept.

    ``maxlen``      keep this many of the newest entries
    ``max_age``     seconds, or a timedelta (which becomes seconds), by the milliseconds of the entries' IDs
    ``max_bytes``   bytes of all its nodes as stored
    ``acked``       True: remove entries that every consumer group has been given and has acknowledged. A
                    stream without a group that counts keeps everything
    ``idle_group``  seconds: a group stops counting for ``acked`` once its consumers have not read for that long
                    (plus 5 s) and the entry that it holds back is that old. A group without consumers counts

    InvalidArgument for a rule that is none.
    """

    maxlen: int | None = None
    max_age: float | timedelta | None = None
    max_bytes: int | None = None
    acked: bool = False
    idle_group: float | timedelta | None = None

    def __post_init__(self) -> None:
        whole("maxlen", self.maxlen, 1, _MOST, none=", or None")
        whole("max_bytes", self.max_bytes, 1, _MOST, none=", or None")
        for name, given in (("max_age", self.max_age), ("idle_group", self.idle_group)):
            seconds = given.total_seconds() if isinstance(given, timedelta) else given
            if seconds is not None and duration_ms(name, seconds) == 0:
                raise InvalidArgument(f"{name}={given!r} must be more than 0 seconds")
            object.__setattr__(self, name, seconds)
        if type(self.acked) is not bool:
            raise InvalidArgument(f"acked={self.acked!r} must be True or False")
        if self.idle_group is not None and not self.acked:
            raise InvalidArgument("idle_group says which groups count for acked=True; give both")

    def to_dict(self) -> dict[str, object]:
        """The rules that are set, by their names."""
        return {name: rule for name, rule in Figures.to_dict(self).items() if rule not in (None, False)}


def row_of(rules: Retention) -> list[Any] | None:
    """The rules as the header's record has them; None where there is no rule."""
    return None if rules == Retention() else list(astuple(rules))


def require_retention(given: object) -> Retention:
    """What a user has given as retention=. InvalidArgument."""
    if not isinstance(given, Retention):
        raise InvalidArgument(f"retention={given!r:.80} must be a raxlog.Retention; Retention() removes it")
    return given
