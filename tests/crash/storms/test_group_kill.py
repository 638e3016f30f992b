"""kill -9 on a queue at work: two producers, three consumers in two groups, one process each.

Every process keeps a log of its own, to which it appends a line before and after each call;
what has been written to a file survives the writer's death. At the end the logs, the stream
and the two pending lists must tell one story:

    the producer's logs     appended and acknowledged        ⊆  the stream
    the stream              all of it                        =  delivered to each group
    the consumers' logs     acknowledged, then delivered again: never
                            deliveries of an entry count 1, 2, 3 …, each told to one consumer
                            two owners of an entry: the later one claimed it, idle long enough
    each pending list       =  delivered − acknowledged, owners and counts as last delivered

A call that was in flight when its process died may have happened or not: that is all the
slack the check has. A consumer that says "acknowledged" before it is, and a producer that
says "appended" before it is, must both be caught.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import raxlog

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
SECONDS = 60.0 if os.environ.get("RAXLOG_LONG") else 12.0
CONTROL_SECONDS = 4.0
PRODUCERS = ("p1", "p2")
CONSUMERS = {"a1": "A", "a2": "A", "b1": "B"}
CLAIM_IDLE = 0.15
CLOCK_SLACK = 0.02  # the store's clock is in milliseconds, and may be slewed


class Log:
    """An append-only file. A line that a kill cut short does not spoil the next one."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, kind: str, **what: Any) -> None:
        line = json.dumps({"kind": kind, "at": time.monotonic(), **what})
        os.write(self._descriptor, f"\n{line}\n".encode())


# -- the processes --------------------------------------------------------------------------


def produce(path: Path, log: Log, name: str, rng: random.Random, early: bool) -> None:
    with raxlog.open(path) as store:
        jobs = store.stream("jobs")
        while True:
            tickets = [f"{name}-{rng.getrandbits(60):x}" for _ in range(rng.choice([1, 1, 1, 5, 20]))]
            if early:
                log.note("appended", tickets=tickets)
            jobs.extend([{"ticket": ticket} for ticket in tickets])
            if not early:
                log.note("appended", tickets=tickets)
            if len(jobs) - min(group.entries_read or 0 for group in jobs.groups()) > 3000:
                time.sleep(0.01)


def consume(path: Path, log: Log, name: str, rng: random.Random, early: bool) -> None:
    with raxlog.open(path) as store:
        group = store.stream("jobs").group(CONSUMERS[name])
        held = read(log, group, name, ids="0")  # what it had when it died
        while True:
            held, done = held[: len(held) // 4], held[len(held) // 4 :]  # some stay pending, to be claimed
            if not done or rng.random() < 0.5:
                acknowledge(log, group, done, early)
                held += read(log, group, name, count=rng.randint(1, 30), timeout=0.05)
            elif rng.random() < 0.3:
                acknowledge(log, group, done, early)
                held = read(log, group, name, count=rng.randint(1, 30), claim_idle=CLAIM_IDLE)
            else:
                held += read(log, group, name, ack=done, count=rng.randint(1, 30))


def acknowledge(log: Log, group: raxlog.Group, ids: list[str], early: bool) -> None:
    log.note("acknowledging", ids=ids)
    if early:
        log.note("acknowledged", ids=ids)
    group.ack(*ids)
    if not early:
        log.note("acknowledged", ids=ids)


def read(log: Log, group: raxlog.Group, name: str, ack: list[str] | None = None, **options: Any) -> list[str]:
    log.note("reading", ids=ack or [])
    entries = group.read(name, ack=ack or [], **options)
    log.note("read", ids=ack or [], entries=[[str(entry.id), entry.deliveries] for entry in entries])
    return [str(entry.id) for entry in entries]


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(1)
    return pid


def storm(folder: Path, seconds: float, seed: int, early: str = "") -> int:
    """Run them all, killing one at random every few dozen milliseconds; how many were killed."""
    rng = random.Random(seed)
    path = folder / "queue.rax"
    with raxlog.open(path) as store:
        for group in set(CONSUMERS.values()):
            store.stream("jobs").create_group(group, "0", create_stream=True)
    running: dict[str, int] = {}
    kills = 0

    def start(name: str) -> None:
        own = random.Random(rng.random())
        role = produce if name in PRODUCERS else consume
        log = Log(folder / f"{name}.log")
        running[name] = forked(lambda: role(path, log, name, own, early == role.__name__))

    try:
        for name in (*PRODUCERS, *CONSUMERS):
            start(name)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.01, 0.08))
            name = rng.choice(list(running))
            os.kill(running[name], signal.SIGKILL)
            status = os.waitpid(running.pop(name), 0)[1]
            assert os.WIFSIGNALED(status), f"{name} ended by itself"
            kills += 1
            start(name)
    finally:
        for pid in running.values():
            os.kill(pid, signal.SIGKILL)
        for pid in running.values():
            os.waitpid(pid, 0)
    return kills


