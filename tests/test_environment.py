"""The environment: opening, sharing, growing, forking, and what is refused."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog
from children import Child, wait_until_stopped
from raxlog.storage import folder, layout, records
from raxlog.storage.commit import committer_of

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store is, or may be made."""
    return tmp_path / "s.rax"


def numbers(store: raxlog.Store, name: str = "s") -> list[int]:
    return [int(entry.fields[b"n"]) for entry in store.stream(name).range()]


def map_size(store: raxlog.Store) -> int:
    return int(store._env.live().info()["map_size"])


def everything_in(folder: Path) -> list[tuple[str, int, bytes]]:
    return sorted((str(file), file.stat().st_mtime_ns, file.read_bytes())
                  for file in folder.rglob("*") if file.is_file())


def fill(stream: raxlog.Stream, size: int, at_once: int = 1, times: int = 100_000) -> int:
    """Append until the store is full (or so many times); how many entries went in."""
    for n in range(times):
        try:
            stream.extend([{"n": n, "x": bytes(size)}] * at_once)
        except raxlog.StoreFull:
            return n * at_once
    pytest.fail("the store is never full")


# -- sharing --------------------------------------------------------------------------------


def test_all_opens_of_a_path_share_one_environment_and_the_last_close_closes_it(path: Path) -> None:
    first, second = raxlog.open(path), raxlog.open(path)
    assert first._env is second._env
    stream = first.stream("s")
    first.close()
    first.close()
    with pytest.raises(raxlog.StoreClosed):
        first.stream("s")
    second.stream("s").append({"n": 1})
    second.close()
    for call in (lambda: stream.append({"n": 2}), lambda: len(stream), lambda: list(stream.range()),
                 second.streams, second.flush):
        with pytest.raises(raxlog.StoreClosed):
            call()
    with raxlog.open(path) as again:
        assert again._env is not first._env
        assert numbers(again) == [1]


def test_many_threads_open_use_and_close_one_path(path: Path) -> None:
    raised: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for n in range(20):
                with raxlog.open(path) as store:
                    store.stream("s").append({"n": thread * 100 + n})
                    assert thread * 100 + n in numbers(store)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert raised == []
    with raxlog.open(path) as store:
        assert sorted(numbers(store)) == sorted(t * 100 + n for t in range(6) for n in range(20))


@pytest.mark.parametrize(("setting", "first", "second"), [
    ("durability", "commit", "relaxed"), ("readonly", False, True), ("max_map_size", None, 1 << 24),
])
def test_other_settings_for_an_open_path_are_a_conflict_that_names_both(
    path: Path, setting: str, first: Any, second: Any,
) -> None:
    with raxlog.open(path, **{setting: first}):
        with pytest.raises(raxlog.SettingsConflict) as caught:
            raxlog.open(path, **{setting: second})
        assert f"{setting}={first!r}" in str(caught.value)
        assert f"{setting}={second!r}" in str(caught.value)
    raxlog.open(path, **{setting: second}).close()


