"""Streams with groups in two worlds, a live redis-server and a store of ours, compared.

    TwoWorlds.both(words, call)     one command to each: the replies must be the same, an error
                                    must mean the same
    TwoWorlds.compare()             entries, groups, consumers, the whole PEL, counters, lag

Times are not the same in both, so they are compared to within ten seconds; the commands use
idle times of nothing or of hours, so that no decision hangs on the difference. With ``paused``
every command begins in a millisecond of its own, and what it has set to "now" must be the same
set in both worlds.

Redis 7.0 creates a consumer only when it gets something; since 7.2, as here, any read or claim creates
it. Where that matters Redis 7.0 is sent a command that creates it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import raxlog
from group_counters import CounterRules
from raxlog import NoGroup
from raxlog.stream.entries import header as headers
from raxlog.stream.group.state import SEEN_EVERY, find_group
from raxlog.stream.pel import pending_check
from redis_errors import GROUP_ERRORS, NO_KEY, exception_for
from stored_nodes import check_stream

STREAMS = (b"orders", b"mail", b"logs")
TOLERANCE = 10_000  # ms



def answer(client: Any, words: list[Any]) -> tuple[Any, str | None]:
    """What Redis replies to a command, or the text of its error."""
    import redis  # noqa: PLC0415 - only where the server is

    try:
        return client.execute_command(*words), None
    except redis.ResponseError as error:
        return None, str(error)


def entry_reply(entry: raxlog.Entry) -> list[Any]:
    """An entry as it stands in a reply; without fields it has been deleted."""
    return [str(entry.id).encode(), [part for pair in entry.pairs for part in pair] or None]


def entries_reply(entries: Iterable[raxlog.Entry]) -> list[Any]:
    """Entries as they stand in a reply."""
    return list(map(entry_reply, entries))


def id_reply(sid: raxlog.StreamID | None) -> bytes | None:
    """An ID as it stands in a reply."""
    return None if sid is None else str(sid).encode()


def as_pair(text: bytes) -> tuple[int, int]:
    """The ID of a reply as two numbers."""
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def as_dict(flat: list[Any]) -> dict[bytes, Any]:
    """A flat reply of names and values."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


