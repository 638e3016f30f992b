"""Files of a store that are deleted, replaced or moved while processes have it open: nothing more is written."""

from __future__ import annotations

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

Say = Callable[[Any], None]
REFUSED = ["000001/lock.mdb", "shared", "000001/data.mdb", "000001/log", "000001/log-state"]
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


def all_there(path: Path) -> list[str]:
    """The IDs in the store, which opens, takes a write, and is sound."""
    with raxlog.open(path) as store:
        found = [str(entry.id) for entry in store.stream("s").range()]
        store.stream("s").append({"more": 1})
    assert raxlog.check(path).ok
    return found


@pytest.mark.parametrize(("name", "how", "first"), [
    *((name, how, 5) for name in REFUSED[:2] for how in ("deleted", "replaced", "moved away")),
    (REFUSED[0], "replaced", 400),
])
def test_processes_at_work_write_nothing_more_once_a_file_of_theirs_is_gone(
    path: Path, name: str, how: str, first: int
) -> None:
    raxlog.open(path).close()

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


@pytest.mark.parametrize("name", ["CURRENT", *REFUSED])
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
                    (path / "shared").unlink()
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
            (path / "shared").unlink()
            with pytest.raises(raxlog.StoreError, match="deleted or replaced"):
                store.stream("s").append({"n": 1})
