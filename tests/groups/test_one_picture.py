"""full_info() is of one state; Redis' own lag; who is new; streams named twice; seen-times at once."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import raxlog
import raxlog.aio
import redis
from raxlog import CountTooSmall, IDBelowDeleted, IDBelowEntries, IDTooSmall, IDZero, InvalidArgument

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))


def test_entries_figures_and_groups_are_of_one_state_beside_a_writer(store: raxlog.Store) -> None:
    stream = store.stream("q")
    stream.append({"n": 0}, "1-0")
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            with store.transaction() as tx:  # one entry, one group, one pending entry more
                tx.stream("q").append({"n": number}, f"{number + 1}-0")
                tx.stream("q").create_group(f"g{number}", "0").read("w", count=1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while (full := stream.full_info(count=None)).stream.length < 60:
            figures = full.stream
            assert figures.length == len(full.entries) == figures.entries_added == len(full.groups) + 1
            assert figures.groups == len(full.groups)
            assert (figures.first_entry, figures.last_entry) == (full.entries[0], full.entries[-1])
            assert [group.pending for group in full.groups] == [1] * len(full.groups)
            assert stream.info().groups >= figures.groups
    finally:
        done.set()
        writer.join()


def test_the_lag_of_redis_stands_beside_the_exact_one(store: raxlog.Store, newer_address: tuple[str, int]) -> None:
    print("RAXLOG_SEED =", SEED)
    rng = random.Random(SEED)
    client: Any = redis.Redis(*newer_address)
    client.flushall()
    stream = store.stream("q")
    unknown = 0
    for step in range(1, 400):
        what = rng.choice(["add", "add", "add", "delete", "trim", "create", "set", "read", "read"])
        some = f"{rng.randrange(step + 1)}-0"
        if what == "add":
            stream.append({"n": step}, f"{step}-0")
            client.xadd("q", {"n": step}, f"{step}-0")
        elif what == "delete":
            assert stream.delete(some) == client.xdel("q", some)
        elif what == "trim":
            length = rng.randrange(20)
            assert stream.trim(maxlen=length) == client.xtrim("q", length, approximate=False)
        elif what == "create" and stream.exists():
            start = rng.choice(["0", "$", some])
            stream.create_group(f"g{step % 5}", start, exist_ok=True)
            with suppress(redis.ResponseError):  # BUSYGROUP
                client.xgroup_create("q", f"g{step % 5}", start)
        elif stream.exists() and (groups := stream.groups()):
            name = rng.choice(groups).name
            if what == "set" and rng.random() < 0.3:
                stream.group(name).set_id(some)
                client.xgroup_setid("q", name, some)
            else:
                count = rng.randrange(1, 5)
                stream.group(name).read("w", count)
                client.xreadgroup(name, "w", {"q": ">"}, count)
        if client.exists("q"):
            theirs = {group["name"].decode(): group["lag"] for group in client.xinfo_groups("q")}
            assert {group.name: group.redis_lag for group in stream.groups()} == theirs, step
            assert {group.name: group.redis_lag for group in stream.full_info().groups} == theirs
            unknown += list(theirs.values()).count(None)
    print(unknown, "times unknown")


def test_the_lag_of_redis_is_the_exact_one_while_nothing_has_been_deleted(store: raxlog.Store) -> None:
    stream = store.stream("q")
    stream.extend({"n": n} for n in range(5))
    group = stream.create_group("g", "0")
    for left in (5, 4, 3, 2, 1, 0):
        (figures,) = stream.groups()
        assert figures.redis_lag == figures.lag == left
        group.read("w", count=1)


def test_a_call_says_whether_it_created_the_consumer(store: raxlog.Store) -> None:
    for name in ("a", "b"):
        store.stream(name).create_group("g", "0", create_stream=True)
    group = store.stream("a").group("g")
    assert [group.read("w").consumer_created for _ in range(2)] == [True, False]
    assert [group.read("x", timeout=0.01).consumer_created for _ in range(2)] == [True, False]
    store.stream("a").extend([{"n": n} for n in range(3)])
    both = store.read_group("g", "w", {"a": ">", "b": ">"})
    assert (len(both["a"]), both.consumers_created) == (3, ["b"])
    assert store.read_group("g", "w", {"a": "0"}).consumers_created == []
    sid = both["a"][0].id
    assert [group.claim("y", sid).consumer_created for _ in range(2)] == [True, False]
    assert [group.claim_ids("z", sid).consumer_created for _ in range(2)] == [True, False]
    assert [group.autoclaim("u").entries.consumer_created for _ in range(2)] == [True, False]
    assert [group.autoclaim_ids("v").entries.consumer_created for _ in range(2)] == [True, False]
    with store.transaction() as tx:
        assert tx.group("b", "g").read("t").consumer_created

    def waits() -> None:
        got.append(group.read("late", timeout=20))

    got: list[Any] = []
    thread = threading.Thread(target=waits)
    thread.start()
    time.sleep(0.2)
    store.stream("a").append({"n": 4})
    thread.join()
    assert (len(got[0]), got[0].consumer_created) == (1, True)


def test_a_stream_may_be_named_twice_in_one_read(path: Path, newer_address: tuple[str, int]) -> None:
    client: Any = redis.Redis(*newer_address, protocol=2)
    client.response_callbacks.clear()
    client.flushall()
    with raxlog.open(path) as store:
        for number in range(1, 8):
            store.stream("a").append({"n": number}, f"{number}-0")
            client.xadd("a", {"n": number}, f"{number}-0")
        store.stream("a").create_group("g", "0")
        client.xgroup_create("a", "g", "0")

        def ids(pairs: Any) -> list[tuple[bytes, list[str]]]:
            return [(name, [str(one.id) for one in entries]) for name, entries in pairs]

        def theirs(*words: object) -> list[tuple[bytes, list[str]]]:
            return [(name, [sid.decode() for sid, _ in rows]) for name, rows in client.execute_command(*words)]

        read = store.read([(b"a", "4-0"), (b"none", "0"), (b"a", "6-0")], count=2)
        assert ids(read.pairs) == theirs("XREAD", "COUNT", 2, "STREAMS", "a", "none", "a", "4-0", "0", "6-0")
        assert [str(one.id) for one in read[b"a"]] == ["5-0", "6-0", "7-0"]
        new = store.read_group("g", "w", [(b"a", ">"), (b"a", ">"), (b"a", "2-0")], count=3)
        assert ids(new.pairs) == theirs("XREADGROUP", "GROUP", "g", "w", "COUNT", 3, "STREAMS", "a", "a", "a", ">", ">",
                                        "2-0")
        with store.transaction() as tx:
            assert ids(tx.read([(b"a", "6-0"), (b"a", "5-0")]).pairs) == [(b"a", ["7-0"]), (b"a", ["6-0", "7-0"])]
        for wrong in ("a", [("a", "0", "1")], 5, [], {}):
            with pytest.raises(InvalidArgument):
                store.read(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            store.read_group("g", "w", {"a": ">", b"a": ">"})


def test_the_refusals_of_set_id_and_of_zero_are_told_apart(store: raxlog.Store) -> None:
    stream = store.stream("a")
    for call in (lambda: stream.append({"n": 1}, "0-0"), lambda: stream.extend([{"n": 1}], ids=["0-0"])):
        with pytest.raises(IDZero):
            call()
    stream.extend([{"n": n} for n in range(3)], ids=["1-0", "5-0", "7-0"])
    stream.delete("7-0")
    for refused, call in (
        (IDBelowDeleted, lambda: stream.set_id("6-0")),
        (CountTooSmall, lambda: stream.set_id("9-0", entries_added=1)),
    ):
        with pytest.raises(refused):
            call()
    with pytest.raises(IDTooSmall) as raised:
        stream.set_id("8-0", max_deleted_id="9-0")
    assert raised.type is IDTooSmall
    store.stream("b").extend([{"n": n} for n in range(3)], ids=["1-0", "5-0", "7-0"])
    with pytest.raises(IDBelowEntries):
        store.stream("b").set_id("6-0")
    assert issubclass(CountTooSmall, ValueError)
    assert issubclass(IDBelowEntries, IDTooSmall)


def test_two_reads_half_a_second_apart_are_seen_as_such_at_once(path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(path) as store:
            group = await store.stream("q").create_group("g", "0", create_stream=True)
            plain = store.plain.stream("q").group("g")

            def in_transaction() -> None:
                with store.plain.transaction() as tx:
                    tx.group("q", "g").read("t")

            for read in (lambda: group.read("w"), lambda: asyncio.to_thread(plain.read, "v"),
                         lambda: asyncio.to_thread(in_transaction)):
                seen = []
                for _ in range(2):
                    before = time.time()
                    await read()
                    after = time.time()
                    consumers = store.plain.stream("q").full_info().groups[0].consumers
                    seen.append(max(one.seen.timestamp() for one in consumers))
                    assert before - 0.002 <= seen[-1] <= after
                    assert min(time.time() - one.seen.timestamp() for one in plain.consumers()) < 0.3
                    await asyncio.sleep(0.5)
                assert 0.45 < seen[1] - seen[0] < 2

    asyncio.run(main())
