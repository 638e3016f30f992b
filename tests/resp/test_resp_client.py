"""`raxlog.redis_client`: redis-py on an open store, in one process."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
import redis
from descriptors import descriptors_taken
from raxlog.stream.state import first_key_from
from raxlog.tools.resp import engine


def test_a_client_and_the_store_see_the_same_from_many_threads(store: raxlog.Store) -> None:
    with raxlog.redis_client(store, decode_responses=True) as plain:
        client: Any = plain

        def work(number: int) -> None:
            with client.pipeline(transaction=number % 2 == 0) as pipe:
                for n in range(50):
                    pipe.xadd("s", {"thread": number, "n": n})
                assert len(pipe.execute()) == 50
            with client.lock("lock", timeout=10):
                client.incr("turns")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.xlen("s") == len(store.stream("s")) == 400
        assert store.state[b"turns"] == b"8"
        assert client.xrange("s", count=1)[0][1].keys() == {"thread", "n"}
        with pytest.raises(redis.ResponseError, match="unknown command"):
            client.hset("h", "f", "v")


def test_reads_block_and_messages_come(store: raxlog.Store) -> None:
    with raxlog.redis_client(store) as plain:
        client: Any = plain
        assert client.ping()  # it is connected when the time begins
        threading.Timer(0.2, store.stream("s").append, [{"n": 1}, "5-0"]).start()
        started = time.monotonic()
        assert client.xread({"s": "$"}, block=20_000)
        assert time.monotonic() - started < 15
        assert client.xread({"s": "$"}, block=50) in ([], {})
        with client.pubsub(ignore_subscribe_messages=True) as listening:
            listening.subscribe("news")
            while not client.publish("news", "m"):
                time.sleep(0.01)
            end = time.monotonic() + 10
            while (message := listening.get_message(timeout=0.1)) is None:
                assert time.monotonic() < end
            assert message["data"] == b"m"


def test_tasks_of_a_loop(path: Path) -> None:
    async def work() -> None:
        with raxlog.open(path) as store:
            async with raxlog.redis_client(store, asyncio=True, decode_responses=True, max_connections=50) as plain:
                client: Any = plain
                await client.xgroup_create("s", "g", mkstream=True)
                reads = [asyncio.create_task(client.xreadgroup("g", f"c{n}", {"s": ">"}, count=1, block=20_000))
                         for n in range(10)]
                await asyncio.sleep(0.1)
                await asyncio.gather(*(client.xadd("s", {"n": n}) for n in range(10)))
                assert all(await asyncio.gather(*reads))
                assert (await client.xpending("s", "g"))["pending"] == 10

    asyncio.run(work())
    assert raxlog.check(path).ok


def test_a_client_outlives_the_store_until_it_is_closed_and_begins_again(path: Path) -> None:
    with raxlog.open(path) as store:
        client: Any = raxlog.redis_client(store)
        client.xadd("s", {"n": 1})
    client.xadd("s", {"n": 2})
    before = threading.active_count()
    client.close()
    assert threading.active_count() < before
    assert client.xlen("s") == 2
    del client
    assert not any("raxlog clients" in thread.name for thread in threading.enumerate())
    assert raxlog.check(path).ok


def test_a_forked_child_has_a_server_of_its_own(path: Path) -> None:
    with raxlog.open(path) as store, raxlog.redis_client(store) as plain:
        client: Any = plain
        client.xadd("s", {"n": 1})
        child = os.fork()
        if child == 0:
            os._exit(0 if client.xadd("s", {"n": 2}) and client.xlen("s") == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert client.xlen("s") == 2


def test_without_redis_py_the_extra_is_named_and_nothing_loads_it_unasked(path: Path) -> None:
    program = """
import sys
sys.modules["redis"] = None
import raxlog
from raxlog import *
store = raxlog.open(sys.argv[1])
try:
    raxlog.redis_client(store)
except raxlog.NotInstalled as error:
    print(error)
"""
    ended = forkserver.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True,
                           timeout=60)
    assert "pip install raxlog[redis]" in ended.stdout


def test_keys_go_also_after_the_look_for_their_times_has_failed(
    store: raxlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [OSError("too many open files"), raxlog.CorruptionError("damaged"), RuntimeError("odd")]

    def failing(*args: Any, **options: Any) -> bytes | None:
        if errors:
            raise errors.pop()
        return first_key_from(*args, **options)

    monkeypatch.setattr(engine, "first_key_from", failing)
    with raxlog.redis_client(store) as client:
        client.ping()
        store.state["k"] = b"v"
        with raxlog.redis_client(store) as other:  # a server of its own
            other.pexpire("k", 300)
        deadline = time.monotonic() + 15
        while "k" in store.state:  # without a command to the first
            assert time.monotonic() < deadline, errors
            time.sleep(0.05)
    assert not errors


def test_a_client_for_whose_server_no_descriptor_is_free_gets_an_error_and_works_once_there_is(
    store: raxlog.Store,
) -> None:
    with raxlog.redis_client(store) as client:
        client.ping()
    for free in range(1, 5):  # with none, redis-py itself cannot look for its version
        with raxlog.redis_client(store) as client:
            with descriptors_taken(free), pytest.raises((raxlog.StoreError, redis.ConnectionError)):
                client.ping()
            assert client.ping()
