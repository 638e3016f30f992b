"""The times of a cron expression, against every minute of the nights in which the clocks of a zone are set.

The reference walks the minutes that pass, and compares what the clock on the wall shows with the five fields. So it
does for what processes append that are killed, on a machine whose own clock is set by an hour in such a night.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import forkserver
import pytest
import raxlog
from fake_machine import FakeMachine
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


# -- processes that are killed ---------------------------------------------------------------------

CRONS = ("30 2 * * *", "*/20 * * * *", "5 0-4 * * *", "0,30 1,2,3 * * *")
HOURS = 24 if os.environ.get("RAXLOG_LONG") else 8  # of a night
WORK = """
import random, sys
import raxlog
chance = random.Random(sys.argv[2])
with raxlog.open(sys.argv[1]) as store:
    jobs = store.stream("jobs")
    group = jobs.group("workers")
    while True:
        for cron in sys.argv[4:]:
            jobs.schedule(cron, {"cron": cron}, cron=cron, tz=sys.argv[3], coalesce="all")
        if chance.random() < 0.5:
            jobs.append({"cron": ""})
        else:
            group.read("w", count=50, timeout=0.01, noack=True)
"""


class Night:
    """Three processes on a machine in which a night passes in seconds, and one of them is killed now and then."""

    def __init__(self, folder: Path, machine: FakeMachine, zone: str, night: str, chance: random.Random) -> None:
        self.path, self.machine, self.zone, self.chance = folder / "s.rax", machine, zone, chance
        middle = datetime.fromisoformat(night).replace(tzinfo=ZoneInfo(zone)) + timedelta(hours=2)
        self.begin, self.end = (round(middle.timestamp() + sign * HOURS * 1800) for sign in (-1, 1))
        self.kills = self.steps = 0
        self.now = self.begin
        self.set(0)
        self.workers = [self.start() for _ in range(3)]

    def set(self, ahead: int) -> None:
        """Set the machine's clock so many seconds ahead of what it is in this night; it is never before that."""
        self.machine.set_clock(self.now + ahead - int(time.time()))

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WORK, str(self.path), str(self.chance.random()), self.zone, *CRONS]
        return forkserver.Popen(command, env=self.machine.environment())

    def kill(self, at: int) -> None:
        self.workers[at].send_signal(signal.SIGKILL)
        assert self.workers[at].wait() == -signal.SIGKILL, "it failed by itself"

    def is_planned(self, until: int) -> bool:
        """Whether all schedules are there, and none is due at that time."""
        with raxlog.open(self.path, readonly=True) as store:
            planned = [one.next for one in store.stream("jobs").schedules()]
        return len(planned) == len(CRONS) and all(at is not None and at.timestamp() > until for at in planned)

    def wait(self, until: int) -> None:
        deadline = time.monotonic() + 60
        while not self.is_planned(until):
            assert time.monotonic() < deadline, "no process appends what is due"
            time.sleep(0.02)

    def pass_by(self) -> None:
        """Let it pass, by some minutes at a time; the clock is set by an hour, and back."""
        self.wait(self.now)
        while self.now < self.end:
            self.now += self.chance.randint(60, 1500)
            ahead = self.chance.choice([0, 0, 0, 3600, -3600])
            self.set(ahead)
            time.sleep(self.chance.uniform(0, 0.2))
            self.steps += ahead != 0
            self.set(0)
            if self.chance.random() < 0.2:
                at = self.chance.randrange(3)
                self.kill(at)
                self.workers[at] = self.start()
                self.kills += 1
        self.wait(self.now)
        for at in range(3):
            self.kill(at)


@pytest.mark.storm
@pytest.mark.parametrize("zone", [*NIGHTS][:3])
def test_each_time_of_such_a_night_comes_once_also_where_clocks_are_set_and_processes_killed(
    zone: str, tmp_path: Path, require: Callable[[str], str]
) -> None:
    print("seed", SEED)
    chance = random.Random(f"{SEED} {zone}")
    for night in NIGHTS[zone]:
        folder = tmp_path / night
        folder.mkdir()
        with raxlog.open(folder / "s.rax") as store:
            store.stream("jobs").create_group("workers", "0", create_stream=True)
        passing = Night(folder, FakeMachine(folder, require("cc")), zone, night, chance)
        try:
            passing.pass_by()
        finally:
            for worker in passing.workers:
                worker.kill()
        assert raxlog.check(passing.path).problems == []
        with raxlog.open(passing.path, readonly=True) as store:
            came = [(entry.fields["cron"], entry.scheduled) for entry in store.stream("jobs").range()
                    if entry.scheduled is not None]
            following = {one.name: one.next for one in store.stream("jobs").schedules()}
        print(f"{night}: {len(came)} times, {passing.kills} kills, {passing.steps} steps of an hour")
        begin = datetime.fromtimestamp(passing.begin, UTC)
        for cron in CRONS:
            found, last = [at for name, at in came if name == cron], following[cron]
            assert last is not None
            expected = reference(cron, ZoneInfo(zone), begin - timedelta(hours=1), last)
            assert found == [at for at in expected if at > begin], (night, cron)