class TwoWorlds:
    """The same streams in a redis-server and in a store, each command given to both."""

    def __init__(self, client: Any, path: Path, node_entries: int | None, transactions: bool, paused: bool) -> None:
        self.client = client
        self.version = tuple(map(int, client.execute_command("INFO", "server").split(b"redis_version:")[1]
                                 .split(b"\r\n")[0].split(b".")))  # fmt: skip
        client.execute_command("CONFIG", "SET", "stream-node-max-entries", node_entries or 100)
        self.path = path
        self.options: dict[str, Any] = {} if node_entries is None else {
            "node_max_bytes": 4096, "node_max_entries": node_entries,
        }
        self.transactions = transactions
        self.paused = paused
        self.store = self._open()
        self.tx: Any = None
        self.rules = CounterRules(self.version)
        self.given_times: set[int] = set()
        self.lags_compared = 0
        self.counters_compared = 0
        self.began = 0
        self.given: deque[list[Any]] = deque(maxlen=20)  # the last commands, to be told of a failure

    def _open(self) -> raxlog.Store:
        return raxlog.open(self.path, durability="relaxed", **self.options, encoding=None)

    # -- our world ----------------------------------------------------------------------

    def stream(self, name: bytes) -> raxlog.Stream:
        """Our stream, in the transaction that is open if there is one."""
        stream: raxlog.Stream = (self.tx or self.store).stream(name)
        return stream

    def group(self, name: bytes, group: bytes) -> raxlog.Group:
        """Our group."""
        return self.stream(name).group(group)

    def begin(self) -> None:
        """Begin a command: in a transaction, in a millisecond of its own, if so is wanted."""
        if self.transactions and self.tx is None:
            self._entered: AbstractContextManager[Any] = self.store.transaction()
            self.tx = self._entered.__enter__()
        if self.paused:
            time.sleep(0.002)
        self.began = time.time_ns() // 1_000_000

    def commit(self) -> None:
        """End the transaction that is open."""
        if self.tx is not None:
            self.tx = None
            self._entered.__exit__(None, None, None)

    def reopen(self) -> None:
        """Close the store and open it again: nothing may live in memory only."""
        self.commit()
        self.store.close()
        self.store = self._open()

    def close(self) -> None:
        """Leave; a transaction that is open is undone."""
        if self.tx is not None:
            self._entered.__exit__(RuntimeError, RuntimeError(), None)
        self.store.close()

    # -- one command to both ------------------------------------------------------------

    def both(self, words: Iterable[Any], call: Callable[[], Any], no_key: type[Exception] = NoGroup,
             shown: Callable[[Any], Any] | None = None) -> Any:
        """Give one command to both; the common reply, or our error: it must mean the same.

        ``shown`` takes from Redis' reply what is not to be compared.
        """
        words = list(words)
        self.given.append(words)
        theirs, refusal = answer(self.client, words)
        if refusal is not None:
            meant = no_key if NO_KEY in refusal else exception_for(refusal, GROUP_ERRORS)
            with pytest.raises(raxlog.RaxlogError) as caught:
                call()
            assert type(caught.value) is meant, f"{words}: Redis says {refusal}, we {caught.value!r}"
            return caught.value
        theirs = theirs if shown is None else shown(theirs)
        reply = call()
        assert reply == theirs, f"{words}: Redis replies {theirs!r}, we {reply!r}"
        return theirs

    def seen_in_redis(self, names: Iterable[bytes], group: bytes, consumer: bytes) -> None:
        """Have Redis 7.0 create a consumer that got nothing."""
        if self.version < (7, 2):
            for name in names:
                self.client.execute_command("XGROUP", "CREATECONSUMER", name, group, consumer)

    def near(self, theirs: int, ours: float) -> bool:
        """Whether two times (or idle times) in ms stand for the same."""
        return abs(theirs - ours) <= TOLERANCE

    # -- everything that can be seen ----------------------------------------------------

    def compare(self, names: Iterable[bytes] = STREAMS) -> None:
        """Compare streams, groups, consumers and pending lists."""
        for name in names:
            stream = self.stream(name)
            assert bool(self.client.execute_command("EXISTS", name)) == stream.exists()
            if stream.exists():
                self._compare_stream(name, stream)

    def _compare_stream(self, name: bytes, stream: raxlog.Stream) -> None:
        full = as_dict(self.client.execute_command("XINFO", "STREAM", name, "FULL", "COUNT", 0))
        entries = list(stream.range())
        assert entries_reply(entries) == full[b"entries"]
        info = stream.info()
        assert info.length == full[b"length"]
        assert info.entries_added == full[b"entries-added"]
        for key, sid in ((b"last-generated-id", info.last_generated_id),
                         (b"max-deleted-entry-id", info.max_deleted_entry_id),
                         (b"recorded-first-entry-id", info.recorded_first_entry_id)):  # fmt: skip
            assert id_reply(sid) == full[key], f"{name!r}: {key!r}"
        theirs = [as_dict(flat) for flat in full[b"groups"]]
        ours = stream.groups()
        assert [group.name for group in ours] == [flat[b"name"] for flat in theirs]
        for group, flat in zip(ours, theirs, strict=True):
            where = f"group {group.name!r} of {name!r}"
            assert id_reply(group.last_delivered_id) == flat[b"last-delivered-id"], where
            behind = sum(entry.id > group.last_delivered_id for entry in entries)
            assert group.lag == behind, f"{where}: a lag of {group.lag}, {behind} entries are to come"
            self._compare_counters(name, group, flat, full)
            self._compare_pending(name, group, flat)

    def _compare_counters(self, name: bytes, group: raxlog.GroupInfo, flat: dict[bytes, Any],
                          full: dict[bytes, Any]) -> None:
        where = f"group {group.name!r} of {name!r}"
        if self.rules.entries_read_comparable(name, group.name):
            self.counters_compared += flat[b"entries-read"] is not None
            assert group.entries_read == flat[b"entries-read"], f"{where}: entries-read"
        if flat[b"lag"] is not None and self.rules.lag_comparable(name, group.name, flat, full):
            self.lags_compared += 1
            assert group.lag == flat[b"lag"], f"{where}: lag"

    def _compare_pending(self, name: bytes, group: raxlog.GroupInfo, flat: dict[bytes, Any]) -> None:
        where = f"group {group.name!r} of {name!r}"
        with self.stream(name)._source.read() as txn:
            found = headers.find(txn, name)
            assert found is not None
            state = find_group(txn, found[0], group.name)
            assert state is not None
            consumers = state.consumers(txn)
            rows = list(state.pel(txn).scan((0, 0), raxlog.StreamID.MAX))
        names = {consumer.number: consumer.name for consumer in consumers}
        theirs = flat[b"pending"]
        mine = [(b"%d-%d" % sid, names[nack.consumer], nack.count) for sid, nack in rows]
        other = [(sid, owner, count) for sid, owner, _, count in theirs]
        assert mine == other, f"{where}: only with us {set(mine) - set(other)}, only in Redis {set(other) - set(mine)}"
        for (sid, nack), (_, _, at, _) in zip(rows, theirs, strict=True):
            assert self._same_time(at, nack.time), f"{where}: {sid} delivered at {nack.time}, in Redis at {at}"
        assert group.pending == flat[b"pel-count"] == len(rows)
        assert group.consumers == len(consumers)
        listed = [as_dict(consumer) for consumer in flat[b"consumers"]]
        assert [(c.name, c.pending) for c in consumers] == [(c[b"name"], c[b"pel-count"]) for c in listed], where
        if self.version >= (7, 2):
            for ours, known in zip(consumers, listed, strict=True):
                assert self._seen_lately(known[b"seen-time"], ours.seen), f"{where}: {ours.name!r} seen"
                assert self._same_time(known[b"active-time"], ours.active), f"{where}: {ours.name!r} active"

    def _same_time(self, theirs: int, ours: int) -> bool:
        if theirs in self.given_times or theirs < 0:
            return theirs == ours
        if self.paused and (theirs >= self.began) != (ours >= self.began):
            return False
        return self.near(theirs, ours)

    def _seen_lately(self, theirs: int, ours: int) -> bool:
        """The same for a seen-time, which on our disk may be some seconds old."""
        if self.paused and ours >= self.began > theirs:
            return False
        return -TOLERANCE < theirs - ours <= SEEN_EVERY  # we come second, so never more

    def check(self) -> None:
        """Assert that our rows agree with each other, on disk."""
        self.commit()
        for name in STREAMS:
            check_stream(self.store, name)
            with self.store._env.read() as txn:
                found = headers.find(txn, name)
                if found is None:
                    continue
                for info in self.store.stream(name).groups():
                    state = find_group(txn, found[0], info.name)
                    assert state is not None
                    problems, totals = pending_check.problems(txn, found[0], state.group)
                    assert problems == []
                    assert state.pending == sum(totals.values())
                    counted = {c.number: c.pending for c in state.consumers(txn) if c.pending}
                    assert counted == {number: many for number, many in totals.items() if many}


