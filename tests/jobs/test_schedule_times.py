"""The times of a cron expression, against every minute of the nights in which the clocks of a zone are set.

The reference walks the minutes that pass, and compares what the clock on the wall shows with the five fields.
"""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import raxlog
from raxlog.stream.node.timetable import Never, Timetable

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
NIGHTS = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),  # by half an hour
    "America/Havana": ("2026-03-08", "2026-11-01"),  # at midnight
}
FIELDS = (
    (range(60), "* */15 0 30 0,30 5-50/15 59 7"), (range(24), "* */2 */3 0 1 2 3 1-3 0,2 23"),
    (range(1, 32), "* * * */2 1,29"), (range(1, 13), "* * MAR-NOV 3-11"), (range(8), "* * * 0 7 1-5 SUN"),
)
NAMED = {"MAR-NOV": "3-11", "SUN": "0"}
MINUTE = timedelta(minutes=1)


def numbers(text: str, every: range) -> set[int]:
    found: set[int] = set()
    for part in NAMED.get(text, text).split(","):
        span, _, step = part.partition("/")
        low, _, high = (f"{every[0]}-{every[-1]}" if span == "*" else span).partition("-")
        found |= set(range(int(low), int(high or low) + 1, int(step or 1)))
    return found


def reference(cron: str, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """The times from ``start`` up to ``end``, by a walk over every minute."""
    fields = cron.split()
    minutes, hours, days, months, weekdays = (
        numbers(text, every) for text, (every, _) in zip(fields, FIELDS, strict=True))

    def matches(wall: datetime) -> bool:
        by_day, by_week = wall.day in days, not {wall.isoweekday(), wall.isoweekday() % 7}.isdisjoint(weekdays)
        is_day = by_day and by_week if "*" in (fields[2][0], fields[4][0]) else by_day or by_week
        return is_day and wall.minute in minutes and wall.hour in hours and wall.month in months

    found = []
    shown = start.astimezone(zone).replace(tzinfo=None) - MINUTE  # the latest that the wall has shown
    while start < end:
        wall = start.astimezone(zone).replace(tzinfo=None)
        if "*" in (fields[0][0], fields[1][0]):
            is_time = matches(wall)
        else:  # each time on the wall counts once, skipped ones as soon as that is over
            is_time = False
            while shown < wall:
                shown += MINUTE
                is_time = matches(shown) or is_time
        found += [start] if is_time else []
        start += MINUTE
    return found


@pytest.mark.parametrize("zone", NIGHTS)
def test_in_nights_in_which_clocks_are_set_each_time_comes_once(zone: str) -> None:
    chance = random.Random(SEED)
    print("seed", SEED)
    for night in NIGHTS[zone]:
        start = datetime.fromisoformat(night).replace(tzinfo=UTC) - timedelta(hours=14)
        end = start + timedelta(hours=36)
        for _ in range(25):
            cron = " ".join(chance.choice(texts.split()) for _, texts in FIELDS)
            expected = [int(at.timestamp()) * 1000 for at in reference(cron, ZoneInfo(zone), start, end)]
            table, last = Timetable(cron, 0, zone), int(end.timestamp()) * 1000

            def following(at: int, table: Timetable = table) -> int:
                try:
                    return table.following(0, at)
                except Never:
                    return 1 << 62

            came, at = [], int(start.timestamp()) * 1000 - 1
            while (at := following(at)) < last:
                came.append(at)
            assert came == expected, (zone, night, cron)
            for _ in range(20):  # from wherever it is planned anew
                at = chance.randrange(int(start.timestamp()) * 1000, last)
                assert following(at) == next((one for one in expected if one > at), following(last - 1))
                if expected and expected[0] <= at:
                    assert table.last(expected[0], at) == max(one for one in expected if one <= at)


def test_a_nightly_schedule_in_berlin(raxlog_schedules: raxlog.Stream) -> None:
    """By the stream's calls: what the page says of 2:30."""
    made = raxlog_schedules.schedule("report", {"n": 1}, cron="30  2 * * *", tz="Europe/Berlin")
    assert made.cron == "30 2 * * *"
    assert made.next is not None
    assert made.next.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") in ("02:30", "03:00")


@pytest.fixture
def raxlog_schedules(store: raxlog.Store) -> raxlog.Stream:
    return store.stream("jobs")
