"""The peers: sqlite3 as a careful user would write it, py-lmdb with nothing on top, the disk itself; and the rows."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import lmdb
import msgpack
import raxlog

Row = dict[str, str | int | float]
QUEUE_BATCH = 100  # entries read and acknowledged at once
ROW: Row = {"sensor": "device-000123", "temp": 21.5, "seq": 1}


def rows(count: int, seed: int) -> list[Row]:
    """Small sensor readings, three fields each."""
    chance = random.Random(seed)
    return [
        {"sensor": f"device-{chance.randrange(1000):06d}", "temp": round(chance.uniform(-20, 45), 1), "seq": i}
        for i in range(count)
    ]


def read_hundred(stream: raxlog.Stream) -> Callable[[], object]:
    """Reads a hundred entries to dicts, each time somewhere else."""
    chance = random.Random(3)
    ids = [stream.select(chance.randrange(max(1, len(stream) - 100))) for _ in range(300)]
    return lambda: [entry.fields for entry in stream.range(chance.choice(ids), count=100)]


class SqliteLog:
    """A table of (id, msgpack row): WAL, synchronous FULL by default, one flush a commit."""

    def __init__(self, path: Path, synchronous: str = "FULL") -> None:
        self.path = path
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={synchronous}")
        self.db.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def append(self, row: Row) -> None:
        """One durable insert."""
        self.db.execute("INSERT INTO log (data) VALUES (?)", (msgpack.packb(row),))

    def extend(self, rows: Iterable[Row]) -> None:
        """Many inserts, one durable commit."""
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany("INSERT INTO log (data) VALUES (?)", ((msgpack.packb(row),) for row in rows))
        self.db.execute("COMMIT")

    def scan(self) -> int:
        """Every row to a dict; how many."""
        count = 0
        unpack = msgpack.unpackb
        for _, data in self.db.execute("SELECT id, data FROM log ORDER BY id"):
            unpack(data)
            count += 1
        return count

    def range(self, start: int, count: int) -> list[Row]:
        """``count`` rows from the id ``start`` on."""
        cursor = self.db.execute("SELECT id, data FROM log WHERE id >= ? ORDER BY id LIMIT ?", (start, count))
        return [msgpack.unpackb(data) for _, data in cursor]

    def size(self) -> int:
        """Bytes on disk once the log has been folded in."""
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.stat().st_size

    def close(self) -> None:
        self.db.close()


class SqliteQueue(SqliteLog):
    """A log, one position, pending rows: a queue in SQL with as little state as will do."""

    tables: ClassVar[Sequence[str]] = (
        "CREATE TABLE IF NOT EXISTS position (number INTEGER PRIMARY KEY, last INTEGER NOT NULL)",
        "CREATE TABLE IF NOT EXISTS pending (id INTEGER PRIMARY KEY, consumer TEXT NOT NULL, time INTEGER NOT NULL,"
        " deliveries INTEGER NOT NULL)",
        "INSERT OR IGNORE INTO position VALUES (1, 0)",
    )

    def __init__(self, path: Path, batch: int = QUEUE_BATCH) -> None:
        super().__init__(path)
        for statement in self.tables:
            self.db.execute(statement)
        self._batch = batch

    def _read(self) -> list[int]:
        db = self.db
        (last,) = db.execute("SELECT last FROM position").fetchone()
        rows = db.execute("SELECT id, data FROM log WHERE id > ? ORDER BY id LIMIT ?", (last, self._batch)).fetchall()
        for _, data in rows:
            msgpack.unpackb(data)
        ids = [row[0] for row in rows]
        if ids:
            self._deliver(ids, last, time.time_ns() // 1_000_000)
        return ids

    def _deliver(self, ids: list[int], last: int, now: int) -> None:
        self.db.executemany("INSERT OR REPLACE INTO pending VALUES (?, 'w', ?, 1)", ((i, now) for i in ids))
        self.db.execute("UPDATE position SET last = ?", (ids[-1],))

    def _ack(self, ids: list[int]) -> None:
        self.db.executemany("DELETE FROM pending WHERE id = ?", ((i,) for i in ids))

    def read_and_ack(self) -> int:
        """Two calls, two durable commits."""
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        ids = self._read()
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        self._ack(ids)
        db.execute("COMMIT")
        return len(ids)

    def fused(self, ids: list[int]) -> list[int]:
        """Acknowledge one batch and read the next in one durable commit."""
        self.db.execute("BEGIN IMMEDIATE")
        self._ack(ids)
        fresh = self._read()
        self.db.execute("COMMIT")
        return fresh

    def rewind(self) -> None:
        """Start over, with nothing pending."""
        self.db.execute("DELETE FROM pending")
        self.db.execute("UPDATE position SET last = 0")


class SqliteGroups(SqliteQueue):
    """The same state as a group's: when a consumer was seen, what it has by ID and by age, entries read.

    In as few statements as it takes: no row of the PEL goes through Python.
    """

    tables = (
        "CREATE TABLE position (number INTEGER PRIMARY KEY, last INTEGER NOT NULL, entries_read INTEGER NOT NULL)",
        "CREATE TABLE consumer (number INTEGER PRIMARY KEY, seen INTEGER NOT NULL, active INTEGER NOT NULL)",
        "CREATE TABLE pending (number INTEGER NOT NULL, id INTEGER NOT NULL, consumer INTEGER NOT NULL,"
        " time INTEGER NOT NULL, deliveries INTEGER NOT NULL, PRIMARY KEY (number, id)) WITHOUT ROWID",
        "CREATE INDEX of_a_consumer ON pending (number, consumer, id)",
        "CREATE INDEX by_time ON pending (number, time, id)",
        "INSERT INTO position VALUES (1, 0, 0)",
        "INSERT INTO consumer VALUES (1, 0, 0)",
    )

    def _deliver(self, ids: list[int], last: int, now: int) -> None:
        db = self.db
        db.execute("INSERT INTO pending SELECT 1, id, 1, ?, 1 FROM log WHERE id > ? ORDER BY id LIMIT ?",
                   (now, last, self._batch))
        db.execute("UPDATE position SET last = ?, entries_read = entries_read + ? WHERE number = 1",
                   (ids[-1], len(ids)))
        db.execute("UPDATE consumer SET seen = ?, active = ? WHERE number = 1", (now, now))

    def _ack(self, ids: list[int]) -> None:
        self.db.execute("DELETE FROM pending WHERE number = 1 AND id IN (SELECT value FROM json_each(?))",
                         (json.dumps(ids),))


class BareLmdb:
    """One put of a given size per durable commit: what LMDB itself costs."""

    def __init__(self, path: Path) -> None:
        self._env = lmdb.open(str(path), map_size=8 << 30)
        self._next = 0

    def put(self, value: bytes) -> None:
        """One put, one commit."""
        self._next += 1
        with self._env.begin(write=True) as txn:
            txn.put(self._next.to_bytes(8, "big"), value)

    def close(self) -> None:
        self._env.close()


class RawDisk:
    """4 KB written in place and flushed: what the disk itself takes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        self._block = bytes(4096)
        os.pwrite(self._file, bytes(1 << 20), 0)
        os.fsync(self._file)
        self._next = 0

    def flush(self) -> None:
        """One pwrite, one fdatasync."""
        self._next = (self._next + 4096) % (1 << 20)
        os.pwrite(self._file, self._block, self._next)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)
