"""A full disk, a limit on a file's size, a map at its ceiling: all is readable, and there is a way out.

    fill to the brim ─ read ─ acknowledge, delete, trim ─ fill again ─ … ─ trim ─ compact ─ append
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from environment_cases import numbers
from raxlog.crashtest import Errors, explore

SEED = int(os.environ.get("RAXLOG_SEED", str(time.time_ns() % 100_000)))
ROOM = 2 << 20
REMEDIES = {"disk": "the disk is full. Make room", "limit": "ulimit -f", "ceiling": "max_map_size"}
Say = Callable[[Any], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", folder], capture_output=True,
                      check=False).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(params=list(REMEDIES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Where the store goes."""
    return (request.getfixturevalue("small_disk") if kind == "disk" else tmp_path) / "s.rax"


def open_small(kind: str, place: Path) -> raxlog.Store:
    """Open a store that finds some two megabytes of room. To be called in a process of its own."""
    if kind == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM - 500, ROOM - 500))
    return raxlog.open(place, durability="relaxed", max_map_size=ROOM if kind == "ceiling" else None)


def fill(stream: raxlog.Stream, first: int, steps: tuple[int, ...] = (50, 1)) -> tuple[int, str]:
    """Append numbered entries, so many at a time, until there is no room; the next number, and what the error said."""
    said, n = "", first
    for many in steps:
        said = ""
        while not said:
            try:
                stream.extend([{"n": k, "x": bytes(900)} for k in range(n, n + many)])
                n += many
            except raxlog.StoreFull as error:
                said = str(error)
    return n, said


def test_a_full_store_is_read_emptied_and_filled_again_and_again(kind: str, place: Path) -> None:
    def work(say: Say) -> None:
        with open_small(kind, place) as store:
            stream = store.stream("s")
            ids = [stream.append({"n": n, "x": bytes(900)}) for n in range(300)]
            group = stream.create_group("g", start="0")
            taken = group.read("c", count=250)
            store.stream("other").extend({"n": n, "x": bytes(900)} for n in range(100))
            n, said = fill(stream, 300)
            assert str(place) in said
            assert REMEDIES[kind] in said
            there = list(range(n))
            assert numbers(store) == there
            with pytest.raises(raxlog.StoreFull), store.transaction() as tx:
                tx.stream("s").extend({"n": -1, "x": bytes(900)} for _ in range(50))
            with pytest.raises(raxlog.StoreFull):
                stream.append({"n": -1, "x": bytes(100_000)})
            assert numbers(store) == there

            assert group.ack(*[entry.id for entry in taken[:200]]) == 200
            assert stream.delete(*ids[250:300:7]) == 8
            for sid in ids[251:300:7]:
                assert stream.delete(sid) == 1
            there = [k for k in there if not (250 <= k < 300 and (k - 250) % 7 < 2)]
            assert numbers(store) == there
            for _ in range(25):  # the room that a trim takes is given back
                with store.transaction() as tx:
                    assert tx.stream("s").trim(maxlen=len(there) - 20) == 20
                after, _ = fill(stream, n, (1,))
                assert after - n >= 10
                there, n = [*there[20:], *range(n, after)], after
                assert numbers(store) == there
            assert store.delete_stream("other")
            n, _ = fill(stream, n, (50,))
            stream.trim(maxlen=100)
            stream.extend([{"n": k, "x": bytes(900)} for k in range(n, n + 500)])
            assert len(numbers(store)) == 600
            with contextlib.suppress(raxlog.StoreFull):
                store.compact()
            stream.trim(maxlen=10)
            stream.append({"n": 0})
        say(raxlog.check(place).ok)

    with Child(work) as child:
        assert child.finish() == [True]


def test_on_a_full_disk_a_store_opens_and_is_whole(small_disk: Path) -> None:
    def work(say: Say) -> None:
        with raxlog.open(small_disk / "s.rax") as store:
            say(fill(store.stream("s"), 0)[0])
            os.kill(os.getpid(), signal.SIGKILL)

    with Child(work) as child:
        count = child.heard()
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    for _ in range(2):
        with raxlog.open(small_disk / "s.rax", readonly=True) as store:
            assert numbers(store) == list(range(count))
        with raxlog.open(small_disk / "s.rax") as store:
            assert numbers(store) == list(range(count))
            assert store.compact().generation == 1  # every page is in use, so the copy would be no smaller
        assert raxlog.check(small_disk / "s.rax").ok
    with raxlog.open(small_disk / "s.rax") as store:  # the first that this process writes is the trim
        assert store.stream("s").trim(maxlen=10) == count - 10
        with pytest.raises(raxlog.StoreFull, match=r"no room to compact .* Make room; nothing was changed"):
            store.compact()
        assert fill(store.stream("s"), count)[0] > count + 500
        assert len(store.stream("s")) > 500


