"""The peers: plain sqlite3 as a careful user would write it, and py-lmdb with nothing on top."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import lmdb
import msgpack

Row = dict[str, object]


class SqliteLog:
    """A table of (id, msgpack row): WAL, synchronous FULL unless told otherwise, one flush a commit."""

    def __init__(self, path: Path, synchronous: str = "FULL") -> None:
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={synchronous}")
        self._db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def append(self, row: Row) -> None:
        """One durable insert."""
        self._db.execute("INSERT INTO log (data) VALUES (?)", (msgpack.packb(row),))

    def extend(self, rows: Iterable[Row]) -> None:
        """Many inserts, one durable commit."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO log (data) VALUES (?)", ((msgpack.packb(row),) for row in rows))
        self._db.execute("COMMIT")

    def scan(self) -> int:
        """Every row to a dict; how many."""
        count = 0
        unpack = msgpack.unpackb
        for _, data in self._db.execute("SELECT id, data FROM log ORDER BY id"):
            unpack(data)
            count += 1
        return count

    def range(self, start: int, count: int) -> list[Row]:
        """``count`` rows from the id ``start`` on."""
        cursor = self._db.execute("SELECT id, data FROM log WHERE id >= ? ORDER BY id LIMIT ?", (start, count))
        return [msgpack.unpackb(data) for _, data in cursor]

    def size(self) -> int:
        """Bytes on disk once the log has been folded in."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.stat().st_size

    def close(self) -> None:
        """Close the database."""
        self._db.close()


class BareLmdb:
    """One put of a given size per durable commit: what LMDB itself costs."""

    def __init__(self, path: Path, sync: bool = True) -> None:
        self._env = lmdb.open(str(path), map_size=8 << 30, sync=sync, metasync=sync)
        self._next = 0

    def put(self, value: bytes) -> None:
        """One put, one commit."""
        self._next += 1
        with self._env.begin(write=True) as txn:
            txn.put(self._next.to_bytes(8, "big"), value)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
