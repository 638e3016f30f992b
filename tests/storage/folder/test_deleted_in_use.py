"""Files of a store that are deleted or replaced while processes have it open.

``lock.mdb``, ``open`` and ``data.mdb``: nothing more is written, and the error says why. ``writer`` and
``wake``: they are made again, and all processes go on.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from crowd import Notes
from raxlog.storage.folder import store_files

Say = Callable[[Any], None]
REFUSED = ["000001/lock.mdb", "open", "000001/data.mdb"]
_WRITERS = 3


def write(path: Path, acked: Notes, i: int, seconds: float) -> Callable[[Say], None]:
    """A process that appends to one stream with others, and says in the end what was acknowledged or refused."""

    def work(say: Say) -> None:
        with raxlog.open(path, durability="relaxed") as store:
            stream, ids = store.stream("s"), []
            say("open")
            deadline = time.monotonic() + seconds
            try:
                while time.monotonic() < deadline:
                    ids.append(str(stream.append({"by": i, "n": len(ids)})))
                    acked[i] = len(ids)
                say("")
            except raxlog.StoreError as error:
                say(f"{type(error).__name__} {error}")
            say(ids)

    return work


def work_together(path: Path, seconds: float, harm: Callable[[], None], first: int = 5) -> tuple[list[str], list[str]]:
    """Let processes append, and do harm once each has ``first``. What they said in the end; the IDs they were given."""
    acked = Notes(_WRITERS)
    errors, ids = [], []
    with ExitStack() as stack:
        children = [stack.enter_context(Child(write(path, acked, i, seconds))) for i in range(_WRITERS)]
        for child in children:
            assert child.heard() == "open"
        deadline = time.monotonic() + 20
        while min(acked[i] for i in range(_WRITERS)) < first:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        harm()
        for child in children:
            error, given = child.finish()
            errors.append(error)
            ids += given
    return errors, ids


def no_instance(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def all_there(path: Path) -> list[str]:
    """The IDs in the store, which opens, takes a write, and is sound."""
    with raxlog.open(path) as store:
        found = [str(entry.id) for entry in store.stream("s").range()]
        store.stream("s").append({"more": 1})
    assert raxlog.check(path).ok
    return found


OFTEN = 400  # appends: by then a process has the kernel's events, if there are any to be had


HOWS = ("deleted", "replaced", "moved away")


@pytest.mark.parametrize(("name", "how", "first", "events"), [
    *((name, how, 5, True) for name in REFUSED[:2] for how in HOWS),
    *((REFUSED[0], how, OFTEN, True) for how in HOWS), (REFUSED[0], "deleted", OFTEN, False),
])
def test_processes_at_work_write_nothing_more_once_a_file_of_theirs_is_gone(
    path: Path, name: str, how: str, first: int, events: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raxlog.open(path).close()
    if not events:
        monkeypatch.setattr(store_files, "Inotify", no_instance)

    def harm() -> None:
        file = path / name
        if how == "replaced":
            other = path.with_name("other")
            shutil.copy(file, other)
            os.replace(other, file)
        elif how == "moved away":
            os.rename(file, path.with_name("other"))
        else:
            file.unlink()

    errors, ids = work_together(path, 20.0, harm, first)
    for error in errors:
        assert error.startswith(f"StoreError {path / name} has been deleted or replaced while the store is in use")
        assert "raxlog check" in error
    assert len(ids) == len(set(ids))
    assert all_there(path) == sorted(ids, key=raxlog.StreamID)


@pytest.mark.parametrize("name", ["writer", "wake"])
def test_processes_at_work_make_a_file_again_that_was_deleted_and_lose_nothing(path: Path, name: str) -> None:
    raxlog.open(path).close()

    def harm() -> None:
        for _ in range(15):
            (path / name).unlink(missing_ok=True)
            time.sleep(0.05)

    errors, ids = work_together(path, 1.0, harm)
    assert errors == [""] * _WRITERS
    assert len(ids) == len(set(ids))
    assert all_there(path) == sorted(ids, key=raxlog.StreamID)
    assert (path / name).exists()


def test_the_holder_of_a_lock_file_that_was_deleted_is_waited_for_and_then_all_use_the_new_one(path: Path) -> None:
    def write_other(say: Say) -> None:
        with raxlog.open(path) as store:
            say("open")
            store.stream("s").append({"n": 1})

    with raxlog.open(path, lock_timeout=0.3) as store:
        with Child(write_other) as other:
            with store.transaction() as tx:
                tx.stream("s").append({"n": 0})
                other.heard()
                (path / "writer").unlink()
                time.sleep(0.2)
            other.finish()
        store.stream("s").append({"n": 2})
        assert [entry.fields["n"] for entry in store.stream("s").range()] == ["0", "1", "2"]

        def hold(say: Say) -> None:
            with raxlog.open(path) as held, held.transaction():
                say("held")
                time.sleep(60)

        with Child(hold) as holder:
            holder.heard()
            with pytest.raises(raxlog.LockTimeout, match=f"process {holder.pid} "):
                store.stream("s").append({"n": 3})


def test_a_reader_that_sleeps_is_woken_although_the_wake_file_was_deleted(path: Path) -> None:
    def read(say: Say) -> None:
        with raxlog.open(path) as store:
            group = store.stream("s").create_group("g", start="0", create_stream=True)
            say("open")
            for _ in range(3):
                say([entry.fields["n"] for entry in group.read("w", timeout=20)])

    with Child(read) as reader, raxlog.open(path) as store:
        reader.heard()
        for n in range(3):
            time.sleep(0.2)
            (path / "wake").unlink()
            began = time.monotonic()
            store.stream("s").append({"n": n})
            assert reader.heard() == [str(n)]
            assert time.monotonic() - began < 5
        reader.finish()


@pytest.mark.parametrize("name", REFUSED)
def test_every_kind_of_write_is_refused_and_what_was_acknowledged_can_be_read(path: Path, name: str) -> None:
    with raxlog.open(path) as store:
        stream = store.stream("s")
        group = stream.create_group("g", start="0", create_stream=True)
        stream.append({"n": 0})
        (path / name).rename(path / f"{name}.away")
        for write_something in (
            lambda: stream.append({"n": 1}),
            lambda: stream.extend([{"n": 1}] * 10),
            lambda: group.read("w"),
            lambda: store.transaction().__enter__(),
            store.compact,
        ):
            with pytest.raises(raxlog.StoreError, match="deleted or replaced"):
                write_something()  # type: ignore[no-untyped-call]
        assert [entry.fields for entry in stream.range()] == [{"n": "0"}]
        (path / f"{name}.away").rename(path / name)
        stream.append({"n": 2})  # it was the very same file, and is in its place again
        assert len(stream) == 2
    assert raxlog.check(path).ok


def test_a_buffered_append_is_refused_and_those_before_it_are_there(path: Path) -> None:
    with raxlog.open(path, durability="buffered") as store:
        stream, given = store.stream("s"), 0
        with pytest.raises(raxlog.StoreError, match="deleted or replaced"):  # noqa: PT012 - at some append
            for n in range(10_000_000):
                stream.append({"n": n})
                given = n + 1
                if n == 5000:
                    (path / "open").unlink()
        assert given < 1_000_000
    with raxlog.open(path) as store:
        assert [int(entry.fields["n"]) for entry in store.stream("s").range()] == list(range(given))


def test_a_store_whose_lock_file_was_deleted_in_use_opens_for_no_other_until_all_have_closed_it(path: Path) -> None:
    def opened(readonly: bool) -> Callable[[Say], None]:
        def work(say: Say) -> None:
            try:
                raxlog.open(path, readonly=readonly).close()
                say("opened")
            except raxlog.StoreError as error:
                say(str(error))

        return work

    def try_to_open() -> list[str]:
        said = []
        for readonly in (False, True):
            with Child(opened(readonly)) as other:
                said += other.finish()
        return said

    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        (path / "000001" / "lock.mdb").unlink()
        for error in try_to_open():
            assert f"has been deleted while process {os.getpid()} has the store open" in error
        assert not (path / "000001" / "lock.mdb").exists()
    assert try_to_open() == ["opened"] * 2

    def read(say: Say) -> None:
        with raxlog.open(path, readonly=True) as held, held._env.read():
            say("reading")
            time.sleep(60)

    with Child(read) as reader:
        reader.heard()
        (path / "000001" / "lock.mdb").unlink()
        for error in try_to_open():
            assert "has been deleted while a process that reads has the store open" in error
    assert try_to_open() == ["opened"] * 2


def test_a_process_whose_store_was_deleted_as_a_whole_and_made_anew_writes_to_neither(path: Path) -> None:
    def make_anew(say: Say) -> None:
        with raxlog.open(path) as other:
            other.stream("new").append({"n": 1})

    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        shutil.rmtree(path)
        with Child(make_anew) as child:
            child.finish()
        with pytest.raises(raxlog.StoreError, match="deleted or replaced"):
            store.stream("s").append({"n": 1})
    with raxlog.open(path) as store:
        assert store.streams() == ["new"]


def test_a_store_that_was_moved_as_a_whole_goes_on(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        moved = path.rename(path.with_name("moved"))
        for n in range(1, 5):
            store.stream("s").append({"n": n})
    with raxlog.open(moved) as store:
        assert len(store.stream("s")) == 5


def test_a_deletion_in_the_tick_of_the_folders_last_change_is_noticed(path: Path) -> None:
    for _ in range(20):
        with raxlog.open(path, durability="relaxed") as store:
            (path / "other").touch()
            store.stream("s").append({"n": 0})
            (path / "open").unlink()
            with pytest.raises(raxlog.StoreError, match="deleted or replaced"):
                store.stream("s").append({"n": 1})


def test_while_a_compaction_has_the_lock_another_process_cannot_write_behind_a_new_file(path: Path) -> None:
    def write_other(say: Say) -> None:
        with raxlog.open(path, lock_timeout=0.2) as other:
            try:
                other.stream("s").append({"n": 1})
            except raxlog.LockTimeout as error:
                say(str(error))

    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})

        def progress(step: str, done: int, total: int) -> None:
            if step == "prepared":
                (path / "writer").unlink()
                with Child(write_other) as child:
                    assert "deleted" in child.finish()[0]

        for n in range(300):
            store.stream("s").append({"n": n, "x": bytes(1000)})
        store.stream("s").trim(maxlen=1)
        store.compact(progress=progress)
        assert len(store.stream("s")) == 1
        store.stream("s").append({"n": 2})
    assert len(all_there(path)) == 2
