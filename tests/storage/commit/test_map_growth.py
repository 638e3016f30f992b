"""The map: it grows under readers and writers, here and elsewhere, up to its ceiling."""

from __future__ import annotations

import gc
import mmap
import os
import random
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from environment_cases import fill, map_size, numbers


def test_the_map_grows_while_threads_iterate_and_none_reads_anything_wrong(path: Path) -> None:
    with raxlog.open(path, map_size=1 << 20) as store:
        stream = store.stream("s")
        stream.extend([{"n": n, "x": bytes([n % 256]) * 200} for n in range(500)])
        stop = threading.Event()
        wrong: list[Any] = []
        rounds = [0] * 3

        def read(thread: int) -> None:
            try:
                while not stop.is_set():
                    for place, entry in enumerate(stream.range(reverse=False)):
                        n = int(entry.fields["n"])
                        if n != place or os.fsencode(entry.fields["x"]) != bytes([n % 256]) * 200:
                            wrong.append((place, entry))
                            return
                    rounds[thread] += 1
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(3)]
        for thread in threads:
            thread.start()
        for start in range(500, 30_000, 500):
            stream.extend([{"n": n, "x": bytes([n % 256]) * 200} for n in range(start, start + 500)])
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
        assert min(rounds) > 0
        assert map_size(store) >= 8 << 20
        assert len(stream) == 30_000


def test_growth_by_another_process_is_taken_over_by_readers_and_writers(path: Path) -> None:
    with raxlog.open(path, map_size=1 << 18) as store, raxlog.open(path) as same:
        before = map_size(store)
        store.stream("s").append({"n": 0})
        iterator = store.stream("s").range()

        def grow(say: Callable[[Any], None]) -> None:
            with raxlog.open(path) as theirs:
                theirs.stream("s").extend([{"n": n, "x": bytes(1000)} for n in range(1, 1500)])

        with Child(grow) as child:
            child.finish()
        assert [int(entry.fields["n"]) for entry in iterator] == list(range(1500))
        assert map_size(store) > before
        with Child(grow) as child:
            child.finish()
        same.stream("s").append({"n": "last"})
        assert len(store.stream("s")) == 3000


def test_a_readonly_store_follows_another_process_that_writes_and_grows(path: Path) -> None:
    raxlog.open(path).close()

    def write(say: Callable[[Any], None]) -> None:
        with raxlog.open(path, map_size=1 << 16) as store:
            for n in range(400):
                store.stream("s").append({"n": n, "x": bytes(2000)})
            say("done")

    with raxlog.open(path, readonly=True, map_size=1 << 16) as store, Child(write) as child:
        seen = 0
        deadline = time.monotonic() + 60
        while seen < 400:
            assert time.monotonic() < deadline
            now = numbers(store)
            assert now == list(range(len(now)))
            assert len(now) >= seen
            seen = len(now)
        child.finish()
        with pytest.raises(raxlog.ReadOnlyStore):
            store.stream("s").append({"n": 1})


def test_at_the_ceiling_the_store_stays_readable_and_deleting_makes_room_again(path: Path) -> None:
    with raxlog.open(path, max_map_size=2 << 20) as store:
        stream = store.stream("s")
        ids = stream.extend([{"n": n, "x": bytes(900)} for n in range(1500)])
        assert fill(stream, 900) > 200
        everything = numbers(store)
        for _ in range(3):
            with pytest.raises(raxlog.StoreFull, match="max_map_size"):
                stream.append({"n": "large", "x": bytes(100_000)})
        assert numbers(store) == everything
        assert map_size(store) <= (2 << 20) + (1 << 19)

        assert stream.delete(ids[5], ids[400], ids[-2]) == 3
        assert stream.trim(maxlen=500) > 100
        for n in range(30):
            stream.extend([{"n": n, "x": bytes(900)}] * 10)
        assert len(stream) == 800
        fill(stream, 900, 40)
        assert store.delete_stream("s")
        for n in range(5):
            store.stream("t").extend([{"n": n, "x": bytes(900)}] * 200)
        assert map_size(store) <= (2 << 20) + (1 << 19)
    assert (path / "000001" / "data.mdb").stat().st_size < 4 << 20


