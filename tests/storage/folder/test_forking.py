"""Forking with a store open: the child reads and writes, the parent goes on."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from environment_cases import numbers
from raxlog.storage.engine.environment import Environment


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


def test_a_forked_child_leaves_the_slots_of_its_parents_reads_alone(path: Path) -> None:
    """Without its slot a read sees pages that others use again, and misses or mixes up records."""
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 1})
        tree = store._env.map.tree
        assert tree is not None
        with store._env.read() as txn:  # it keeps its slot for as long as there is its object
            assert txn.id()
            slot = txn if store._env.map.log is None else txn.lmdb()  # type: ignore[attr-defined]
        assert str(os.getpid()) in tree._opened.readers()
        with Child(lambda say: say(len(store.stream("s")))) as child:
            assert child.finish() == [1]
        assert str(os.getpid()) in tree._opened.readers()
        del slot


def test_ten_exceptions_in_a_row_in_the_hook_after_a_fork_leave_the_parent_at_work(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the signals of many milliseconds wait until the fork is over, and strike run after run."""
    left = 10
    let_begin = Environment.after_fork_in_parent

    def struck(env: Environment) -> None:
        nonlocal left
        if left:
            left -= 1
            raise KeyboardInterrupt
        let_begin(env)

    monkeypatch.setattr(Environment, "after_fork_in_parent", struck)
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    with raxlog.open(path, lock_timeout=5) as store:
        store.stream("s").append({"n": 0})
        with Child(lambda say: None) as child:
            child.finish()
        assert left == 0
        store.stream("s").append({"n": 1})
        assert len(store.stream("s")) == 2


COLLECTED = """
import gc, os, sys
gc.disable()
os.register_at_fork(before=gc.collect)  # runs after raxlog's own, as it was registered before them
import raxlog
store = raxlog.open(sys.argv[1])
store.stream("s").append({"n": 1})
store.transaction().__enter__().stream("s").append({"n": 2})
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
store.stream("s").append({"n": 3})
print(len(store.stream("s")))
"""


def test_a_dropped_transaction_may_be_collected_in_the_middle_of_a_fork(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTED, str(tmp_path / "s.rax")], capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert (done.stdout, done.stderr) == ("2\n", "")


IMPORTING = """
import os, sys, threading, time
import raxlog

assert "ctypes" not in sys.modules
begun = threading.Event()

class Slowly:  # as on a busy machine
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "ctypes":
            begun.set()
            time.sleep(0.5)

sys.meta_path.insert(0, Slowly)
with raxlog.open(sys.argv[1]) as store:
    stream = store.stream("s")
    threading.Thread(target=__import__, args=("ctypes",)).start()  # as a thread does that waits for other writers
    begun.wait()
    child = os.fork()
    if not child:
        stream.append({"by": "child"})
        os._exit(0)
    print(os.waitpid(child, 0)[1], len(stream))
"""


def test_a_fork_beside_a_thread_that_imports_what_the_child_needs_leaves_a_child_that_works(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING, str(tmp_path / "s.rax")], capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert (done.stdout, done.stderr) == ("0 1\n", "")
