"""Compaction: everything is there after it, for everybody, wherever it is broken off."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import forkserver
import lmdb
import pytest
import raxlog
from children import Child
from raxlog.tools.cli import main

STEPS = ("copying", "copied", "flushed", "named", "prepared", "marked", "switched", "cleared")
DECIDED = STEPS.index("marked")

Say = Callable[[Any], None]


def generations(path: Path) -> list[str]:
    """The folders of generations in the store's folder, finished or not."""
    return sorted(entry.name for entry in path.iterdir() if entry.name[0].isdigit())


def fill(path: Path, entries: int = 3000, **options: Any) -> None:
    """A store with three streams, a group with pending entries, state, and much that was deleted."""
    with raxlog.open(path, **options) as store:
        for name in ("a", "b", "c"):
            stream = store.stream(name)
            ids = [f"{n + 1}-0" for n in range(entries)]
            stream.extend([{"n": n, "x": "y" * 200} for n in range(entries)], ids)
            stream.trim(maxlen=entries // 10)
        group = store.stream("a").create_group("g", "0")
        group.read("w", count=50)
        store.state["k"] = "v"


def contents(store: raxlog.Store) -> Any:
    """All a user can see."""
    return (
        [(name, [(str(e.id), e.pairs) for e in store.stream(name).range()]) for name in store.streams()],
        [str(p.id) for p in store.stream("a").group("g").pending_entries(count=1000)],
        dict(store.state),
    )


def die_at(step: str) -> Callable[[str, int, int], None]:
    """A progress that kills its own process at a step."""

    def progress(now: str, done: int, total: int) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return progress


def test_compacting_gives_back_the_room_of_what_was_deleted_and_changes_nothing_else(path: Path) -> None:
    fill(path)
    with raxlog.open(path) as store:
        before = contents(store)
        steps: list[tuple[str, int, int]] = []
        done = store.compact(lambda *step: steps.append(step))
        assert done.bytes_after < done.bytes_before / 2
        assert done.generation == 2
        assert done.held_by == ()
        assert [name for name in STEPS if name in {step for step, _, _ in steps}] == list(STEPS)
        assert contents(store) == before
        store.stream("a").append({"more": 1})
        assert len(store.stream("a")) == 301
    assert generations(path) == ["000002"]
    with raxlog.open(path) as store:
        assert len(store.stream("a")) == 301
        assert store.compact().generation == 3


def test_where_there_is_nothing_to_give_back_the_file_stays_and_never_becomes_larger(path: Path) -> None:
    with raxlog.open(path) as store:
        for n in range(3):
            size = (store._env.map.generation / "data.mdb").stat().st_size
            steps: list[str] = []
            done = store.compact(lambda step, _done, _total, steps=steps: steps.append(step))
            assert done.bytes_before == size >= done.bytes_after
            assert done.bytes_after == (store._env.map.generation / "data.mdb").stat().st_size
            if done.bytes_after == size:
                assert steps == []
            again = store.compact()
            assert again == raxlog.Compaction(done.generation, done.bytes_after, done.bytes_after, again.seconds, ())
            store.stream("s").extend({"n": n, "x": bytes(300)} for n in range(10 ** n))
    assert generations(path) == [f"{done.generation:06d}"]
    assert raxlog.check(path).ok


def test_another_process_goes_on_in_the_new_file_without_a_word(path: Path) -> None:
    fill(path)

    def work(say: Say) -> None:
        with raxlog.open(path) as store, raxlog.open(path) as again:
            iterator = store.stream("a").range()
            first = [next(iterator)]
            say("reading")
            while store.state["k"] == "v":
                time.sleep(0.005)
            say([str(e.id) for e in (*first, *iterator)])
            say(str(store.stream("b").append({"from": "child"}, id="9000-1")))
            with again.transaction() as tx:
                tx.stream("c").append({"from": "child"}, id="9000-2")

    with Child(work) as child:
        child.heard()
        with raxlog.open(path) as store:
            store.compact()
            store.state["k"] = "compacted"
            ids, new = child.heard(), child.heard()
            child.finish()
            assert ids == [f"{n + 1}-0" for n in range(2700, 3000)]
            assert new == "9000-1"
            assert str(store.stream("b").info().last_generated_id) == "9000-1"
            assert len(store.stream("c")) == 301


def test_a_writer_that_slept_through_two_compactions_commits_to_the_third_file(path: Path) -> None:
    fill(path)

    def work(say: Say) -> None:
        with raxlog.open(path) as store:
            store.stream("a").append({"n": 1})  # so that what it keeps warm is of the old file
            say("warm")
            signal.sigwait({signal.SIGUSR1})
            store.stream("a").append({"n": 2})

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with Child(work) as child, raxlog.open(path) as store:
            child.heard()
            store.compact()
            store.stream("a").append({"n": "mine"})
            store.compact()
            child.send(signal.SIGUSR1)
            child.finish()
            assert [e.fields["n"] for e in store.stream("a").range(count=3, reverse=True)] == ["2", "mine", "1"]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


def test_who_sleeps_for_an_entry_is_woken_by_one_in_the_new_file(path: Path) -> None:
    fill(path)

    def work(say: Say) -> None:
        with raxlog.open(path) as store:
            after = store.stream("a").last_id  # before the word: what comes behind it must be found
            say("ready")
            found = store.read({"a": after}, timeout=20)
            say([e.fields["n"] for e in found["a"]])

    with Child(work) as child, raxlog.open(path) as store:
        child.heard()
        time.sleep(0.2)
        store.compact()
        time.sleep(0.1)
        began = time.monotonic()
        store.stream("a").append({"n": "new"})
        assert child.heard() == ["new"]
        assert time.monotonic() - began < 5
        child.finish()


def test_the_old_file_goes_when_the_last_process_has_closed_it(path: Path) -> None:
    fill(path)

    def work(say: Say) -> None:
        with raxlog.open(path, readonly=True) as store:
            say(len(store.stream("a")))
            signal.sigwait({signal.SIGUSR1})

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with Child(work) as child:
            child.heard()
            with raxlog.open(path) as store:
                assert store.compact().held_by == (child.pid,)
            assert generations(path) == ["000001", "000002"]
            child.send(signal.SIGUSR1)
            child.finish()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    raxlog.open(path, readonly=True).close()
    assert generations(path) == ["000001", "000002"], "a reader removes nothing"
    raxlog.open(path).close()
    assert generations(path) == ["000002"]


@pytest.mark.storm
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("durability", ["commit", "relaxed"])
def test_a_kill_at_any_step_leaves_the_store_whole_and_a_bystander_at_work(
    path: Path, step: str, durability: str
) -> None:
    fill(path, 600, durability=durability)
    with raxlog.open(path, durability=durability) as store:
        before = contents(store)

    def stand_by(say: Say) -> None:
        with raxlog.open(path, durability=durability) as store:
            say(contents(store) == before)
            signal.sigwait({signal.SIGUSR1})
            say(contents(store) == before)
            store.stream("b").append({"from": "bystander"})

    def compact(say: Say) -> None:
        with raxlog.open(path, durability=durability) as store:
            store.compact(die_at(step))

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with Child(stand_by) as bystander:
            assert bystander.heard() is True
            with Child(compact) as child:
                child.wait()
                assert child.status == -signal.SIGKILL
            bystander.send(signal.SIGUSR1)
            assert bystander.finish() == [True]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    with raxlog.open(path, readonly=True, durability=durability) as store:
        assert len(store.stream("b")) == 61
    with raxlog.open(path, durability=durability) as store:
        assert generations(path) == (["000002"] if STEPS.index(step) >= DECIDED else ["000001"])
        assert sorted(entry.name for entry in path.iterdir() if entry.name.startswith("CURRENT")) == ["CURRENT"]
        store.stream("b").delete(next(store.stream("b").range(reverse=True)).id)
        assert contents(store) == before
        store.compact()
        assert contents(store) == before


@pytest.mark.parametrize("step", STEPS)
def test_an_exception_at_any_step_leaves_the_store_usable_in_the_same_process(path: Path, step: str) -> None:
    fill(path, 600)

    def progress(now: str, done: int, total: int) -> None:
        if now == step:
            raise KeyboardInterrupt

    with raxlog.open(path) as store:
        before = contents(store)
        with pytest.raises(KeyboardInterrupt):
            store.compact(progress)
        assert contents(store) == before
        store.stream("b").append({"after": step})
        store.compact()
        assert len(store.stream("b")) == 61
        assert len(generations(path)) == 1
    with raxlog.open(path) as store:
        assert len(store.stream("b")) == 61


def images(path: Path, folder: Path) -> list[tuple[str, Path]]:
    """The store's folder as it lay on disk at each step of a compaction."""
    taken = []

    def progress(now: str, done: int, total: int) -> None:
        if now != "copying":
            shutil.copytree(path, folder / now)
            taken.append((now, folder / now))

    with raxlog.open(path) as store:
        store.compact(progress)
    return taken


def test_what_a_power_cut_leaves_of_a_swap_opens_with_everything(path: Path, tmp_path: Path) -> None:
    """Renames may be on disk without one another only in the order in which they were flushed."""
    fill(path, 600)
    with raxlog.open(path) as store:
        before = contents(store)
    taken = dict(images(path, tmp_path))

    def variant(name: str, step: str, change: Callable[[Path], None]) -> tuple[str, Path]:
        place = tmp_path / name
        shutil.copytree(taken[step], place)
        change(place)
        return name, place

    def cut_in_half(place: Path) -> None:
        data = place / "000002.tmp" / "data.mdb"
        os.truncate(data, data.stat().st_size // 2)

    def nameless_again(place: Path) -> None:
        (place / "000002").rename(place / "000002.tmp")

    def half_removed(place: Path) -> None:
        shutil.copytree(taken["marked"] / "000001", place / "000001.gone")
        (place / "000001.gone" / "data.mdb").unlink()

    def meta_pages_undone(place: Path) -> None:
        """The mark's commit is in the log, and its checkpoint's meta page never came to the disk."""
        with (taken["prepared"] / "000001" / "data.mdb").open("rb") as before_mark:
            metas = before_mark.read(8192)
        with (place / "000001" / "data.mdb").open("r+b") as data:
            data.write(metas)

    tried = list(taken.items())
    tried += [
        variant("half a copy", "copied", cut_in_half),
        variant("an empty copy", "copied", lambda p: os.truncate(p / "000002.tmp" / "data.mdb", 0)),
        variant("a copy without its lock file", "flushed", lambda p: (p / "000002.tmp" / "lock.mdb").unlink()),
        variant("the name undone", "named", nameless_again),
        variant("an empty pointer", "prepared", lambda p: os.truncate(p / "CURRENT.tmp", 0)),
        variant("no pointer", "marked", lambda p: (p / "CURRENT.tmp").unlink()),
        variant("the mark in the log only", "marked", meta_pages_undone),
        variant("half removed", "cleared", half_removed),
        variant("lock files lost", "marked", lambda p: [lock.unlink() for lock in p.glob("*/lock.mdb")]),
    ]
    for name, place in tried:
        with raxlog.open(place, readonly=True) as store:
            assert contents(store) == before, name
        for _ in range(2):
            with raxlog.open(place) as store:
                assert contents(store) == before, name
                extra = store.stream("b").append({"from": name})
                store.stream("b").delete(extra)
        assert len(generations(place)) == 1, name


def test_a_second_power_cut_before_the_pointer_loses_nothing_committed_to_the_new_file(
    path: Path, tmp_path: Path
) -> None:
    fill(path, 600)
    marked = dict(images(path, tmp_path))["marked"]
    pid = os.fork()
    if pid == 0:
        from raxlog.storage.engine import compaction  # noqa: PLC0415

        compaction.tidy = lambda env: None  # another process had the lock
        raxlog.open(marked).stream("b").append({"acknowledged": 1})
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert (marked / "CURRENT").read_text() == "000001\n"
    with raxlog.open(marked, readonly=True) as store:
        assert len(store.stream("b")) == 61
    with raxlog.open(marked) as store:
        assert len(store.stream("b")) == 61
    assert (marked / "CURRENT").read_text() == "000002\n"


def test_threads_of_the_process_append_and_read_while_it_compacts(path: Path) -> None:
    fill(path, 600)
    stop = threading.Event()
    wrong: list[BaseException] = []
    acked = [0, 0]

    with raxlog.open(path) as store:

        def append(i: int) -> None:
            try:
                while not stop.is_set():
                    store.stream(f"t{i}").append({"n": acked[i]})
                    acked[i] += 1
            except BaseException as error:
                wrong.append(error)

        def read() -> None:
            try:
                while not stop.is_set():
                    for i in range(2):
                        least = acked[i]
                        assert least <= len(store.stream(f"t{i}")) <= acked[i] + 1
                    assert len(list(store.stream("a").range())) == 60
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=append, args=(i,)) for i in range(2)]
        threads += [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            time.sleep(0.02)
            store.compact()
        stop.set()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        for i in range(2):
            assert [int(e.fields["n"]) for e in store.stream(f"t{i}").range()] == list(range(acked[i]))
        assert min(acked) > 5


def test_a_forked_child_finds_the_file_that_is_in_force(path: Path) -> None:
    fill(path, 600)
    with raxlog.open(path) as store:
        store.compact()

        def work(say: Say) -> None:
            store.stream("b").append({"from": "child"})
            say(store.compact().generation)

        with Child(work) as child:
            assert child.finish() == [3]
        assert len(store.stream("b")) == 61


def test_where_the_copy_finds_no_room_the_store_stays_as_it_is(path: Path) -> None:
    fill(path, 6000)

    def work(say: Say) -> None:
        with raxlog.open(path) as store:
            before = contents(store)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
            try:
                store.compact()
            except raxlog.StoreFull as error:
                say(str(error))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            say(contents(store) == before and generations(path) == ["000001"])
            store.stream("b").append({"after": 1})
            say(store.compact().generation)

    with Child(work) as child:
        message, same, number = child.finish()
    assert "no larger file" in message
    assert same
    assert number == 2


def test_compact_is_refused_where_nothing_may_be_written(path: Path) -> None:
    fill(path, 30)
    with raxlog.open(path, readonly=True) as store, pytest.raises(raxlog.ReadOnlyStore):
        store.compact()
    with raxlog.open(path) as store:
        with store.transaction(), pytest.raises(raxlog.TransactionError):
            store.compact()
        with pytest.raises(raxlog.TransactionError):
            store.compact(lambda *_: store.stream("b").append({"x": 1}))
        assert len(generations(path)) == 1
    with pytest.raises(raxlog.StoreClosed):
        store.compact()


def test_compact_waits_no_longer_than_the_lock_timeout(path: Path) -> None:
    fill(path, 30)

    def hold(say: Say) -> None:
        with raxlog.open(path) as store, store.transaction() as tx:
            tx.stream("b").append({"x": 1})
            say("held")
            time.sleep(60)

    with Child(hold) as child, raxlog.open(path, lock_timeout=0.1) as store:
        child.heard()
        with pytest.raises(raxlog.LockTimeout, match=str(child.pid)):
            store.compact()
        child.kill()
        assert store.compact().generation == 2


def test_a_mark_that_leads_nowhere_is_an_error_not_an_endless_search(path: Path) -> None:
    fill(path, 30)
    from raxlog.storage.folder import directory  # noqa: PLC0415
    from raxlog.storage.format import records  # noqa: PLC0415

    with lmdb.open(str(path / "000001"), map_size=1 << 30) as env, env.begin(write=True) as txn:
        txn.put(directory.MARK, records.seal(directory.MARK, [7]))
    with pytest.raises(raxlog.StoreError):
        raxlog.open(path)


def test_a_copy_by_hard_links_of_a_store_that_was_compacted_says_so_and_can_be_salvaged(path: Path) -> None:
    fill(path)
    copy = path.with_name("copy.rax")
    shutil.copytree(path, copy, copy_function=os.link)
    with raxlog.open(path) as store:
        before = contents(store)
        assert store.compact().generation == 2
        assert contents(store) == before
    for readonly in (False, True):
        with pytest.raises(raxlog.StoreError, match=r"hard links .* salvage"):
            raxlog.open(copy, readonly=readonly)
    assert ["hard links" in problem.what for problem in raxlog.check(copy).problems] == [True]
    assert raxlog.check(path).ok
    assert not raxlog.salvage(copy, path.with_name("saved.rax")).lost
    with raxlog.open(path.with_name("saved.rax")) as store:
        assert contents(store) == before


def test_a_compaction_for_which_no_thread_is_to_be_had_is_an_error_that_names_the_limit(path: Path) -> None:
    """Whatever is missing under each limit of address space: an error of raxlog's, and the store as it was.

    Which size no thread fits into depends on the stacks that the process keeps of threads that have ended. One case
    asks for a stack of 1 GiB, which is among them nowhere.
    """
    def work(say: Say, free: int, stack: int) -> None:
        with raxlog.open(path) as store:
            if stack:
                libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)
                assert libc.pthread_getattr_default_np(attributes) == 0
                assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(stack)) == 0
                assert libc.pthread_setattr_default_np(attributes) == 0
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + free, resource.RLIM_INFINITY))
            try:
                say(f"generation {store.compact(lambda *_: None).generation}")
            except raxlog.RaxlogError as error:
                say(str(error))
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            say([str(entry.id) for entry in store.stream("a").range()])
            store.stream("a").append({"n": 1})

    fill(path)
    with raxlog.open(path, readonly=True) as store:
        expected = [str(entry.id) for entry in store.stream("a").range()]
    said = []
    for free, stack in (*((free, 0) for free in range(0, 12 << 20, 1 << 20)), (64 << 20, 1 << 30), (1 << 40, 0)):
        with Child(partial(work, free=free, stack=stack)) as child:
            text, ids = child.finish()
        said.append(text)
        assert ids[: len(expected)] == expected
        assert raxlog.check(path).ok
    assert "gives no thread" in said[-2], said
    assert "ulimit" in said[-2], said
    assert all("limit" in text or "generation" in text for text in said), said
    assert said[-1].startswith("generation "), said


