"""A compaction beside writers: they do not wait for the copy, and what they commit during it is in the new file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from raxlog.storage.engine import compaction
from raxlog.storage.log import ring

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))

Say = Callable[[Any], None]


@pytest.fixture(autouse=True)
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new stores have a small log: it is used again and again during a copy."""
    monkeypatch.setattr(ring, "RING", ring.LEAST)


def fill(path: Path, entries: int = 300) -> None:
    """A store that has something to give back."""
    with raxlog.open(path, durability="relaxed") as store:
        store.stream("kept").extend({"n": n, "x": "y" * 200} for n in range(entries))
        store.stream("gone").extend({"x": bytes(4000)} for _ in range(entries))
        store.delete_stream("gone")


def numbers(store: raxlog.Store, name: str) -> list[int]:
    return [int(entry.fields["n"]) for entry in store.stream(name).range()]


def test_what_others_commit_at_each_step_before_the_swap_is_in_the_new_file(path: Path) -> None:
    """Commits of all sizes, from another process and this one; some laps of the ring, and more than it holds."""
    fill(path)
    asked, done = os.pipe(), os.pipe()

    def write(say: Say) -> None:
        with raxlog.open(path, durability="relaxed") as store:
            n = 0
            while os.read(asked[0], 1) == b"+":
                for size in (10, 300, 5000) * 60:
                    store.stream("other").append({"n": n, "x": bytes(size)})
                    n += 1
                store.stream("other").extend({"n": n + k, "x": bytes(1000)} for k in range(100))
                store.stream("kept").trim(maxlen=300 - n // 10)
                n += 100
                say(n)
                os.write(done[1], b".")
            say(numbers(store, "other"))

    with Child(write) as child, raxlog.open(path) as store:
        steps: list[str] = []
        said = 0

        def progress(step: str, _: int, total: int) -> None:
            nonlocal said
            if step in ("copied", "flushed") or (step == "copying" and not steps):
                os.write(asked[1], b"+")
                os.read(done[0], 1)
                said = child.heard()
                store.stream("own").append({"n": len(steps)})
            steps.append(step)

        assert store.compact(progress).generation == 2
        assert said == 3 * 280
        assert numbers(store, "own") == [0, steps.index("copied"), steps.index("flushed")]
        os.write(asked[1], b"-")
        assert child.finish() == [list(range(said))]
        assert numbers(store, "other") == list(range(said))
        assert len(store.stream("kept")) == 300 - (said - 100) // 10
        assert not list(path.glob("*/segments"))
    raxlog.open(path).close()
    assert sorted(entry.name for entry in path.iterdir() if entry.name[0].isdigit()) == ["000002"]
    assert raxlog.check(path).ok


def test_compactions_beside_busy_writers_lose_nothing_and_end(path: Path) -> None:
    """Four writers, as fast as they can, while the store is compacted again and again by two others."""
    print(f"RAXLOG_SEED={SEED}")
    fill(path)

    def write(name: str) -> Callable[[Say], None]:
        def work(say: Say) -> None:
            rng, n = random.Random(SEED), 0
            with raxlog.open(path, durability="relaxed") as store:
                say("ready")
                ends = time.monotonic() + 1
                while time.monotonic() < ends:
                    many = rng.choice((1, 1, 1, 1, 100))
                    store.stream(name).extend({"n": n + k, "x": bytes(rng.choice((10, 2000)))} for k in range(many))
                    n += many
                    store.state[name] = bytes(rng.randrange(3000))
            say(n)

        return work

    with Child(write("a")) as one, Child(write("b")) as two, raxlog.open(path) as store:
        assert one.heard() == two.heard() == "ready"
        made, wrong = [], []

        def compact() -> None:
            try:
                with raxlog.open(path) as again:
                    for _ in range(3):
                        made.append(again.compact().generation)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=compact) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(made) == 6
        assert max(made) > 2
        for name, child in (("a", one), ("b", two)):
            (written,) = child.finish()
            assert numbers(store, name) == list(range(written))
    assert raxlog.check(path).ok


