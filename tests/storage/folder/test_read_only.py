"""Reading a store that may not be written: a medium, a user, a folder."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from environment_cases import everything_in, numbers
from raxlog.storage.format import keys, records
from raxlog.storage.log import ring
from raxlog.storage.trees.rax import Rax

UNOWNED = 65534
STATE = keys.family(0, keys.STATE)


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
        import ctypes  # noqa: F401, PLC0415 - Python's own modules may be out of nobody's reach; a wait needs this one

        os.setgroups([])
        os.setgid(UNOWNED)
        os.setuid(UNOWNED)
        work(say)

    return Child(child)


@pytest.fixture
def public_path(public_folder: Path) -> Path:
    """A store in a folder that other users can reach."""
    path = public_folder / "store.rax"
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


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_user_without_write_permission_reads_what_a_killed_process_has_left_in_the_log(
    public_path: Path, is_damaged: bool
) -> None:
    """And an error, if its last record is damaged."""
    def commit(say: Callable[[Any], None]) -> None:
        store = raxlog.open(public_path)
        for n in range(2, 20):
            store.stream("s").append({"n": n})
        os.kill(os.getpid(), signal.SIGKILL)

    with Child(commit) as child:
        child.all_heard()
        child.wait()
    state = (public_path / "000001" / ring.STATE).read_bytes()
    if is_damaged:
        with (public_path / "000001" / ring.LOG).open("r+b") as file:
            file.seek(ring.HEADER + int.from_bytes(state[4096:4104], "little") - 1)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([last ^ 1]))

    def use(say: Callable[[Any], None]) -> None:
        try:
            with raxlog.open(public_path, readonly=True) as store:
                say(numbers(store))
        except raxlog.CorruptionError as error:
            say(str(error))

    with _as_nobody(use) as child:
        (seen,) = child.finish()
    assert "damaged at byte" in seen if is_damaged else seen == list(range(1, 20))


def test_a_user_who_cannot_register_as_reader_is_refused_beside_a_writer(public_path: Path) -> None:
    def use(say: Callable[[Any], None]) -> None:
        with pytest.raises(raxlog.ReadOnlyStore, match=f"process {os.getppid()}"):
            raxlog.open(public_path, readonly=True)

    with raxlog.open(public_path), _as_nobody(use) as child:
        child.finish()


@pytest.fixture
def turns() -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """One function that waits in a child until the other is called here."""
    reading, writing = os.pipe()
    yield lambda: os.read(reading, 1), lambda: os.write(writing, b".")
    os.close(reading)
    os.close(writing)


def test_a_user_who_cannot_register_is_told_of_each_writer_that_comes_and_reads_again_after_it(
        public_path: Path, turns: Any) -> None:
    wait, go_on = turns

    def use(say: Callable[[Any], None]) -> None:
        with raxlog.open(public_path, readonly=True) as store:
            looks = [lambda: numbers(store), store.streams, lambda: store.status() and "status"]
            for _ in range(5):
                for look in looks:
                    try:
                        say(look())
                    except raxlog.ReadOnlyStore as error:
                        say(str(error))
                wait()

    with _as_nobody(use) as child:
        assert [child.heard() for _ in range(3)] == [[1], ["s"], "status"]
        for number in (2, 3):
            with raxlog.open(public_path) as store:
                store.stream("s").append({"n": number})
                go_on()
                for _ in range(3):
                    reported = child.heard()
                    assert f"is open in process {os.getpid()}, and this process may not register" in reported
            go_on()
            assert [child.heard() for _ in range(3)] == [[*range(1, number + 1)], ["s"], "status"]
        go_on()
        child.finish()


def test_a_user_who_cannot_register_sees_what_a_writer_has_left_that_came_and_went_or_was_killed(
        public_path: Path, turns: Any) -> None:
    wait, go_on = turns

    def use(say: Callable[[Any], None]) -> None:
        with raxlog.open(public_path, readonly=True) as store:
            for _ in range(4):
                say(numbers(store))
                wait()

    def killed(say: Callable[[Any], None]) -> None:
        raxlog.open(public_path).stream("s").append({"n": 3})
        os.kill(os.getpid(), signal.SIGKILL)

    with _as_nobody(use) as child:
        assert child.heard() == [1]
        with raxlog.open(public_path) as store:
            store.stream("s").append({"n": 2})
        go_on()
        assert child.heard() == [1, 2]
        with Child(killed) as writer:
            writer.wait()
        go_on()
        assert child.heard() == [1, 2, 3]
        with raxlog.open(public_path) as store:
            store.stream("s").append({"n": 4})
            store.compact()
        go_on()
        assert child.heard() == [1, 2, 3, 4]
        go_on()
        child.finish()


def test_a_user_who_may_register_by_now_reads_on_beside_the_writer(public_path: Path, turns: Any) -> None:
    wait, go_on = turns

    def use(say: Callable[[Any], None]) -> None:
        with raxlog.open(public_path, readonly=True) as store:
            say(numbers(store))
            wait()
            say(numbers(store))

    with _as_nobody(use) as child:
        assert child.heard() == [1]
        for name in ("lock.mdb", ring.STATE):
            (public_path / "000001" / name).chmod(0o666)
        with raxlog.open(public_path) as store:
            store.stream("s").append({"n": 2})
            go_on()
            assert child.finish() == [[1, 2]]


def test_a_user_who_waits_for_entries_and_cannot_register_is_told_of_the_writer(public_path: Path) -> None:
    def use(say: Callable[[Any], None]) -> None:
        with raxlog.open(public_path, readonly=True) as store:
            say("waits")
            with pytest.raises(raxlog.ReadOnlyStore, match=f"process {os.getppid()}"):
                next(store.stream("s").follow(timeout=20))

    with _as_nobody(use) as child:
        assert child.heard() == "waits"
        time.sleep(0.3)
        with raxlog.open(public_path) as store:
            store.stream("s").append({"n": 2})
            child.finish()


@pytest.mark.parametrize("end", ["goes on", "is killed"])
def test_a_read_that_has_begun_before_a_writer_came_keeps_its_pages(public_path: Path, turns: Any, end: str) -> None:
    """The writer puts nothing into the data file until it has ended, and says so where it has to."""
    wait, go_on = turns
    with raxlog.open(public_path) as store:
        store.state.update({f"k{n:05}": f"k{n:05}:0".ljust(80) for n in range(20_000)})

    def change(store: raxlog.Store, times: int) -> None:
        for n in range(times):
            store.state.update({f"k{k:05}": f"k{k:05}:{n}" for k in range(n % 20, 20_000, 20)})

    def use(say: Callable[[Any], None]) -> None:
        with raxlog.open(public_path, readonly=True) as store, store._env.read() as txn:
            rows = Rax(txn, STATE).items()
            found = [next(rows) for _ in range(100)]
            say(len(found))
            wait()
            found += rows
            assert [(key, value) for key, value in found if not records.unseal(STATE + key, value)[0].startswith(key)
                    or not value.endswith(b":0".ljust(74))] == []
            say(len(found))

    with _as_nobody(use) as child:
        assert child.heard() == 100
        with raxlog.open(public_path, lock_timeout=0.5) as store:
            with pytest.raises(raxlog.LockTimeout, match=r"a read of .* by a process that may not register"):
                change(store, 100)
            store.stream("s").append({"n": 2})  # what goes into the log does
            if end == "goes on":
                go_on()
                assert child.finish() == [20_000]
            else:
                child.kill()
            change(store, 20)
    assert raxlog.check(public_path).ok


def test_scans_beside_writers_that_come_and_go_are_whole_or_refused(public_path: Path) -> None:
    """Of a user who cannot register. 20 seconds of RAXLOG_SECONDS find what a few do not."""
    count, seconds = 5_000, float(os.environ.get("RAXLOG_SECONDS", "4"))
    with raxlog.open(public_path) as store:
        store.state.update({f"k{n:05}": f"k{n:05}:0" for n in range(count)})
    stop = time.monotonic() + seconds

    def use(say: Callable[[Any], None]) -> None:
        whole = refused = 0
        store = None
        while time.monotonic() < stop:
            try:
                store = store or raxlog.open(public_path, readonly=True)
                found = dict(store.state.items())
            except raxlog.ReadOnlyStore:
                refused += 1
            else:
                assert len(found) == count
                assert [key for key, value in found.items() if not value.startswith(f"{key}:".encode())] == []
                assert len({value[7:] for value in found.values()}) == 1, "of no one commit"
                whole += 1
        say((whole, refused))

    def write(say: Callable[[Any], None]) -> None:
        n = 0
        while time.monotonic() < stop:
            with raxlog.open(public_path) as store:
                for _ in range(5):
                    n += 1
                    value = str(n) + "x" * random.randrange(90)
                    store.state.update({f"k{k:05}": f"k{k:05}:{value}" for k in range(count)})
            time.sleep(0.1 + random.random() * 0.2)

    with Child(write) as writer, _as_nobody(use) as child:
        ((whole, refused),) = child.finish()
        writer.finish()
    print(whole, "scans are whole,", refused, "refused")
    assert whole
    assert refused
    assert raxlog.check(public_path).ok


def test_a_data_file_that_may_not_be_read_is_told_as_that_and_not_as_one_that_may_not_be_written(
        public_path: Path) -> None:
    def use(say: Callable[[Any], None]) -> None:
        for readonly in (True, False):
            with pytest.raises(raxlog.StoreError) as caught:
                raxlog.open(public_path, readonly=readonly)
            say((type(caught.value).__name__, str(caught.value)))

    for data in public_path.rglob("data.mdb"):
        data.chmod(0o600)
    with _as_nobody(use) as child:
        (kind, reported), (other, refused) = child.finish()
    assert (kind, other) == ("StoreError", "ReadOnlyStore")
    assert "cannot be read" in reported
    assert "writing" not in reported
    assert "permissions" in reported
    assert "writing" in refused
    assert str(public_path) in reported


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