# -- the command ------------------------------------------------------------------------------


def test_the_command_tells_what_it_has_saved(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path)
    with raxlog.open(path, readonly=True) as store:
        before = contents(store)
    assert main(["compact", str(path)]) == 0
    assert "less); generation 2" in capsys.readouterr().out
    assert main(["compact", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["generation"] == 2
    assert told["bytes_after"] == told["bytes_before"]
    assert told["held_by"] == []
    assert main(["compact", str(path)]) == 0
    assert "after (there is nothing to give back); generation 2" in capsys.readouterr().out
    with raxlog.open(path, readonly=True) as store:
        assert contents(store) == before


def test_the_command_refuses_what_is_no_store_and_touches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a store")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("mine")
    for place in ("absent", "file", "folder"):
        assert main(["compact", str(tmp_path / place)]) == 3
        assert capsys.readouterr().err.startswith("raxlog: ")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["file", "folder", "notes"]


def test_a_copy_that_an_exception_strikes_at_any_bytecode_is_over_when_the_call_is(path: Path) -> None:
    """A copy left behind would read from a map that is closed, and write into the folder of the next one."""
    fill(path, 600)
    with raxlog.open(path) as store:
        store.stream("wide").extend([{"x": os.urandom(3000)}] * 1500)
    for moment in itertools.count():
        with raxlog.open(path) as store:
            store.stream("brief").extend([{"x": "y" * 3000}] * 20)  # what is removed is a reason to compact
            store.stream("brief").trim(maxlen=0)
            struck = compact_struck(store, "copy_pages", moment)
        assert len(generations(path)) == 1
        with raxlog.open(path) as store:
            assert len(store.stream("wide")) == 1500
            if moment % 8 == 0 or not struck:
                store.compact()
                assert raxlog.check(path).ok
        if not struck:
            break
    assert moment > 30


def compact_struck(store: raxlog.Store, function: str, moment: int) -> bool:
    """A compaction; whether an exception came before the ``moment``-th bytecode of ``function``, if it has so many."""
    left = moment

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_name == function:
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        store.compact()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("durability", ["commit", "relaxed"])
def test_what_was_killed_as_it_wrote_its_mark_can_be_compacted_by_another_beside_openings(
    path: Path, durability: str
) -> None:
    """The kill comes behind the write of the mark's record, before END moves: it may count, or not."""
    fill(path, 600, durability=durability)

    def compact(say: Say) -> None:
        armed: list[str] = []
        write = os.pwrite

        def kill_behind(file: int, data: bytes, at: int) -> int:
            done = write(file, data, at)
            if armed and len(data) > 28:  # a record
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        with raxlog.open(path, durability=durability) as store:
            os.pwrite = kill_behind  # type: ignore[assignment]
            store.compact(lambda step, *_: armed.append(step) if step == "prepared" else None)

    def open_at(step: str, *_: int) -> None:
        if step == "copied":
            program = f"import raxlog\nwith raxlog.open({str(path)!r}) as store: print(len(store.stream('b')))"
            opened = forkserver.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
            assert opened.stdout == "60\n", opened.stderr

    with raxlog.open(path, durability=durability) as store:
        with Child(compact) as child:
            child.wait()
            assert child.status == -signal.SIGKILL
        assert generations(path) == ["000001", "000002"]
        store.compact(open_at)
        assert len(store.stream("b")) == 60
