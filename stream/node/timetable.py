"""Timetables: the nominal times of a schedule, by a cron expression in a time zone, or at an interval.

    "30 2 * * *", Europe/Berlin     2:30 on most days; in the night that skips 2:30 at 3:00, once; in the night that
                                    has it twice the first time only
    "*/30 * * * *"                  every half hour that passes, in those nights, too
    300 s                           300, 600, … seconds after the first

As in Debian's cron, an expression whose minute or hour begins with ``*`` goes by the time that passes, any other by
what clocks on the wall show. The library matches times without a zone; what a zone makes of them is seen to here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

from ...storage.errors import InvalidArgument
from .arguments import duration_ms
from .stream_id import time_at

HOUR, DAY = 3_600_000, 86_400_000  # ms
_MS = timedelta(milliseconds=1)
_EPOCH = time_at(0)


class Never(Exception):
    """No next time can be found: the zone or the library is not on this machine, or none comes any more."""


class Timetable(NamedTuple):
    """When ticks are. Times are ms since 1970."""

    cron: str | None
    every: int  # ms, where there is no cron
    tz: str

    def following(self, tick: int, after: int) -> int:
        """The first nominal time behind ``after``. ``tick``: one that is not behind it. Never."""
        if self.cron is None:
            return tick + ((after - tick) // self.every + 1) * self.every
        return _next(self.cron, self.tz, after)

    def last(self, tick: int, until: int) -> int:
        """The last nominal time up to ``until``, from ``tick`` on, which is one. Never."""
        if until <= tick:
            return tick
        if self.cron is None:
            return tick + (until - tick) // self.every * self.every
        return tick + bisect_left(range(tick, until), True, key=lambda at: self.following(tick, at) > until)


def parse_timetable(cron: object, every: object, tz: object) -> Timetable:
    """The arguments of Stream.schedule(). InvalidArgument."""
    if (cron is None) == (every is None):
        raise InvalidArgument("a schedule needs one of cron, an expression, and every, in seconds")
    if not isinstance(tz, str):
        raise InvalidArgument(f"tz={tz!r:.60} must be the name of a time zone, as in 'Europe/Berlin'")
    if cron is None:
        interval = duration_ms("every", every)
        if not interval:
            raise InvalidArgument("every=0 would never end: it is the seconds between two ticks")
        if tz != "UTC":
            raise InvalidArgument(f"tz={tz!r:.60} is for cron: every counts the seconds that pass, in any zone")
        return Timetable(None, interval, tz)
    if not isinstance(cron, str) or len(cron.split()) != 5:
        raise InvalidArgument(f"cron={cron!r:.80} must be text of five fields: minute, hour, day of the month, month, "
                              "day of the week")
    expression = " ".join(cron.split())
    try:
        _next(expression, "UTC", 0)
    except Never as error:
        raise InvalidArgument(f"cron={cron!r:.80} is no expression that comes: {error}") from None
    try:
        _zone(tz)
    except Never as error:
        raise InvalidArgument(f"tz={tz!r:.60} is no time zone that is known here: {error}") from None
    return Timetable(expression, 0, tz)


@lru_cache(1024)  # many schedules come at midnight
def _next(cron: str, tz: str, after: int) -> int:
    """The first nominal time behind ``after``."""
    zone = _zone(tz)
    if cron[0] == "*" or cron.split()[1][0] == "*":
        return _by_passing(cron, zone, after)
    walls = _walls(cron, after + _offset(zone, after))
    while True:
        wall = next(walls)
        first, second = (wall - _offset_of(zone, wall, fold) for fold in (0, 1))
        if second < first:  # it is skipped: as soon as that is over
            end = _offset(zone, first)
            first = second + bisect_left(range(second, first), True, key=lambda at: _offset(zone, at) == end)
        if first > after:  # it may be behind the first of a time that comes twice
            return first


def _by_passing(cron: str, zone: tzinfo, at: int) -> int:
    """The same of an expression that goes by the time that passes: from one change of the zone to another."""
    offset = _offset(zone, at)
    found = next(_walls(cron, at + offset)) - offset
    while True:
        until = min(found, at + DAY)  # no zone changes twice in a day
        if _offset(zone, until) == offset:
            if until == found:
                return found
            at = until
            continue
        at += bisect_left(range(at, until), True, key=lambda moment: _offset(zone, moment) != offset)
        offset = _offset(zone, at)
        found = next(_walls(cron, at + offset - 1)) - offset


def _walls(cron: str, after: int) -> Iterator[int]:
    """The times on the wall behind ``after`` that match, in ms of a clock without a zone. Never, where none is left."""
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - loaded where a schedule is
    except ImportError as error:
        raise Never(f"the package cronsim cannot be loaded: {error}") from None
    try:
        for wall in CronSim(cron, time_at(after).replace(tzinfo=None)):
            yield (wall.replace(tzinfo=UTC) - _EPOCH) // _MS
    except (CronSimError, OverflowError, ValueError) as error:
        raise Never(str(error)) from None
    raise Never("it has no time in the next 50 years")


def _zone(tz: str) -> tzinfo:
    if tz == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - as above

    try:
        return ZoneInfo(tz)
    except (LookupError, ValueError, OSError) as error:
        raise Never(f"no such zone on this machine ({error})") from None


def _offset(zone: tzinfo, at: int) -> int:
    """ms by which clocks on the wall are ahead of UTC at a moment."""
    ahead = time_at(at).astimezone(zone).utcoffset()
    return 0 if ahead is None else ahead // _MS


def _offset_of(zone: tzinfo, wall: int, fold: int) -> int:
    """The same at a time on the wall: before a change, or with ``fold`` 1 behind it."""
    ahead = time_at(wall).replace(tzinfo=zone, fold=fold).utcoffset()
    return 0 if ahead is None else ahead // _MS
