"""The keys of a server: what each of them is, and when it goes, as they lie in the store.

    a stream           the stream of that name
    a string           state[name]                its bytes
    a list             state[\\0dbl\\0 name]        first, end, version       (lists.py)
                       state[\\0dbi\\0 name n]      the item of number n
    when a key goes    state[\\0dbe\\0 name]        ms
                       state[\\0dbt\\0 ms name]     empty: all of them in the order of time

The name of a key of database 0 is the key; in database 3 it is ``\\0db3\\0`` and the key. So no key of database 0
begins with ``\\0db``: it would be a key of another one, or one of the rows above. Where a program has given a stream
and a row of state the same name, the key is the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ...storage.clocks import now_ms
from ...storage.format.keys import MAX_NAME
from ...stream.entries.batch import BatchSource
from ...stream.node.arguments import stored_bytes
from ...stream.state import State, keys_between
from ...stream.stream import Stream
from ...transaction import CommitScope
from .lists import StoredList
from .replies import CommandError

MARK = b"\0db"
LIST = MARK + b"l\0"
_TIME, DUE = MARK + b"e\0", MARK + b"t\0"
_BEHIND_MARK = MARK[:-1] + b"c"
_MS = 8
NEVER = 1 << 63  # ms
_MOST_HANDLES = 1000

Note = Callable[[str, str, bytes], None]


def prefix_of(database: int) -> bytes:
    """What the names of a database's keys begin with: those of 0 are as they are, the others lose 5 of 502 bytes."""
    return MARK + b"%d\0" % database if database else b""


def name_of(database: int, key: bytes) -> bytes:
    """The name of a key in the store. CommandError for one of database 0 that would not be its own."""
    if key.startswith(MARK) and not database:
        raise CommandError("ERR in database 0 no key can begin with \\0db: such rows are the server's own")
    return prefix_of(database) + key