# -- the check ------------------------------------------------------------------------------


@dataclass
class Delivery:
    """One entry given to one consumer: between which moments, and for the how-manieth time."""

    consumer: str
    began: float
    ended: float
    count: int


@dataclass
class Story:
    """What the logs of one group's consumers tell."""

    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    acked: dict[str, float] = field(default_factory=dict)  # when the call had returned
    ack_in_flight: list[list[str]] = field(default_factory=list)
    reads_in_flight: Counter[str] = field(default_factory=Counter)  # of each consumer


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    written = (folder / f"{name}.log").read_text().splitlines()
    return [json.loads(line) for line in written if line.endswith("}")]


def story_of(folder: Path, group: str) -> Story:
    story = Story()
    for name in (name for name, its in CONSUMERS.items() if its == group):
        begun: dict[str, Any] | None = None
        for line in [*lines(folder, name), {"kind": "end"}]:
            if line["kind"] in ("acknowledged", "read"):
                for sid in line["ids"]:
                    story.acked.setdefault(sid, line["at"])
                for sid, count in line.get("entries", []):
                    assert begun is not None
                    story.deliveries.setdefault(sid, []).append(Delivery(name, begun["at"], line["at"], count))
                begun = None
                continue
            if begun is not None:  # killed before the call came back
                story.ack_in_flight.append(begun["ids"])
                story.reads_in_flight[name] += begun["kind"] == "reading"
            begun = line
    return story


def problems(folder: Path) -> list[str]:
    """What contradicts the promises."""
    found: list[str] = []
    with raxlog.open(folder / "queue.rax") as store:
        jobs = store.stream("jobs")
        stream = {str(entry.id): entry.fields["ticket"] for entry in jobs.range()}
        tickets = Counter(stream.values())
        found += [f"ticket {ticket} is in the stream {many} times" for ticket, many in tickets.items() if many > 1]
        for name in PRODUCERS:
            for line in lines(folder, name):
                found += [f"{ticket} was acknowledged to {name} and is not there"
                          for ticket in line["tickets"] if ticket not in tickets]
        for group in sorted(set(CONSUMERS.values())):
            story = story_of(folder, group)
            found += [f"group {group}: {problem}" for problem in group_problems(jobs.group(group), story, stream)]
    return found