def test_writers_that_are_as_fast_as_a_compaction_wait_for_pieces_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put into the copy costs two milliseconds a commit here, and there are more commits than that."""
    fill(path)
    put = compaction.put_changes

    def slowly(*given: Any) -> None:
        time.sleep(0.002)
        put(*given)

    monkeypatch.setattr(compaction, "put_changes", slowly)

    def write(say: Say) -> None:
        n, longest = 0, 0.0
        with raxlog.open(path, durability="relaxed") as store:
            ready = store.state
            while "made" not in ready:
                began = time.monotonic()
                store.stream("other").append({"n": n, "x": bytes(3000)})
                longest = max(longest, time.monotonic() - began)
                n += 1
                if n == 1:
                    say("ready")
                time.sleep(0.0002)
        say((n, longest))

    with Child(write) as child, raxlog.open(path) as store:
        assert child.heard() == "ready"

        def progress(step: str, _: int, __: int) -> None:
            if step == "copied":  # 250 commits: half a second to put them in
                before = len(store.stream("other"))
                while len(store.stream("other")) < before + 250:
                    time.sleep(0.01)

        began = time.monotonic()
        assert store.compact(progress).generation == 2
        took = time.monotonic() - began
        store.state["made"] = b""
        ((written, longest),) = child.finish()
        print(f"{written} commits in {took:.1f} s, the longest took {longest:.2f} s")
        assert numbers(store, "other") == list(range(written))
        assert longest < took / 3
    assert raxlog.check(path).ok


def test_openings_leave_a_copy_under_way_alone_and_a_second_compaction_waits(path: Path) -> None:
    fill(path)

    def open_and_compact(say: Say) -> None:
        with raxlog.open(path, lock_timeout=0.2) as store:
            say(sorted(entry.name for entry in path.iterdir() if entry.name[0].isdigit()))
            try:
                store.compact()
            except raxlog.LockTimeout as error:
                say(str(error))

    with raxlog.open(path) as store:
        said = []

        def progress(step: str, _: int, total: int) -> None:
            if step == "copied":
                with Child(open_and_compact) as child:
                    said.extend(child.finish())

        assert store.compact(progress).generation == 2
    assert said[0] == ["000001", "000002.tmp"]
    assert "another compaction" in said[1]


def test_a_store_that_is_closed_or_forked_beside_its_compaction_is_whole(path: Path) -> None:
    fill(path)
    store = raxlog.open(path)
    inside, closed, wrong = threading.Event(), threading.Event(), []

    def compact() -> None:
        try:
            store.compact(lambda step, _, total: step == "copied" and (inside.set(), closed.wait(60)))
        except raxlog.StoreClosed as error:
            wrong.append(error)

    thread = threading.Thread(target=compact)
    thread.start()
    inside.wait()
    with Child(lambda say: say(len(store.stream("kept")))) as child:
        assert child.finish() == [300]
    store.close()
    closed.set()
    thread.join()
    assert len(wrong) == 1
    with raxlog.open(path) as store:
        assert numbers(store, "kept") == list(range(300))
        assert store.compact().generation == 2


def test_a_copy_that_grows_beyond_its_map_takes_the_same_changes_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_ROOM", 4096)
    fill(path, 2500)
    with raxlog.open(path, durability="relaxed") as store:
        def progress(step: str, _: int, total: int) -> None:
            if step == "copied":
                for n in range(400):
                    store.stream("own").append({"n": n, "x": bytes(9000)})

        grown = store.compact(progress)
        assert grown.generation == 2
        assert grown.bytes_after > 3_000_000
        assert numbers(store, "own") == list(range(400))
    assert raxlog.check(path).ok


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 28 megabytes, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=28m", "tmpfs", folder], capture_output=True,
                      check=False).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("when", ["before", "during"])
def test_where_the_disk_has_no_room_for_segments_the_copy_is_made_under_the_lock(small_disk: Path, when: str) -> None:
    path, filler = small_disk / "s.rax", small_disk / "filler"
    fill(path)
    if when == "before":
        filler.write_bytes(bytes(14 << 20))
    with raxlog.open(path, durability="relaxed") as store:
        steps, written = [], 0

        def progress(step: str, _: int, total: int) -> None:
            nonlocal written
            steps.append(step)
            if step == "copied" and when == "during" and not filler.exists():
                filler.write_bytes(bytes(14 << 20))
                for written in range(1, 101):
                    store.stream("own").append({"n": written - 1, "x": bytes(1000)})
            elif step == "copied":
                with pytest.raises(raxlog.TransactionError):
                    store.stream("own").append({"n": 100})

        assert store.compact(progress).generation == 2
        assert steps.count("copied") == (1 if when == "before" else 2)
        assert numbers(store, "own") == list(range(written))
    assert raxlog.check(path).ok


def test_the_death_of_a_compaction_beside_writers_leaves_them_at_work_and_nothing_behind(path: Path) -> None:
    fill(path)

    def compact(say: Say) -> None:
        with raxlog.open(path) as store:
            def progress(step: str, _: int, total: int) -> None:
                if step == "flushed":
                    say("flushed")
                    signal.pause()

            store.compact(progress)

    with raxlog.open(path, durability="relaxed") as store:
        with Child(compact) as child:
            child.heard()
            for n in range(500):
                store.stream("own").append({"n": n, "x": bytes(300)})
            assert list(path.glob("000001/segments/*"))
            child.kill()
        for n in range(500, 700):
            store.stream("own").append({"n": n, "x": bytes(300)})
        store._env.map.log.checkpoints.make(True)  # type: ignore[union-attr]
        assert not list(path.glob("000001/segments"))
        assert store.compact().generation > 1
        assert numbers(store, "own") == list(range(700))
    assert len([entry for entry in path.iterdir() if entry.name[0].isdigit()]) == 1
