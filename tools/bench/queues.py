"""Consumer groups against sqlite3 doing the same state changes, and against redis-server."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import raxlog

from .peers import Row
from .rounds import Figure, contest, median_us, rate_for
from .streams import without_flushes

BATCH = 100


class SqliteQueue:
    """A log, one position, pending rows: a queue in SQL with as little state as will do."""

    def __init__(self, path: Path) -> None:
        self._db = db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
        db.execute("CREATE TABLE position (last INTEGER NOT NULL)")
        db.execute(
            "CREATE TABLE pending (id INTEGER PRIMARY KEY, consumer TEXT NOT NULL, time INTEGER NOT NULL,"
            " deliveries INTEGER NOT NULL)"
        )
        db.execute("INSERT INTO position VALUES (0)")

    def extend(self, rows: list[Row]) -> None:
        """Append in one durable commit."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO log (data) VALUES (?)", ((msgpack.packb(row),) for row in rows))
        self._db.execute("COMMIT")

    def _read(self) -> list[int]:
        db = self._db
        (last,) = db.execute("SELECT last FROM position").fetchone()
        rows = db.execute("SELECT id, data FROM log WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH)).fetchall()
        for _, data in rows:
            msgpack.unpackb(data)
        now = time.time_ns() // 1_000_000
        db.executemany("INSERT OR REPLACE INTO pending VALUES (?, 'w', ?, 1)", ((row[0], now) for row in rows))
        if rows:
            db.execute("UPDATE position SET last = ?", (rows[-1][0],))
        return [row[0] for row in rows]

    def _ack(self, ids: list[int]) -> None:
        self._db.executemany("DELETE FROM pending WHERE id = ?", ((i,) for i in ids))

    def read_and_ack(self) -> int:
        """Two calls, two durable commits."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        ids = self._read()
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        self._ack(ids)
        db.execute("COMMIT")
        return len(ids)

    def fused(self, ids: list[int]) -> list[int]:
        """Acknowledge one batch and read the next in one durable commit."""
        self._db.execute("BEGIN IMMEDIATE")
        self._ack(ids)
        fresh = self._read()
        self._db.execute("COMMIT")
        return fresh

    def rewind(self) -> None:
        """Start over, with nothing pending."""
        self._db.execute("DELETE FROM pending")
        self._db.execute("UPDATE position SET last = 0")

    def close(self) -> None:
        """Close the database."""
        self._db.close()


class SqliteGroups(SqliteQueue):
    """The same state as a group's: when a consumer was seen, what it has by ID and by age, entries read.

    In as few statements as it takes: no row of the PEL goes through Python.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for statement in (
            "DROP TABLE pending",
            "DROP TABLE position",
            "CREATE TABLE position (number INTEGER PRIMARY KEY, last INTEGER NOT NULL, entries_read INTEGER NOT NULL)",
            "CREATE TABLE consumer (number INTEGER PRIMARY KEY, seen INTEGER NOT NULL, active INTEGER NOT NULL)",
            "CREATE TABLE pending (number INTEGER NOT NULL, id INTEGER NOT NULL, consumer INTEGER NOT NULL,"
            " time INTEGER NOT NULL, deliveries INTEGER NOT NULL, PRIMARY KEY (number, id)) WITHOUT ROWID",
            "CREATE INDEX of_a_consumer ON pending (number, consumer, id)",
            "CREATE INDEX by_time ON pending (number, time, id)",
            "INSERT INTO position VALUES (1, 0, 0)",
            "INSERT INTO consumer VALUES (1, 0, 0)",
        ):
            self._db.execute(statement)

    def _read(self) -> list[int]:
        db = self._db
        (last,) = db.execute("SELECT last FROM position WHERE number = 1").fetchone()
        rows = db.execute("SELECT id, data FROM log WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH)).fetchall()
        for _, data in rows:
            msgpack.unpackb(data)
        now = time.time_ns() // 1_000_000
        if rows:
            db.execute("INSERT INTO pending SELECT 1, id, 1, ?, 1 FROM log WHERE id > ? ORDER BY id LIMIT ?",
                       (now, last, BATCH))
            db.execute("UPDATE position SET last = ?, entries_read = entries_read + ? WHERE number = 1",
                       (rows[-1][0], len(rows)))
            db.execute("UPDATE consumer SET seen = ?, active = ? WHERE number = 1", (now, now))
        return [row[0] for row in rows]

    def _ack(self, ids: list[int]) -> None:
        self._db.execute("DELETE FROM pending WHERE number = 1 AND id IN (SELECT value FROM json_each(?))",
                         (json.dumps(ids),))


def take_and_ack(group: raxlog.Group) -> int:
    """Two calls, two durable commits."""
    batch = group.read("w", BATCH)
    for entry in batch:
        entry.fields  # noqa: B018 - a consumer looks at what it gets
    return group.ack(*[entry.id for entry in batch])


def take_fused(group: raxlog.Group, held: list[Any]) -> list[Any]:
    """One call, one durable commit; returns what is to be acknowledged next."""
    batch = group.read("w", BATCH, ack=held)
    for entry in batch:
        entry.fields  # noqa: B018
    return [entry.id for entry in batch]


def queues(folder: Path, rounds: int, seconds: float, readings: list[Row]) -> list[Figure]:
    """Durable read + ack in hundreds: two calls, fused, and beside redis-server."""
    sqlite = SqliteQueue(folder / "queue.sqlite")
    groups = SqliteGroups(folder / "groups.sqlite")
    with raxlog.open(folder / "queue.rax") as store, _redis(folder) as redis:
        stream = store.stream("events")
        group = stream.create_group("g", "0", create_stream=True)
        for at in range(0, len(readings), 1000):
            sqlite.extend(readings[at : at + 1000])
            groups.extend(readings[at : at + 1000])
            stream.extend(readings[at : at + 1000])
        if redis is not None:
            pipe = redis.pipeline(transaction=False)
            for row in readings:
                pipe.xadd("events", row)
            pipe.execute()
            redis.xgroup_create("events", "g", "0")
        held: dict[Any, list[Any]] = {sqlite: [], groups: [], "raxlog": []}

        def sqlite_two(queue: SqliteQueue) -> int:
            done = queue.read_and_ack()
            if not done:
                queue.rewind()
            return done

        def sqlite_fused(queue: SqliteQueue) -> int:
            held[queue] = queue.fused(held[queue])
            if not held[queue]:
                queue.rewind()
            return len(held[queue])

        def raxlog_two() -> int:
            done = take_and_ack(group)
            if not done:
                group.set_id("0")
            return done

        def raxlog_fused() -> int:
            held["raxlog"] = take_fused(group, held["raxlog"])
            if not held["raxlog"]:
                group.set_id("0")
            return len(held["raxlog"])

        def redis_two() -> int:
            reply = redis.xreadgroup("g", "w", {"events": ">"}, count=BATCH)
            if not reply:
                redis.xgroup_setid("events", "g", "0")
                return 0
            ids = [entry[0] for entry in reply[0][1]]
            return int(redis.xack("events", "g", *ids))

        two: dict[str, Callable[[], float]] = {
            "sqlite3, less state, two commits": lambda: rate_for(seconds, lambda: sqlite_two(sqlite)),
            "sqlite3, a group's state, two commits": lambda: rate_for(seconds, lambda: sqlite_two(groups)),
            "raxlog, two commits": lambda: rate_for(seconds, raxlog_two),
        }
        if redis is not None:
            two["redis 7 (appendfsync always)"] = lambda: rate_for(seconds, redis_two)
        figures = contest("durable read + ack of 100, two calls, entries", two, rounds)
        figures += contest("durable read + ack of 100, fused, entries", {
            "sqlite3, less state, one commit": lambda: rate_for(seconds, lambda: sqlite_fused(sqlite)),
            "sqlite3, a group's state, one commit": lambda: rate_for(seconds, lambda: sqlite_fused(groups)),
            "raxlog, one commit": lambda: rate_for(seconds, raxlog_fused),
        }, rounds)
    sqlite.close()
    groups.close()
    return figures


def queue_cpu(folder: Path, readings: list[Row]) -> list[Figure]:
    """CPU of one batch of 100 with LMDB's flushes switched off, which only a benchmark may do."""
    with without_flushes(folder / "cpu.rax") as store:
        stream = store.stream("events")
        for at in range(0, min(len(readings), 400_000), 1000):
            stream.extend(readings[at : at + 1000])
        two = stream.create_group("two", "0")
        one = stream.create_group("one", "0")
        held: list[Any] = []

        def fused() -> None:
            nonlocal held
            held = take_fused(one, held)

        return [
            Figure("batch of 100 read + acked, no flush", "raxlog, two calls", "µs",
                   [median_us(lambda: take_and_ack(two), 1500)], [1.0]),
            Figure("batch of 100 read + acked, no flush", "raxlog, fused", "µs", [median_us(fused, 1500)], [1.0]),
        ]


def depth(folder: Path, rounds: int, seconds: float, most: int) -> list[Figure]:
    """The rate of read + ack at different backlogs, and beside many pending entries."""
    store = raxlog.open(folder / "depth.rax", durability="relaxed")
    with store:
        contenders: dict[str, Callable[[], float]] = {}
        for backlog in (1_000, 100_000, most):
            stream = store.stream(f"backlog-{backlog}")
            group = stream.create_group("g", "0", create_stream=True)
            row = {"sensor": "device-000123", "temp": 21.5, "seq": 1}
            for at in range(0, backlog, 10_000):
                stream.extend([row] * min(10_000, backlog - at))
            contenders[f"backlog {backlog:,}"] = partial(rate_for, seconds, partial(_around, group))
        held = store.stream(f"backlog-{most}").create_group("held", "0")
        while held.pending().total < min(1_000_000, most // 2):
            held.read("slow", 10_000)
        contenders[f"pending {held.pending().total:,}"] = lambda: rate_for(seconds, lambda: _around(held))
        return contest("read + ack of 100 (relaxed), entries", contenders, rounds)


def _around(group: raxlog.Group) -> int:
    done = take_and_ack(group)
    if not done:
        group.set_id("0")
    return done


@contextmanager
def _redis(folder: Path) -> Iterator[Any]:
    """A redis-server of our own with appendfsync always; None where there is none."""
    program = shutil.which("redis-server")
    if program is None:
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
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
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