def group_problems(group: raxlog.Group, story: Story, stream: dict[str, str]) -> list[str]:
    found = []
    last = group.last_delivered_id
    delivered = {sid for sid in stream if raxlog.StreamID(sid) <= last}
    pending = {str(row.id): row for row in group.pending_entries("-")}
    slack = sum(story.reads_in_flight.values())
    doubtful = {sid for ids in story.ack_in_flight for sid in ids}
    for sid, times in story.deliveries.items():
        times.sort(key=lambda delivery: delivery.count)
        counts = [delivery.count for delivery in times]
        if len(set(counts)) < len(counts) or counts[0] < 1:
            found.append(f"{sid} was delivered with the counts {counts}")
        if counts[-1] - len(counts) > slack:
            found.append(f"{sid} has {len(counts)} deliveries, counted to {counts[-1]}")
        acked_at = story.acked.get(sid)
        for delivery in times:
            if acked_at is not None and delivery.began > acked_at:
                found.append(f"{sid} was acknowledged, and then delivered to {delivery.consumer}")
        for one, other in pairwise(times):
            if one.consumer != other.consumer and other.ended - one.began < CLAIM_IDLE - CLOCK_SLACK:
                found.append(f"{sid} belonged to {one.consumer} when {other.consumer} got it")
    found += [f"{sid} was given to a consumer before the group" for sid in story.deliveries if sid not in delivered]
    lost = delivered - story.deliveries.keys() - pending.keys()
    if lost - doubtful:
        found.append(f"{sorted(lost)[:5]} are neither pending nor were they ever told to a consumer")
    found += [f"{sid} is pending, and was acknowledged" for sid in pending if sid in story.acked]
    found += [f"{sid} is pending, and was never delivered" for sid in pending if sid not in delivered]
    expected = delivered - story.acked.keys()
    found += [f"{sid} was delivered, not acknowledged, and is not pending"
              for sid in expected - pending.keys() - doubtful]
    for ids in story.ack_in_flight:
        there = {sid in pending for sid in ids if sid in delivered and sid not in story.acked}
        if len(there) > 1:
            found.append(f"an acknowledgement of {len(ids)} entries was done by half")
    for sid, row in pending.items():
        times = story.deliveries.get(sid, [])
        told = times[-1].count if times else 0
        unheard = row.deliveries - told
        if not 0 <= unheard <= slack:
            found.append(f"{sid} is counted {row.deliveries} times, and was told {told} times")
        if unheard == 0 and row.consumer != times[-1].consumer:
            found.append(f"{sid} is {row.consumer!r}'s, and was last given to {times[-1].consumer}")
        if unheard and not story.reads_in_flight[row.consumer]:
            found.append(f"{row.consumer!r} has {sid}, was never told, and never died reading")
    summary = group.pending()
    if summary.total != len(pending) or sum(summary.consumers.values()) != len(pending):
        found.append(f"{len(pending)} are pending, the group counts {summary}")
    return found


def drain(folder: Path) -> dict[str, set[str]]:
    """Undisturbed, each group takes what is left: claimed or new. What each was given."""
    given: dict[str, set[str]] = {}
    with raxlog.open(folder / "queue.rax") as store:
        for group in set(CONSUMERS.values()):
            handle = store.stream("jobs").group(group)
            done = [row.id for row in handle.pending_entries("-")]
            handle.claim("last", *done)
            given[group] = {str(sid) for sid in done}
            while batch := handle.read("last", count=500, ack=done):
                done = [entry.id for entry in batch]
                given[group] |= {str(sid) for sid in done}
            assert handle.pending().total == 0
            assert handle.lag == 0
    return given


# -- the tests ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _name_the_seed() -> None:
    print(f"RAXLOG_SEED={SEED}")


def test_a_queue_whose_workers_are_killed_again_and_again_tells_one_story(tmp_path: Path) -> None:
    kills = storm(tmp_path, SECONDS, SEED)
    assert problems(tmp_path) == []
    given = drain(tmp_path)
    redelivered = 0
    for group in given:
        story = story_of(tmp_path, group)
        with raxlog.open(tmp_path / "queue.rax") as store:
            everything = {str(entry.id) for entry in store.stream("jobs").range()}
        reached = given[group] | story.deliveries.keys() | {sid for ids in story.ack_in_flight for sid in ids}
        assert everything <= reached
        assert not given[group] & story.acked.keys(), "acknowledged, and delivered again in the end"
        redelivered += sum(len(times) > 1 for times in story.deliveries.values())
        assert len(story.acked) > 20 * SECONDS
    assert kills > 4 * SECONDS
    assert redelivered > SECONDS, "hardly anything was delivered twice: the storm did not test what it is for"


@pytest.mark.parametrize(("early", "complaint"), [
    ("consume", "acknowledged"),
    ("produce", "is not there"),
])  # fmt: skip
def test_the_check_catches_who_speaks_before_the_commit(tmp_path: Path, early: str, complaint: str) -> None:
    for part in range(5):
        (tmp_path / str(part)).mkdir()
        storm(tmp_path / str(part), CONTROL_SECONDS, SEED + part, early)
        if any(complaint in problem for problem in problems(tmp_path / str(part))):
            return
    pytest.fail("nothing was noticed in five storms")