def test_deleting_one_by_one_empties_a_full_store(path: Path) -> None:
    with raxlog.open(path, max_map_size=1 << 19) as store:
        stream = store.stream("s")
        fill(stream, 1500, 10)
        fill(stream, 1500)
        ids = [entry.id for entry in stream.range()]
        for sid in ids:
            assert stream.delete(sid) == 1
        assert len(stream) == 0
        stream.extend([{"n": n, "x": bytes(1500)} for n in range(len(ids) // 2)])


@pytest.mark.parametrize("seed", range(3))
def test_what_a_trim_writes_anew_finds_room_however_the_free_pages_lie(path: Path, seed: int) -> None:
    """The node in which it ends has pages side by side, and the free ones may lie one by one."""
    sizes = random.Random(seed)
    with raxlog.open(path, max_map_size=1 << 20) as store:
        stream = store.stream("s")
        n = trims = 0
        while trims < 25:
            try:
                stream.append({"n": n, "x": bytes([n % 256]) * sizes.choice((3000, 9000, 14_000))}, id=f"{n + 1}-1")
                n += 1
            except raxlog.StoreFull:
                kept = min(n, sizes.randint(5, 30))
                stream.trim(minid=f"{n + 1 - kept}-1")
                assert numbers(store) == list(range(n - kept, n))
                trims += 1
    assert (path / "000001" / "data.mdb").stat().st_size < 3 << 19


def test_the_ceiling_holds_for_a_process_although_another_has_none(path: Path) -> None:
    raxlog.open(path).close()

    def write(say: Callable[[Any], None]) -> None:
        with raxlog.open(path) as store:
            store.stream("s").extend([{"n": n, "x": bytes(1000)} for n in range(3000)])

    with raxlog.open(path, max_map_size=1 << 20) as store:
        with Child(write) as child:
            child.finish()
        assert len(numbers(store)) == 3000
        with pytest.raises(raxlog.StoreFull):
            store.stream("s").extend([{"n": n, "x": bytes(1000)} for n in range(100)])
        store.stream("s").trim(maxlen=10)
        store.stream("s").extend([{"n": n, "x": bytes(1000)} for n in range(100)])


def in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def test_a_process_with_little_address_space_opens_and_fills_what_it_has(path: Path) -> None:
    def work(say: Callable[[Any], None]) -> None:
        limit = in_use() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        with raxlog.open(path) as store:
            stream = store.stream("s")
            for n in range(50):
                stream.append({"n": n})
            say(map_size(store))
        gc.collect()
        say(limit - in_use())  # 1 GB, and what the child had from its parent and has given back
        with raxlog.open(path, map_size=200 << 20) as store:
            fill(store.stream("large"), 1 << 20, 20, 200)
            say(map_size(store))
            say(numbers(store) == list(range(50)))
            store.stream("s").append({"n": 50})

    with Child(work) as child:
        first, free, second, same = child.finish()
    assert first < 1 << 30
    assert 200 << 20 <= second < free + (16 << 20)
    assert same
    with raxlog.open(path) as store:
        assert numbers(store) == list(range(51))


@pytest.mark.parametrize("beside", [1, 2, 3, 4, 6, 8, 12, 20])
def test_a_process_whose_address_space_is_nearly_used_opens_and_appends(path: Path, beside: int) -> None:
    """A quarter of the limit is free, and so many MB: what the map leaves has to do for the log and the process."""

    def work(say: Callable[[Any], None]) -> None:
        free = max(1 << 30, in_use() // 2)
        used = 3 * free - (4 * beside << 20)
        taken = mmap.mmap(-1, used - in_use(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
        resource.setrlimit(resource.RLIMIT_AS, (used + free, used + free))
        with raxlog.open(path) as store:
            for n in range(200):
                store.stream("s").append({"n": n, "x": bytes(10_000)})
            say(numbers(store))
        taken.close()

    with Child(work) as child:
        assert child.finish() == [list(range(200))]
