"""The environment: one for all who open a store in a process, its readers, its durability."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import lmdb
import pytest
import raxlog
from children import Child, wait_until_stopped
from environment_cases import numbers
from raxlog.storage.locks import ofd_lock
from raxlog.storage.tree.tree import Tree


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
            assert store.readers() == []


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


@contextlib.contextmanager
def opening_stopped_in(path: Path, module: Any, call: str) -> Iterator[Child]:
    """A process that is stopped where its opening first comes to a call; goes on at the end, and must succeed."""
    original = getattr(module, call)

    def stop_once(*arguments: Any, **options: Any) -> Any:
        setattr(module, call, original)
        os.kill(os.getpid(), signal.SIGSTOP)
        return original(*arguments, **options)

    def work(say: Callable[[Any], None]) -> None:
        setattr(module, call, stop_once)
        with raxlog.open(path) as store:
            say(numbers(store))

    with Child(work) as child:
        wait_until_stopped(child.pid)
        yield child
        child.send(signal.SIGCONT)
        assert child.finish() == [[1]]


@pytest.mark.parametrize(("module", "call"), [(lmdb, "open"), (os, "pwrite")])
def test_an_opening_beside_one_that_was_stopped_names_the_process(
    path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, call: str
) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 1})
    monkeypatch.setattr(ofd_lock, "_PATIENCE", 0.3)
    with opening_stopped_in(path, module, call) as child, \
            pytest.raises(raxlog.LockTimeout, match=f"process {child.pid}, which is opening {path}"):
        raxlog.open(path)
    with raxlog.open(path) as store:
        assert numbers(store) == [1]


@pytest.mark.parametrize("options", [{}, {"readonly": True}], ids=["for writing", "readonly"])
def test_an_opening_passes_one_that_was_stopped(path: Path, options: dict[str, Any]) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 1})
    with opening_stopped_in(path, Tree, "clear_readers"), raxlog.open(path, **options) as store:
        assert numbers(store) == [1]


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


def test_a_read_that_is_dropped_where_it_begins_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an exception at any bytecode drops it: before it is noted as under way, or behind that."""
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with raxlog.open(path) as store:
        gate = store._env.gate
        read = store._env.read()
        del read
        read = store._env.read()
        read.__enter__()
        del read
        assert len(gate.inside) == 1
        began = time.monotonic()
        gate.shut(lambda: None)
        assert time.monotonic() - began < 5
        assert not gate.inside
    assert not printed
