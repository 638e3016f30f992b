"""Keys from a file of Redis, or from a server, into a store; and from a store to a server.

    RDB file ── rows ──┐                              ┌── streams: node by node, each in a commit
                       ├──> a database of the store ──┤
    SCAN, DUMP, PTTL ──┘                              └── strings and lists: many in a commit

What is not a stream, string or list is counted and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...index.pubsub.glob import glob_matches
from ...storage.clocks import now_ms
from ...storage.errors import NotInstalled
from ...storage.format.keys import MAX_NAME
from ...store import Store, parts
from ...stream.dump.rdb_file import Row, read_dump
from ...transaction import CommitScope
from .keyspace import LIST, MARK, Keys, prefix_of

if TYPE_CHECKING:
    import redis

_AT_ONCE = 500  # keys
_BYTES = 8 << 20
_LONGEST = MAX_NAME - len(LIST) - 8  # of the names of lists, and of keys that go

Report = Callable[[int, int], None]  # how far, keys that are there now


class Transfer:
    """A transfer: which keys there were. ``replaces``: also where the other side has one of that name."""

    def __init__(self, store: Store, replaces: bool, report: Report = lambda place, keys: None) -> None:
        source, streams, pubsub = parts(store)
        self.done: Counter[str] = Counter()  # by kind
        self.kept: Counter[str] = Counter()  # there already
        self.left_out: Counter[str] = Counter()
        self._store = store
        self._replaces = replaces
        self._report = report
        self._keys = Keys(CommitScope(streams, pubsub, source), store.state)

    def take(self, rows: Iterable[Row]) -> None:
        """Have keys in the store."""
        small: list[tuple[bytes, Row]] = []
        size = 0
        for row in rows:
            name = prefix_of(row.database) + row.key
            if row.value is None:
                self.left_out[row.kind] += 1
            elif row.key.startswith(MARK) and not row.database:
                self.left_out["name that is reserved"] += 1
            elif len(name) > (MAX_NAME if row.kind == "stream" and row.at is None else _LONGEST):
                self.left_out["name that is too long"] += 1
            elif row.at is not None and row.at <= now_ms():
                self.left_out["key that has gone"] += 1
            elif row.kind == "stream":
                self._put(self._keys, name, row)
            else:
                small.append((name, row))
                size += len(row.value) if isinstance(row.value, bytes) else sum(map(len, row.value))
            if len(small) >= _AT_ONCE or size >= _BYTES:
                self._put_all(small)
                small, size = [], 0
            self._report(row.place, self.done.total())
        self._put_all(small)

    def _put_all(self, small: list[tuple[bytes, Row]]) -> None:
        with self._store.transaction() as tx:
            keys = Keys(tx, tx.state)
            for name, row in small:
                self._put(keys, name, row)

    def _put(self, keys: Keys, name: bytes, row: Row) -> None:
        if keys.kind(name) != "none":
            if not self._replaces:
                self.kept[row.kind] += 1
                return
            if row.kind != "stream":
                keys.remove(name)
        if isinstance(row.value, list):
            keys.list_of(name).push(row.value, left=False)
        elif row.kind == "string" and row.value is not None:
            keys.put(name, row.value)
        elif row.value is not None:
            keys.calls.restore_stream(name, row.value, replace=True)
            keys.delete_value(name)
        keys.expire(name, row.at)
        self.done[row.kind] += 1

    def give(self, client: redis.Redis, pattern: bytes) -> None:
        """Have the keys of database 0 in a server."""
        server: Any = client
        version = server.info("server")["redis_version"]
        self._keys.calls.streams()  # CorruptionError where the name of one has vanished
        for name in self._keys.names(b""):
            if pattern != b"*" and not glob_matches(pattern, name):
                continue
            kind, at = self._keys.kind(name), self._keys.goes_at(name)
            if not self._replaces and server.exists(name):
                self.kept[kind] += 1
                continue
            if kind == "stream":
                payload = self._keys.calls.stream(name).dump(version)
                server.restore(name, at or 0, payload, replace=True, absttl=True)
            else:
                with server.pipeline() as pipe:
                    pipe.delete(name)
                    if kind == "string":
                        pipe.set(name, self._keys.state[name])
                    else:
                        pipe.rpush(name, *self._keys.list_of(name)[:])
                    if at is not None:
                        pipe.pexpireat(name, at)
                    pipe.execute()
            self.done[kind] += 1
            self._report(0, self.done.total())


def connected(url: str) -> redis.Redis:
    """A client of the server at a URL. NotInstalled."""
    try:
        import redis  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotInstalled("reaching a server needs redis-py: pip install raxlog[redis]") from error
    return redis.Redis.from_url(url)


def rows_of(client: redis.Redis, pattern: bytes) -> Iterator[Row]:
    """The keys of a server's database that match, as keys of database 0."""
    server: Any = client
    cursor = -1
    while cursor:
        cursor, names = server.scan(max(cursor, 0), match=pattern, count=100)
        with server.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.type(name)
            kinds = [kind.decode() for kind in pipe.execute()] if names else []
            wanted = [name for name, kind in zip(names, kinds, strict=True) if kind in ("stream", "string", "list")]
            for name in wanted:
                pipe.dump(name).pttl(name)
            found = pipe.execute() if wanted else []
        yield from (Row(0, b"", kind, None, None) for kind in kinds if kind not in ("stream", "string", "list", "none"))
        for name, payload, ttl in zip(wanted, found[::2], found[1::2], strict=True):
            if payload is not None:
                kind, value = read_dump(payload)
                at = now_ms() + ttl if ttl >= 0 else None
                yield Row(0, name, kind, payload if kind == "stream" else value, at)
