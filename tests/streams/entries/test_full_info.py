"""full_info(): the figures of XINFO STREAM FULL, beside those of a live redis-server.

The same random commands go to both; then everything of the reply is compared. Times are not the
same in both, so they are compared to within ten seconds.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import raxlog
from cli_runs import Run, one_line
from raxlog import StreamID
from raxlog.stream.entries import header as headers
from raxlog.stream.group.state import find_group

pytest_plugins = ["cli_fixtures"]

TOLERANCE = 10.0  # seconds
SEEDS = (1, 2, 3)


@pytest.fixture
def plain_redis(real_redis: Any, redis_address: tuple[str, int]) -> Iterator[Any]:
    """The server through a client that hands on replies as they come."""
    import redis  # noqa: PLC0415 - only where the server is

    client = redis.Redis(*redis_address, protocol=2)
    client.response_callbacks.clear()
    yield client
    client.close()


def as_dict(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


class Both:
    """A stream with groups in a redis-server and in a store of ours."""

    def __init__(self, client: Any, store: raxlog.Store, seed: int) -> None:
        self.client = client
        self.ours = store.stream("s", node_max_bytes=4096, node_max_entries=100)
        self.rng = random.Random(seed)
        self.added = 0

    def live(self) -> list[str]:
        return [str(entry.id) for entry in self.ours.range()]

    def some(self) -> list[str]:
        ids = self.live()
        return self.rng.sample(ids, min(len(ids), self.rng.randint(1, 4)))

    def step(self) -> None:
        rng, redis, ours = self.rng, self.client.execute_command, self.ours
        group, consumer = rng.choice("gh"), rng.choice("abc")
        what = rng.choice(("add", "add", "add", "read", "read", "ack", "claim", "delete", "group", "noack"))
        there = {one.name.decode() for one in ours.groups()} if ours.exists() else set()
        if what == "add":
            for _ in range(rng.randint(1, 20)):
                self.added += 1
                redis("XADD", "s", f"{self.added}-1", "n", self.added)
                ours.append({"n": self.added}, id=f"{self.added}-1")
        elif what == "group" and ours.exists() and group not in there:
            redis("XGROUP", "CREATE", "s", group, "0")
            ours.create_group(group, "0")
        elif group not in there:
            return
        elif what in ("read", "noack"):
            redis("XREADGROUP", "GROUP", group, consumer, "COUNT", 7, *["NOACK"] * (what == "noack"),
                  "STREAMS", "s", ">")
            ours.group(group).read(consumer, count=7, noack=what == "noack")
        elif what == "ack" and (ids := self.some()):
            redis("XACK", "s", group, *ids)
            ours.group(group).ack(*ids)
        elif what == "claim" and (ids := self.some()):
            redis("XCLAIM", "s", group, consumer, 0, *ids, "IDLE", 5_000_000)
            ours.group(group).claim(consumer, *ids, idle=5000)
        elif what == "delete" and (ids := self.some()):
            redis("XDEL", "s", *ids)
            ours.delete(*ids)

    def compare(self, count: int) -> None:
        theirs = as_dict(self.client.execute_command("XINFO", "STREAM", "s", "FULL", "COUNT", count))
        full = self.ours.full_info(count=count)
        figures = full.stream.to_dict()
        for name in (b"length", b"radix-tree-keys", b"radix-tree-nodes", b"entries-added"):
            assert figures[name.decode().replace("-", "_")] == theirs[name], name
        for name in (b"last-generated-id", b"max-deleted-entry-id", b"recorded-first-entry-id"):
            assert str(figures[name.decode().replace("-", "_")]).encode() == theirs[name], name
        assert [[str(one.id).encode(), [part for pair in one.pairs for part in pair]] for one in full.entries] == (
            theirs[b"entries"]
        )
        groups = list(map(as_dict, theirs[b"groups"]))
        assert [group.name for group in full.groups] == [flat[b"name"] for flat in groups]
        for group, flat in zip(full.groups, groups, strict=True):
            self.compare_group(group, flat)

    def compare_group(self, group: raxlog.GroupDetail, flat: dict[bytes, Any]) -> None:
        assert str(group.last_delivered_id).encode() == flat[b"last-delivered-id"]
        if flat[b"entries-read"] is not None:
            assert group.entries_read == flat[b"entries-read"]
        assert group.lag == sum(entry.id > group.last_delivered_id for entry in self.ours.range())
        assert group.pending == flat[b"pel-count"]
        assert group.released == 0
        self.compare_pending(group.pending_entries, [(row[0], row[1], row[2], row[3]) for row in flat[b"pending"]])
        consumers = [as_dict(one) for one in flat[b"consumers"]]
        # Redis 7.0 creates a consumer only when he gets something; since 7.2, as with us, by any read.
        mine = [one for one in group.consumers if one.pending or one.name in {them[b"name"] for them in consumers}]
        assert [one.name for one in mine] == [them[b"name"] for them in consumers]
        for one, them in zip(mine, consumers, strict=True):
            assert one.pending == them[b"pel-count"]
            assert abs(one.seen.timestamp() - them[b"seen-time"] / 1000) < TOLERANCE
            if them.get(b"active-time", -1) >= 0:
                assert one.active is not None
                assert abs(one.active.timestamp() - them[b"active-time"] / 1000) < TOLERANCE
            self.compare_pending(one.pending_entries, [(row[0], one.name, row[1], row[2]) for row in them[b"pending"]])

    def compare_pending(self, ours: list[raxlog.PendingDetail], theirs: list[Any]) -> None:
        assert [(str(row.id).encode(), row.consumer, row.deliveries) for row in ours] == [
            (sid, consumer, deliveries) for sid, consumer, _, deliveries in theirs
        ]
        for row, (_, _, delivered, _) in zip(ours, theirs, strict=True):
            assert row.delivered is not None
            assert abs(row.delivered.timestamp() - delivered / 1000) < TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_what_a_live_redis_tells(plain_redis: Any, store: raxlog.Store, seed: int) -> None:
    print(f"seed {seed}")
    both = Both(plain_redis, store, seed)
    both.step()
    for _ in range(150):
        both.step()
        if both.ours.exists() and both.rng.random() < 0.2:
            both.compare(both.rng.choice((0, 0, 1, 3, 10)))
    both.compare(0)
    full = both.ours.full_info(count=0)
    assert len(full.groups) == 2
    assert sum(group.pending for group in full.groups) > 10


def test_ten_of_each_are_told_unless_asked_otherwise(store: raxlog.Store) -> None:
    orders = store.stream("orders")
    orders.extend({"n": n} for n in range(25))
    billing = orders.create_group("billing", "0")
    billing.read("a", count=15)
    billing.read("b", count=8)
    before = time.time()
    for count, entries, pending, of_b in ((10, 10, 10, 8), (0, 25, 23, 8), (None, 25, 23, 8), (3, 3, 3, 3)):
        full = orders.full_info(count=count)
        group = full.groups[0]
        assert [consumer.name for consumer in group.consumers] == [b"a", b"b"]
        assert (len(full.entries), len(group.pending_entries)) == (entries, pending)
        assert len(group.consumers[1].pending_entries) == of_b
        assert (group.pending, group.consumers[1].pending, group.lag) == (23, 8, 2)
    assert orders.full_info() == orders.full_info(count=10)
    assert group.consumers[0].seen.timestamp() <= before
    with pytest.raises(raxlog.InvalidArgument, match="count=-1"):
        orders.full_info(count=-1)
    with pytest.raises(raxlog.NoStream):
        store.stream("nope").full_info()


def test_what_was_given_back_is_told_as_nobodys(store: raxlog.Store) -> None:
    orders = store.stream("orders")
    ids = orders.extend({"n": n} for n in range(3))
    billing = orders.create_group("billing", "0")
    billing.read("a")
    billing.nack(ids[1], delay=60)
    group = orders.full_info().groups[0]
    assert (group.pending, group.released) == (3, 1)
    assert [(row.id, row.consumer, row.delivered is None) for row in group.pending_entries] == [
        (ids[0], b"a", False), (ids[1], None, True), (ids[2], b"a", False),
    ]  # fmt: skip
    assert [row.id for row in group.consumers[0].pending_entries] == [ids[0], ids[2]]


def test_it_is_told_as_text_with_an_encoding_and_sees_an_open_transaction(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", encoding="utf-8") as store:
        store.bind("orders.>", "orders")
        with store.transaction() as tx:
            tx.publish("orders.eu", {"item": "book"})
            tx.stream("orders").create_group("eu", "0", subjects=["orders.eu", "orders.uk.>"])
            tx.group("orders", "eu").read("w")
            full = tx.stream("orders").full_info()
            assert full.entries[0].fields["item"] == "book"
            assert (full.groups[0].name, full.groups[0].consumers[0].name) == ("eu", "w")
            assert full.groups[0].pending_entries[0].consumer == "w"
            assert full.groups[0].subjects == ["orders.eu", "orders.uk.>"]


def test_pending_rows_that_are_gone_are_damage_and_no_shorter_answer(store: raxlog.Store) -> None:
    orders = store.stream("orders")
    orders.extend({"n": n} for n in range(300))
    orders.create_group("billing", "0").read("a")

    first = [(entry.id.ms, entry.id.seq) for entry in orders.range(count=112)]

    def lose_a_bucket(txn: Any) -> None:
        found = headers.find(txn, b"orders")
        assert found is not None
        group = find_group(txn, found[0], b"billing")
        assert group is not None
        group.pel(txn).remove(first)

    store._source.submit(lose_a_bucket)
    assert len(orders.full_info(count=5).groups[0].pending_entries) == 5
    with pytest.raises(raxlog.CorruptionError, match="fewer pending entries than the 300"):
        orders.full_info(count=0)


# -- on the command line ------------------------------------------------------------------


@pytest.fixture
def billing(orders: str) -> str:
    """The store of 'orders', with a group that has delivered 1-1 and 2-1 to 'a'; 2-1 was given back."""
    with raxlog.open(orders, encoding=None) as store:
        group = store.stream("orders").create_group("billing", "0")
        group.read("a", count=2)
        group.nack("2-1")
    return orders


def test_the_command_prints_it(raxlog_cli: Run, billing: str) -> None:
    status, out, _ = raxlog_cli("info", billing, "orders", "--full", "--count", "1")
    lines = out.splitlines()
    assert status == 0
    assert lines[1].split() == ["length", "3"]
    assert "entries: 1 of 3" in lines
    assert "  1-1\titem=book\tn=1" in lines
    assert "group billing: last delivered 2-1, entries read 2, lag 1" in lines
    assert "  pending: 1 of 2; 1 of them released" in lines
    assert lines[-1].split()[:2] == ["1-1", "a"]
    status, out, _ = raxlog_cli("info", billing, "orders", "--full")
    assert [line.split()[1] for line in out.splitlines() if line.split()[:1] == ["2-1"]] == ["item=book", "(released)"]


def test_the_command_prints_it_as_json(raxlog_cli: Run, billing: str) -> None:
    status, out, _ = raxlog_cli("info", billing, "orders", "--full", "--json", "--count", "0")
    figures = json.loads(out)
    assert (status, figures["last_generated_id"]) == (0, "3-1")
    assert [one["id"] for one in figures["entries"]] == ["1-1", "2-1", "3-1"]
    group = figures["groups"][0]
    assert (group["name"], group["last_delivered_id"], group["pending"], group["released"]) == (
        "billing", "2-1", 2, 1,
    )  # fmt: skip
    assert [(row["id"], row["consumer"]) for row in group["pending_entries"]] == [("1-1", "a"), ("2-1", None)]
    assert group["pending_entries"][1]["delivered"] is None
    delivered = datetime.fromisoformat(group["consumers"][0]["pending_entries"][0]["delivered"])
    assert abs(delivered.timestamp() - time.time()) < 60
    assert StreamID(figures["recorded_first_entry_id"]) == StreamID("1-1")


@pytest.mark.parametrize("more", [("--full",), ("orders", "--count", "2"), ("orders", "--full", "--count", "-1"),
                                  ("orders", "--full", "--rax")])
def test_the_command_refuses_what_has_no_meaning(raxlog_cli: Run, billing: str, more: tuple[str, ...]) -> None:
    status, out, err = raxlog_cli("info", billing, *more)
    assert (status, out) == (2, "")
    one_line(err)
