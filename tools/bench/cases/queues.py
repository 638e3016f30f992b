"""Consumer groups against sqlite3 doing the same state changes, and against redis-server."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import raxlog

from ..peers import QUEUE_BATCH, RawDisk, SqliteGroups, SqliteQueue, rows
from ..rounds import Figure, Rounds
from .commits import flushing


class GroupQueue:
    def __init__(self, group: raxlog.Group) -> None:
        self.group = group

    def read_and_ack(self) -> int:
        """Two calls, two durable commits."""
        batch = self.group.read("w", QUEUE_BATCH)
        for entry in batch:
            entry.fields  # noqa: B018 - a consumer looks at what it gets
        return self.group.ack(*[entry.id for entry in batch])

    def fused(self, ids: list[Any]) -> list[Any]:
        """One call, one durable commit; returns what is to be acknowledged next."""
        batch = self.group.read("w", QUEUE_BATCH, ack=ids)
        for entry in batch:
            entry.fields  # noqa: B018
        return [entry.id for entry in batch]

    def rewind(self) -> None:
        self.group.set_id("0")


class RedisQueue:
    def __init__(self, redis: Any) -> None:
        self._redis = redis

    def read_and_ack(self) -> int:
        """Two calls, two durable commits."""
        reply = self._redis.xreadgroup("g", "w", {"events": ">"}, count=QUEUE_BATCH)
        return int(self._redis.xack("events", "g", *[entry[0] for entry in reply[0][1]])) if reply else 0

    def rewind(self) -> None:
        self._redis.xgroup_setid("events", "g", "0")


def two_calls(queue: SqliteQueue | GroupQueue | RedisQueue) -> Callable[[], int]:
    """Reads a batch and then acknowledges it; how many. At the end it starts over."""

    def batch() -> int:
        done = queue.read_and_ack()
        if not done:
            queue.rewind()
        return done

    return batch


def fused(queue: SqliteQueue | GroupQueue) -> Callable[[], int]:
    """Acknowledges a batch and reads the next in one call; how many. At the end it starts over."""
    held: list[Any] = []

    def batch() -> int:
        nonlocal held
        held = queue.fused(held)
        if not held:
            queue.rewind()
        return len(held)

    return batch


def queue(rounds: Rounds) -> list[Figure]:
    """Durable read + ack in hundreds, in two calls and fused; in two calls beside redis-server too, where it is."""
    readings = rows(min(rounds.entries, 200_000), 0)
    disk = RawDisk(rounds.folder / "queue.disk")
    sqlite = SqliteQueue(rounds.folder / "queue.sqlite")
    groups = SqliteGroups(rounds.folder / "groups.sqlite")
    with (closing(disk), closing(sqlite), closing(groups), raxlog.open(rounds.folder / "queue.rax") as store,
          redis_server(rounds.folder) as redis):
        stream = store.stream("events")
        group = GroupQueue(stream.create_group("g"))
        for at in range(0, len(readings), 1000):
            for log in (sqlite, groups, stream):
                log.extend(readings[at : at + 1000])
        two: dict[str, SqliteQueue | GroupQueue | RedisQueue] = {
            "sqlite3, less state": sqlite, "sqlite3, a group's state": groups, "raxlog": group,
        }
        if redis is not None:
            pipe = redis.pipeline(transaction=False)
            for row in readings:
                pipe.xadd("events", row)
            pipe.execute()
            redis.xgroup_create("events", "g", "0")
            two["redis (appendfsync always)"] = RedisQueue(redis)
        return rounds.contest("durable read + ack of 100, two calls, entries", {
            **{name: partial(rounds.rate, two_calls(queue)) for name, queue in two.items()},
            **flushing(rounds, disk, QUEUE_BATCH // 2),
        }) + rounds.contest("durable read + ack of 100, fused, entries", {
            "sqlite3, less state": partial(rounds.rate, fused(sqlite)),
            "sqlite3, a group's state": partial(rounds.rate, fused(groups)),
            "raxlog": partial(rounds.rate, fused(group)), **flushing(rounds, disk, QUEUE_BATCH),
        })


@contextmanager
def redis_server(folder: Path) -> Iterator[Any]:
    """A redis-server of our own with appendfsync always; None where there is none."""
    program = shutil.which("redis-server")
    if program is None or importlib.util.find_spec("redis") is None:
        yield None
        return
    import redis  # noqa: PLC0415 - only where the server is

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = folder / "redis"
    place.mkdir()
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes",
         "--appendfsync", "always", "--dir", str(place)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0,  # Ctrl-C is not for it
    )
    try:
        client = redis.Redis(port=port)
        for _ in range(200):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        yield client
        client.close()
    finally:
        server.terminate()
        server.wait(20)