def test_a_symbolic_link_leads_to_the_same_store(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.rax"
    link.symlink_to(path)
    with raxlog.open(link) as through_link:  # the link led nowhere: the store is made behind it
        assert link.is_symlink()
        with raxlog.open(path) as direct:
            assert direct._env is through_link._env


def test_a_store_that_was_removed_and_made_anew_is_not_taken_for_the_old_one(path: Path) -> None:
    with raxlog.open(path) as old:
        old.stream("s").append({"n": 1})
        shutil.rmtree(path)
        with raxlog.open(path) as new:
            assert new._env is not old._env
            assert new.streams() == []
        assert numbers(old) == [1]


# -- creating -------------------------------------------------------------------------------


@pytest.mark.parametrize("readonly_path", ["missing.rax", "deep/er/missing.rax", "empty"])
def test_a_missing_store_is_not_made_by_opening_it_readonly(tmp_path: Path, readonly_path: str) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(raxlog.NotAStore):
        raxlog.open(tmp_path / readonly_path, readonly=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_is_made_in_an_empty_folder_and_below_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    raxlog.open(tmp_path / "empty").close()
    raxlog.open(tmp_path / "a" / "b[1]*" / "c.rax").close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "empty"]


def test_processes_that_create_one_path_at_once_make_one_store_that_all_can_use(path: Path) -> None:
    for round_no in range(8):
        here = path.with_name(f"{round_no}.rax")
        start = time.monotonic() + 0.05

        def create(say: Callable[[Any], None], here: Path = here, start: float = start) -> None:
            time.sleep(max(0.0, start - time.monotonic()))
            with raxlog.open(here) as store:
                store.stream("s").append({"n": os.getpid()})
                say(store._env.uuid)

        children = [Child(create) for _ in range(8)]
        uuids = {child.finish()[0] for child in children}
        assert len(uuids) == 1
        with raxlog.open(here) as store:
            assert sorted(numbers(store)) == sorted(child.pid for child in children)
    assert not [file for file in path.parent.iterdir() if ".creating-" in file.name]


def _create(path: Path) -> Callable[[Callable[[Any], None]], None]:
    def create(say: Callable[[Any], None]) -> None:
        say("ready")
        raxlog.open(path).close()
        say("made")
        time.sleep(10)

    return create


@pytest.mark.storm
def test_creators_killed_at_random_moments_never_leave_a_store_that_will_not_open(path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)
    killed_before = 0
    for round_no in range(60):
        here = path.with_name(f"{round_no}.rax")
        with Child(_create(here)) as child:
            child.heard()
            time.sleep(rng.random() * 0.006)
            child.kill()
            killed_before += child.all_heard() == []
        with raxlog.open(here) as store:
            store.stream("s").append({"n": 1})
            assert numbers(store) == [1]
        assert not [file for file in path.parent.iterdir() if ".creating-" in file.name]
    assert killed_before > 5


@pytest.mark.parametrize("step", ["mkdir", "flock", "open_lmdb", "sync_file", "sync_folder", "rename", "after"])
def test_a_creator_killed_between_two_steps_leaves_nothing_that_hinders(path: Path, step: str) -> None:
    def create(say: Callable[[Any], None]) -> None:
        def die(*_: Any, **__: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        if step == "mkdir":
            folder.fcntl.flock = die
        elif step == "flock":
            folder._build = die
        elif step == "open_lmdb":
            records.seal = die
        elif step == "rename":
            os.rename = die
        elif step == "after":
            real = os.rename
            os.rename = lambda *names: (real(*names), die())  # type: ignore[assignment]
        else:
            setattr(folder, step, die)
        raxlog.open(path)

    with Child(create) as child:
        child.wait()
        assert child.status == -signal.SIGKILL
    if step != "after":
        assert not path.exists()
        assert [file for file in path.parent.iterdir() if ".creating-" in file.name]
    raxlog.open(path).close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_folder_of_a_creator_at_work_is_left_alone(path: Path) -> None:
    def create(say: Callable[[Any], None]) -> None:
        real = folder._build

        def build(*arguments: Any) -> None:
            real(*arguments)
            say("built")
            os.kill(os.getpid(), signal.SIGSTOP)

        folder._build = build
        with raxlog.open(path) as store:
            say(store._env.uuid)

    with Child(create) as child:
        child.heard()
        wait_until_stopped(child.pid)
        with raxlog.open(path) as store:
            assert [file for file in path.parent.iterdir() if ".creating-" in file.name]
            child.send(signal.SIGCONT)
            assert child.finish() == [store._env.uuid]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# -- forking --------------------------------------------------------------------------------


def test_a_forked_child_reads_and_appends_and_its_parent_goes_on(path: Path) -> None:
    with raxlog.open(path) as store:
        stream = store.stream("s")
        stream.append({"n": 0})

        def work(say: Callable[[Any], None]) -> None:
            say(numbers(store))
            stream.append({"n": 1})
            with Child(lambda say: (stream.append({"n": 2}), say(numbers(store)))[1]) as grandchild:
                say(grandchild.finish()[0])
            store.close()
            raxlog.open(path).close()

        with Child(work) as child:
            assert child.finish() == [[0], [0, 1, 2]]
        stream.append({"n": 3})
        assert numbers(store) == [0, 1, 2, 3]


def test_a_fork_does_not_free_the_reader_slots_of_the_parent(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        stop = threading.Event()
        wrong: list[BaseException] = []

        def read() -> None:
            try:
                while not stop.is_set():
                    assert numbers(store)[0] == 0
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for n in range(1, 21):
            with Child(lambda say, n=n: (store.stream("s").append({"n": n}), say("ok"))[1]) as child:
                assert child.finish() == ["ok"]
        stop.set()
        for thread in threads:
            thread.join(10)
        assert wrong == []
        assert numbers(store) == list(range(21))


def test_forks_while_other_threads_write_and_read_never_hang(path: Path) -> None:
    with raxlog.open(path, map_size=1 << 16) as store:
        stop = threading.Event()
        raised: list[BaseException] = []

        def work(number: int) -> None:
            try:
                while not stop.is_set():
                    store.stream(f"t{number}").append({"n": number, "x": bytes(500)})
                    len(store.stream("s"))
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        for n in range(30):
            with Child(lambda say, n=n: (store.stream("s").append({"n": n}), say(len(store.stream("t0"))))[1]) as child:
                threading.Timer(20, child.kill).start() if n == 0 else None
                assert len(child.finish()) == 1
        stop.set()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert raised == []
        assert numbers(store) == list(range(30))


def test_a_fork_inside_another_threads_transaction_leaves_a_child_that_says_so(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        inside, go = threading.Event(), threading.Event()

        def hold() -> None:
            with store.transaction() as tx:
                tx.stream("s").append({"n": 1})
                inside.set()
                assert go.wait(30)

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        assert inside.wait(10)

        def use(say: Callable[[Any], None]) -> None:
            try:
                len(store.stream("s"))
            except raxlog.StoreError as error:
                say(str(error))

        with Child(use) as child:
            assert "forked while" in child.finish()[0]
        go.set()
        holder.join(10)
        assert numbers(store) == [0, 1]


def test_a_fork_inside_the_threads_own_transaction_keeps_the_parents_whole(path: Path) -> None:
    with raxlog.open(path) as store:
        with store.transaction() as tx:
            tx.stream("s").append({"n": 0})
            with Child(lambda say: say(numbers(store))) as child:
                assert child.finish() == [[]]
            tx.stream("s").append({"n": 1})
        assert numbers(store) == [0, 1]


def test_a_forked_child_may_open_the_store_in_its_own_way(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})

        def read(say: Callable[[Any], None]) -> None:
            with raxlog.open(path, readonly=True) as mine:
                say(numbers(mine))
                with pytest.raises(raxlog.SettingsConflict):
                    numbers(store)  # the inherited handle, which can write
            say(numbers(store))

        def use_first(say: Callable[[Any], None]) -> None:
            say(numbers(store))
            with pytest.raises(raxlog.SettingsConflict):
                raxlog.open(path, readonly=True)

        with Child(read) as child:
            assert child.finish() == [[0], [0]]
        with Child(use_first) as child:
            assert child.finish() == [[0]]


def _append_in_process(path: str, n: int) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": n})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_children_write_beside_the_parent(path: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    with raxlog.open(path) as store:
        processes = [context.Process(target=_append_in_process, args=(str(path), n)) for n in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert sorted(numbers(store)) == [0, 1, 2]


# -- readers --------------------------------------------------------------------------------


def test_the_slots_of_killed_readers_are_cleared_on_open(path: Path) -> None:
    raxlog.open(path).close()

    def read(say: Callable[[Any], None]) -> None:
        with raxlog.open(path)._env.read():
            say("reading")
            time.sleep(60)

    with Child(lambda say: (raxlog.open(path), say(1), time.sleep(60))[0]) as holder:  # keeps the lock file alive
        holder.heard()
        for _ in range(3):
            with Child(read) as child:
                child.heard()
        with raxlog.open(path) as store:
            assert "no active readers" in store._env.live().readers()


def test_the_slots_of_killed_readers_are_found_when_all_are_taken(path: Path) -> None:
    raxlog.open(path).close()
    (path / "000001" / "lock.mdb").unlink()
    with raxlog.open(path, max_readers=3) as store:
        store.stream("s").append({"n": 0})

        def read(say: Callable[[Any], None]) -> None:
            with store._env.read():
                say("reading")
                time.sleep(60)

        for _ in range(3):
            with Child(read) as child:
                child.heard()
        assert numbers(store) == [0]


def test_too_many_live_readers_are_told_what_to_do(path: Path) -> None:
    raxlog.open(path).close()
    (path / "000001" / "lock.mdb").unlink()  # it has 126 slots from its making; LMDB makes it anew
    with raxlog.open(path, max_readers=2) as store:
        store.stream("s").append({"n": 0})
        inside, go = threading.Barrier(3), threading.Event()

        def hold() -> None:
            with store._env.read():
                inside.wait(10)
                go.wait(10)

        threads = [threading.Thread(target=hold, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        inside.wait(10)
        with pytest.raises(raxlog.StoreError, match="max_readers"):
            len(store.stream("s"))
        store.stream("s").append({"n": 1})  # writing takes no slot
        go.set()
        for thread in threads:
            thread.join(10)
        assert numbers(store) == [0, 1]


# -- growing --------------------------------------------------------------------------------


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
                        n = int(entry.fields[b"n"])
                        if n != place or entry.fields[b"x"] != bytes([n % 256]) * 200:
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
        assert [int(entry.fields[b"n"]) for entry in iterator] == list(range(1500))
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


def test_a_process_with_little_address_space_opens_and_fills_what_it_has(path: Path) -> None:
    def work(say: Callable[[Any], None]) -> None:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
        with raxlog.open(path) as store:
            stream = store.stream("s")
            for n in range(50):
                stream.append({"n": n})
            say(map_size(store))
        with raxlog.open(path, map_size=200 << 20) as store:
            fill(store.stream("large"), 1 << 20, 20, 200)
            say(map_size(store))
            say(numbers(store) == list(range(50)))
            store.stream("s").append({"n": 50})

    with Child(work) as child:
        first, second, same = child.finish()
    assert first < 1 << 30
    assert 200 << 20 <= second < 1 << 30
    assert same
    with raxlog.open(path) as store:
        assert numbers(store) == list(range(51))


# -- read-only ------------------------------------------------------------------------------


@pytest.fixture
def read_only_medium(path: Path) -> Iterator[Path]:
    """A store on a file system that is mounted read-only."""
    medium = path.with_name("medium")
    medium.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0 or subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(medium)], capture_output=True, check=False,
    ).returncode:
        pytest.skip("mounting takes root")
    try:
        with raxlog.open(medium / "s.rax") as store:
            store.stream("s").append({"n": 1})
        subprocess.run([mount, "-o", "remount,ro", str(medium)], check=True)
        yield medium / "s.rax"
    finally:
        subprocess.run(["umount", "-l", str(medium)], check=True)


def test_a_store_on_a_read_only_medium_opens_without_lock_and_makes_no_file(read_only_medium: Path) -> None:
    before = everything_in(read_only_medium)
    with raxlog.open(read_only_medium, readonly=True) as store:
        assert numbers(store) == [1]
    assert everything_in(read_only_medium) == before
    with pytest.raises(raxlog.ReadOnlyStore, match="readonly=True"):
        raxlog.open(read_only_medium)
    with pytest.raises(raxlog.ReadOnlyStore):
        raxlog.open(read_only_medium.with_name("new.rax"))


def _as_nobody(work: Callable[[Callable[[Any], None]], None]) -> Child:
    def child(say: Callable[[Any], None]) -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work(say)

    return Child(child)


@pytest.fixture
def public_path(path: Path) -> Path:
    """A store in a folder that other users can reach."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user takes root")
    for parent in path.parents:
        if parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(parent.stat().st_mode | 0o005)
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 1})
    return path


def test_a_user_without_write_permission_reads_what_rests_and_writes_nothing(public_path: Path) -> None:
    before = everything_in(public_path)

    def use(say: Callable[[Any], None]) -> None:
        with raxlog.open(public_path, readonly=True) as store:
            say(numbers(store))
        for path in (public_path, public_path.parent / "new.rax"):
            with pytest.raises(raxlog.ReadOnlyStore):
                raxlog.open(path)

    with _as_nobody(use) as child:
        assert child.finish() == [[1]]
    assert everything_in(public_path) == before


def test_a_user_who_cannot_register_as_reader_is_refused_beside_a_writer(public_path: Path) -> None:
    def use(say: Callable[[Any], None]) -> None:
        with pytest.raises(raxlog.ReadOnlyStore, match=f"process {os.getppid()}"):
            raxlog.open(public_path, readonly=True)

    with raxlog.open(public_path), _as_nobody(use) as child:
        child.finish()


def test_a_folder_that_may_not_be_searched_is_a_plain_error(public_path: Path) -> None:
    def use(say: Callable[[Any], None]) -> None:
        for readonly in (True, False):
            with pytest.raises(raxlog.StoreError):
                raxlog.open(public_path, readonly=readonly)

    public_path.chmod(0o700)
    with _as_nobody(use) as child:
        child.finish()
    public_path.chmod(0o755)
    public_path.parent.chmod(0o700)
    with _as_nobody(use) as child:
        child.finish()


# -- durability -----------------------------------------------------------------------------


def test_relaxed_durability_keeps_everything_through_a_kill(path: Path) -> None:
    def write(say: Callable[[Any], None]) -> None:
        store = raxlog.open(path, durability="relaxed")
        for n in itertools.count():
            store.stream("s").append({"n": n})
            say(n)

    with Child(write) as child:
        for _ in range(50):
            child.heard()
        child.kill()
        last = child.all_heard()[-1:] or [49]
    with raxlog.open(path, durability="relaxed") as store:
        there = numbers(store)
        assert there == list(range(len(there)))
        assert len(there) > last[0]
        store.flush()


# -- what is refused ------------------------------------------------------------------------


def _rewrite_store_record(path: Path, change: Callable[[list[Any]], None]) -> None:
    with lmdb.open(str(path / "000001")) as env, env.begin(write=True) as txn:
        row = records.unseal(layout.STORE_KEY, txn.get(layout.STORE_KEY))
        change(row)
        txn.put(layout.STORE_KEY, records.seal(layout.STORE_KEY, row))


def test_a_store_of_a_newer_format_is_refused(path: Path) -> None:
    raxlog.open(path).close()
    _rewrite_store_record(path, lambda row: row.__setitem__(0, layout.FORMAT + 1))
    for readonly in (False, True):
        with pytest.raises(raxlog.UnsupportedFormat, match="newer raxlog"):
            raxlog.open(path, readonly=readonly)


def test_another_programs_lmdb_file_is_refused_and_left_alone(path: Path) -> None:
    (path / "000001").mkdir(parents=True)
    (path / "CURRENT").write_text("000001\n")
    with lmdb.open(str(path / "000001")) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    before = (path / "000001" / "data.mdb").read_bytes()
    with pytest.raises(raxlog.NotAStore, match="no raxlog store"):
        raxlog.open(path)
    assert (path / "000001" / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("content", [
    b"", b"\n", b"rubbish\n", b"../../etc\n", b"/\n", b"000002\n", b"\xff\xfe", b"0" * 5000, "١\n".encode(),
], ids=repr)
def test_a_current_that_names_no_generation_is_refused(path: Path, content: bytes) -> None:
    raxlog.open(path).close()
    (path / "CURRENT").write_bytes(content)
    with pytest.raises(raxlog.NotAStore):
        raxlog.open(path)
    assert (path / "CURRENT").read_bytes() == content


def test_a_folder_or_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for wrong in ("folder", "file", "file/below", "folder/mine.txt/below/that"):
        for readonly in (False, True):
            with pytest.raises(raxlog.NotAStore):
                raxlog.open(tmp_path / wrong, readonly=readonly)
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["file", "folder", "mine.txt"]


def _open_in_child(path: Path, readonly: bool) -> Child:
    def use(say: Callable[[Any], None]) -> None:
        try:
            with raxlog.open(path, readonly=readonly) as store:
                say([len(list(store.stream(name).range())) for name in store.streams()])
        except raxlog.RaxlogError as error:
            say(error)

    return Child(use)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("size", [0, 1, 100, 4096, 8191, 8192, 12_288, 40_000, -4096 * 40])
def test_a_data_file_that_is_cut_off_is_an_error_never_a_crash(path: Path, size: int, readonly: bool) -> None:
    with raxlog.open(path) as store:
        store.stream("s").extend([{"n": n, "x": bytes(1000)} for n in range(300)])
    data = path / "000001" / "data.mdb"
    whole = data.read_bytes()
    os.truncate(data, size if size >= 0 else len(whole) + size)
    with _open_in_child(path, readonly) as child:
        said = child.finish()[0]
    assert isinstance(said, raxlog.CorruptionError | raxlog.NotAStore), said
    assert data.stat().st_size == (size if size >= 0 else len(whole) + size)
    data.write_bytes(whole)
    with _open_in_child(path, readonly) as child:
        assert child.finish() == [[300]]


def test_a_file_that_lmdb_left_shorter_than_it_counts_still_opens(path: Path) -> None:
    """LMDB does not write pages that were taken and freed in one transaction, also at the end."""
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 1})
        env = store._env

        def take_and_free(txn: Any) -> None:
            key = layout.family(0, 0x7F)
            txn.put(key, bytes(40_000))
            txn.delete(key)

        for _ in range(3):
            committer_of(env).submit(take_and_free, 10.0)
        info = env.live().info()
    short = (path / "000001" / "data.mdb").stat().st_size < (info["last_pgno"] + 1) * 4096
    assert short, "LMDB has changed: this test has lost its subject"
    with raxlog.open(path) as store:
        assert numbers(store) == [1]


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_for_a_data_file_are_refused(path: Path, seed: int) -> None:
    raxlog.open(path).close()
    data = path / "000001" / "data.mdb"
    data.write_bytes(random.Random(seed).randbytes(4096 * (seed + 1) + seed))
    for readonly in (False, True):
        with _open_in_child(path, readonly) as child:
            assert isinstance(child.finish()[0], raxlog.NotAStore | raxlog.CorruptionError)


def test_a_store_record_with_a_flipped_bit_is_a_corruption_error(path: Path) -> None:
    raxlog.open(path).close()
    with lmdb.open(str(path / "000001")) as env, env.begin(write=True) as txn:
        value = bytearray(txn.get(layout.STORE_KEY))
        value[-1] ^= 1
        txn.put(layout.STORE_KEY, bytes(value))
    with pytest.raises(raxlog.CorruptionError):
        raxlog.open(path)


def test_a_store_open_through_py_lmdb_itself_is_a_conflict(path: Path) -> None:
    raxlog.open(path).close()
    with lmdb.open(str(path / "000001")), pytest.raises(raxlog.SettingsConflict, match="py-lmdb"):
        raxlog.open(path)
    raxlog.open(path).close()


def test_a_reader_broken_off_between_its_last_steps_does_not_hold_up_growth(path: Path) -> None:
    """What Ctrl-C can leave: a read that has begun, and whose end was never reached."""
    with raxlog.open(path, map_size=1 << 16) as store:
        store._env.read().__enter__()
        began = time.monotonic()
        store.stream("s").extend([{"n": n, "x": bytes(1000)} for n in range(300)])
        assert time.monotonic() - began < 5
        assert map_size(store) > 1 << 16
        assert len(numbers(store)) == 300