class Keys:
    """The keys of all databases, by the names that they have in the store.

    ``note``      takes the kind and the name of a change, and the key's (events.py)
    ``next_due``  when the first goes, of those that this server has given a time or seen (ms)
    """

    def __init__(self, calls: CommitScope, state: State, note: Note = lambda kind, event, name: None,
                 batch: BatchSource | None = None) -> None:
        self.calls = calls
        self.state = state
        self.note = note
        self.next_due: int = 0
        self.batch = batch  # that all changes go to; None: what has been seen may have changed since
        self._seen: tuple[object, set[bytes]] = None, set()  # a transaction, and names that are no string or list in it
        self._handles: dict[tuple[bytes, int, int], Stream] = {}

    def stream(self, name: bytes, node_max_bytes: int, node_max_entries: int) -> Stream:
        """A handle on a stream: the one before, where there was one."""
        key = name, node_max_bytes, node_max_entries
        handle = self._handles.get(key)
        if handle is None:
            if len(self._handles) >= _MOST_HANDLES:
                self._handles.clear()
            handle = self._handles[key] = self.calls.stream(
                name, node_max_bytes=node_max_bytes, node_max_entries=node_max_entries)
        return handle

    def kind(self, name: bytes) -> str:
        """What TYPE shows."""
        if self.calls.stream(name).exists():
            return "stream"
        return "string" if self._has(name) else "list" if self._has(LIST + name) else "none"

    def require_stream(self, name: bytes) -> None:
        """WRONGTYPE where the key is a string or a list."""
        if self.batch is not None and self.batch.txn is not self._seen[0]:
            self._seen = self.batch.txn, set()
        no_values = self._seen[1]
        if name in no_values:
            return
        if (self._has(name) or self._has(LIST + name)) and not self.calls.stream(name).exists():
            raise wrong_type()
        if self.batch is not None:
            no_values.add(name)

    def _has(self, row: bytes) -> bool:
        return len(row) <= MAX_NAME and row in self.state

    def require(self, name: bytes, kind: str) -> bool:
        """Whether the key is there, as a string or list; WRONGTYPE where it is something else."""
        found = self.kind(name)
        if found not in (kind, "none"):
            raise wrong_type()
        return found == kind

    def string_of(self, name: bytes) -> bytes | None:
        """The string of a key. WRONGTYPE."""
        return self.state[name] if self.require(name, "string") else None

    def list_of(self, name: bytes) -> StoredList:
        """The list of a key, empty where there is none. WRONGTYPE."""
        self.require(name, "list")
        return self._list(name)

    def _list(self, name: bytes) -> StoredList:
        self._seen[1].discard(name)  # it may become one
        return StoredList(self.state, LIST + name, MARK + b"i\0" + name)

    def names(self, prefix: bytes, first: bytes = b"", count: int | None = None) -> list[bytes]:
        """The names of a database's keys, in order: from that one on, so many at most."""
        found: set[bytes] = set()
        for mark, between in ((b"", self.calls.streams_between), (b"", self.state.between), (LIST, self.state.between)):
            for start, end in _spans(mark, prefix):
                start = max(start, (mark + first)[:MAX_NAME])  # no list has a name that is cut off here
                if end is None or start < end:
                    found.update(stored_bytes(name, "name")[len(mark):] for name in between(start, end, count))
        return sorted(found)[:count]

    def how_many_go(self, prefix: bytes) -> int:
        """How many keys of a database have a time."""
        return sum(len(keys_between(self.state, start, end)) for start, end in _spans(_TIME, prefix))

    def delete(self, name: bytes) -> bool:
        """Delete a key, with its time, as a change of its own; False if there is none."""
        if not self.remove(name):
            return False
        self.note("g", "del", name)
        return True

    def remove(self, name: bytes) -> bool:
        """The same as a part of another change."""
        kind = self.kind(name)
        self.expire(name, None)
        if kind == "stream":
            self.calls.delete_stream(name)
        else:
            self.delete_value(name)
        return kind != "none"

    def delete_value(self, name: bytes) -> None:
        """Delete the string or the list that has this name."""
        if self._has(name):
            del self.state[name]
        elif self._has(LIST + name):
            self._list(name).replace([])

    def put(self, name: bytes, value: bytes, at: int | None = None, keeps_time: bool = False) -> None:
        """Have a key be this string, in place of what it is, until ``at`` or, ``keeps_time``, as long as before."""
        if not self._has(name):
            at = self.goes_at(name) if keeps_time else at
            self.remove(name)
        elif not keeps_time:
            self.expire(name, None)
        self.state[name] = value
        self._seen[1].discard(name)
        if at is not None:
            self.expire(name, at)

    def copy(self, name: bytes, to: bytes) -> None:
        """Copy a key, which is there, with its time, in place of another."""
        kind = self.kind(name)
        self.remove(to)
        if kind == "stream":
            self.calls.copy_stream(name, to)
        elif kind == "string":
            self.put(to, self.state[name])
        else:
            self._list(to).replace(self._list(name)[:])
        self.expire(to, self.goes_at(name))

    def rename(self, name: bytes, to: bytes) -> None:
        """Rename a key, which is there, in place of another."""
        if self.kind(name) != "stream":
            self.copy(name, to)
            self.remove(name)
            return
        at = self.goes_at(name)
        self.remove(to)
        self.expire(name, None)
        self.calls.rename_stream(name, to)
        self.expire(to, at)

    def version(self, name: bytes) -> object:
        """What changes with each change of a key; None where there is none."""
        kind = self.kind(name)
        if kind == "none":
            return None
        stream = self.calls.stream(name)
        what = replace(stream.info(), first_entry=None, last_entry=None) if kind == "stream" else \
            self.state[name if kind == "string" else LIST + name]
        return what, self.goes_at(name)

    # -- when they go -------------------------------------------------------------------

    def goes_at(self, name: bytes) -> int | None:
        """When a key goes, in ms since 1970; None: it stays."""
        return int.from_bytes(self.state[_TIME + name], "big") if self._has(_TIME + name) else None

    def expire(self, name: bytes, at: int | None) -> bool:
        """Have a key go then, at once where that has passed, or have it stay; whether it was to go."""
        goes = self._has(_TIME + name)
        if goes:
            del self.state[DUE + self.state.pop(_TIME + name) + name]
        if at is not None and at <= now_ms():
            self.delete(name)
        elif at is not None:
            self.state[_TIME + name] = ms = at.to_bytes(_MS, "big")
            self.state[DUE + ms + name] = b""
            self.next_due = min(self.next_due, at)
        return goes

    def delete_due(self, limit: int) -> list[bytes]:
        """Delete keys whose time has come, so many at most: their names."""
        found = keys_between(self.state, DUE, DUE + (now_ms() + 1).to_bytes(_MS, "big"), limit)
        names = [key[len(DUE) + _MS:] for key in found]
        for name in names:
            self.remove(name)
            self.note("x", "expired", name)
        self.next_due = due_at(*keys_between(self.state, DUE, count=1))
        return names


def due_at(row: bytes | None = None) -> int:
    """When the key goes whose row of DUE this is, in ms; never, where it is none of these rows."""
    return int.from_bytes(row[len(DUE):][:_MS], "big") if row is not None and row.startswith(DUE) else NEVER


def wrong_type() -> CommandError:
    """The error for a key that is something else."""
    return CommandError("WRONGTYPE Operation against a key holding the wrong kind of value")


def _spans(mark: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Where the rows of a database lie in the state, of strings or, behind a mark, of lists."""
    if prefix:
        yield mark + prefix, mark + prefix[:-1] + b"\1"
    else:
        yield mark, mark + MARK
        yield mark + _BEHIND_MARK, mark[:-1] + b"\1" if mark else None