def test_killed_at_any_moment_a_full_store_loses_nothing_and_can_be_trimmed(small_disk: Path) -> None:
    path = small_disk / "s.rax"
    rng = random.Random(SEED)
    print(f"RAXLOG_SEED={SEED}")
    first = n = 0

    def work(say: Say) -> None:
        with raxlog.open(path) as store:
            stream, low, high = store.stream("s"), first, n
            while True:
                with contextlib.suppress(raxlog.StoreFull):
                    while True:
                        stream.append({"n": high, "x": bytes(900)})
                        high += 1
                        say((low, high))
                stream.trim(maxlen=high - low - 30)
                low += 30
                say((low, high))

    with raxlog.open(path) as store:
        n, _ = fill(store.stream("s"), 0)
    for _ in range(8):
        with Child(work) as child:
            for _ in range(rng.randrange(2, 60)):
                low, high = child.heard()
            time.sleep(rng.random() * 0.003)
            child.kill()
            low, high = [(low, high), *child.all_heard()][-1]
        with raxlog.open(path, readonly=True) as store:
            there = numbers(store)
        first, n = there[0], there[-1] + 1
        assert there == list(range(first, n))
        assert (first, n) in ((low, high), (low, high + 1), (low + 30, high))
    with raxlog.open(path) as store:
        store.stream("s").trim(maxlen=5)
        fill(store.stream("s"), n)
    assert raxlog.check(path).ok


def test_while_an_old_reader_holds_the_pages_a_full_store_says_so(kind: str, place: Path, tmp_path: Path) -> None:
    """What a trim frees cannot be used again before the reader has ended."""
    def hold(say: Say) -> None:
        with raxlog.open(place, readonly=True) as store, store._env.read():
            say("held")
            time.sleep(60)

    def work(say: Say) -> None:
        with open_small(kind, place) as store:
            stream = store.stream("s")
            n, _ = fill(stream, 0)
            say("full")
            while not is_held.exists():
                time.sleep(0.002)
            there = list(range(n))

            def trim() -> None:
                while there:
                    stream.trim(maxlen=len(there) - 20)
                    del there[:20]

            with pytest.raises(raxlog.StoreFull, match=REMEDIES[kind]):
                trim()
            assert numbers(store) == there
            say("refused")
            time.sleep(60)

    def go_on(say: Say) -> None:
        with open_small(kind, place) as store:
            there = numbers(store)
            assert store.stream("s").trim(maxlen=10) == len(there) - 10
            say(len(store.stream("s").extend([{"n": n, "x": bytes(900)} for n in range(300)])))
        say(raxlog.check(place).ok)

    is_held = tmp_path / "held"
    with Child(work) as child:
        assert child.heard() == "full"
        with Child(hold) as reader:
            reader.heard()
            is_held.touch()
            assert child.heard() == "refused"
    with Child(go_on) as child:
        assert child.finish() == [300, True]


@pytest.mark.parametrize(("error", "said"), [
    ("ENOSPC", "the disk is full. Make room on it"), ("EDQUOT", "the quota of the disk is used up"),
    ("EFBIG", "ulimit -f"), ("EIO", os.strerror(errno.EIO)),
])
def test_the_error_names_what_is_missing(error: str, said: str, tmp_path: Path, require: Callable[[str], str]) -> None:
    require("cc")
    report = explore(append_until_refused, partial(check_what_was_said, error=error, said=said), seed=SEED,
                     modes=[Errors(error, calls=("write", "size"), sticky=True, most=12)], keep=tmp_path)
    assert report.failed == 0, report


def append_until_refused(folder: Path, ack: Callable[[Any], None]) -> None:
    with raxlog.open(folder / "s.rax") as store:
        store._env.map.log.every = 1 << 40  # type: ignore[union-attr]  # bytes: as many calls each time
        stream = store.stream("s")
        for n in range(6):
            try:
                stream.extend([{"n": n, "x": bytes(900)}] * 100)
                ack(n)
            except raxlog.StoreError as error:
                ack((isinstance(error, raxlog.StoreFull), str(error)))


def check_what_was_said(folder: Path, acks: list[Any], *, error: str, said: str) -> None:
    for full, message in (ack for ack in acks if isinstance(ack, tuple)):
        assert full == (error != "EIO")
        assert said in message
    with raxlog.open(folder / "s.rax") as store:
        assert set(range(len(acks))) >= {ack for ack in acks if isinstance(ack, int)} <= set(numbers(store))
