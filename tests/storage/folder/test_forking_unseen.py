"""A fork that Python does not see, by C code in a loaded program: the child's calls say so, and touch nothing."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import forkserver
import pytest
import raxlog

PRELUDE = """
import ctypes, gc, os, sys, threading, time
import raxlog

path = sys.argv[1]
sys.stdout.reconfigure(line_buffering=True)  # what is left in a buffer, a fork's end would print again

def fork(late_hook=False):
    time.sleep(0.1)  # Python's own lock does not survive a fork of C beside a thread that waits for it
    pid = ctypes.PyDLL(None).fork()
    if pid == 0 and late_hook:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return pid

def ended(pid):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    print("the child hangs")

def tried(name, call):
    try:
        call()
    except raxlog.RaxlogError as error:
        print(name, "names the fork" if "fork" in str(error) else f"{type(error).__name__}: {error}")
    else:
        print(name, "passed")

def opened(**options):
    store = raxlog.open(path, **options)
    stream = store.stream("q")
    stream.append({"n": 0})
    stream.append({"n": 1})
    group = stream.group("g")
    stream.create_group("g", start="0")
    store.flush() if options else None
    return store, stream, group

"""


def run(path: Path, program: str) -> list[str]:
    """What a program with an unseen fork prints, in a process of its own."""
    done = forkserver.run([sys.executable, "-c", PRELUDE + textwrap.dedent(program), str(path)], text=True,
                          capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def in_a_new_process(path: Path) -> int:
    """The entries that another process finds, in a store that it finds sound."""
    code = "import sys, raxlog; s = raxlog.open(sys.argv[1]); print(len(s.stream('q'))); assert not s.last_end.problems"
    done = forkserver.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout)


CALLS = {
    "append": "stream.append({'n': 2})",
    "extend": "stream.extend([{'n': 2}])",
    "len": "len(stream)",
    "range": "list(stream.range())",
    "group read": "group.read('c')",
    "group read that waits": "group.read('c', timeout=None)",
    "read that waits": "store.read({'q': '$'}, timeout=None)",
    "ack": "group.ack('1-1')",
    "transaction": "store.transaction().__enter__()",
    "pipeline": "pipe.stream('q').append({'n': 2}); pipe.execute()",
    "open transaction": "tx.stream('q').append({'n': 2})",
    "end of the open transaction": "tx.__exit__(None, None, None)",
    "subscription": "subscription.get()",
    "durable subscription": "durable.get()",
    "subscribe": "store.subscribe('b.*')",
    "publish": "store.publish('a.b', {'n': 1})",
    "follower": "next(iter(stream.follow('0')))",
    "state": "store.state.get('k')",
    "flush": "store.flush()",
    "snapshot": "store.snapshot(path + '.snapshot')",
    "compact": "store.compact()",
    "status": "store.status()",
    "readers": "store.readers()",
    "worker": "stream.group('g').worker(print).run()",
    "streams": "store.streams()",
    "open": "raxlog.open(path)",
    "open to read": "raxlog.open(path, readonly=True)",
}


@pytest.mark.parametrize("durability", ["commit", "buffered"])
def test_each_call_in_an_unseen_child_names_the_fork_and_leaves_the_parent_at_work(
    path: Path, durability: str,
) -> None:
    """In a store of its own for each call, all of one process."""
    said = run(path, f"""
        import subprocess
        other = subprocess.Popen([sys.executable, "-c",
            "import sys, raxlog\\nfor line in sys.stdin:\\n"
            "    raxlog.open(line.rstrip()).stream('q').append({{'n': 3}})\\n    print('appended', flush=True)"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        folder = path
        os.mkdir(folder)
        for name, call in {CALLS!r}.items():
            print(name)
            path = os.path.join(folder, name)
            store, stream, group = opened(durability={durability!r})
            subscription, durable = store.subscribe("a.*"), store.subscribe_durable("a.*", durable="d")
            pipe = store.pipeline()
            in_transaction = "transaction" in name and name != "transaction"
            if in_transaction:
                holding = store.transaction()
                leave = holding.__exit__
                tx = holding.__enter__()
                tx.stream("q").append({{"n": 2}})
            pid = fork()
            if pid == 0:
                tried("first:", lambda: exec(call))
                tried("again:", lambda: exec(call))
                tried("close:", store.close)
                if in_transaction:
                    tx = leave = None
                store = stream = group = pipe = subscription = durable = holding = None
                gc.collect()
                sys.exit(0)
            ended(pid)
            if in_transaction:
                leave(None, None, None)
            else:
                stream.append({{"n": 2}})
            store.publish("a.b", {{"n": 1}})
            print("messages", subscription.get(10) is not None, durable.get(10) is not None)
            other.stdin.write(path + "\\n")
            answer = other.stdout.readline().strip()
            print(answer, len(stream), [int(dict(entry.fields)["n"]) for entry in stream.range()])
            store.close()
        other.communicate(timeout=30)
    """)
    assert said == [line for name in CALLS for line in (
        name, "first: names the fork", "again: names the fork", "close: passed", "messages True True",
        "appended 4 [0, 1, 2, 3]",
    )]
    for name in CALLS:
        with raxlog.open(path / name) as store:
            assert (len(store.stream("q")), store.last_end.problems) == (4, ()), name


ENDS = ["sys.exit(0)", "os._exit(0)", "raise SystemExit", "gc.collect(); sys.exit(0)"]


@pytest.mark.parametrize("durability", ["commit", "relaxed", "buffered"])
def test_an_unseen_child_that_makes_no_call_ends_without_touching_its_parents_locks(
    path: Path, durability: str,
) -> None:
    said = run(path, f"""
        import subprocess
        other = subprocess.Popen([sys.executable, "-c",
            "import sys, raxlog\\nfor line in sys.stdin:\\n"
            "    try: raxlog.open(line.rstrip(), lock_timeout=0.1).stream('q').append({{'n': 9}})\\n"
            "    except raxlog.LockTimeout: print('locked', flush=True)\\n    else: print('appended', flush=True)"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        folder = path
        os.mkdir(folder)
        for number, end in enumerate({ENDS!r}):
            path = os.path.join(folder, str(number))
            store, stream, group = opened(durability={durability!r})
            subscription = store.subscribe("a.*")
            with store.transaction() as tx:
                tx.stream("q").append({{"n": 2}})
                pid = fork()
                if pid == 0:
                    os.close(2)  # the `with` says that its transaction is the parent's
                    exec(end)
                ended(pid)
                other.stdin.write(path + "\\n")
                print(other.stdout.readline().strip())
                tx.stream("q").append({{"n": 3}})
            print(len(stream))
            store.close()
        other.communicate(timeout=30)
    """)
    assert said == ["locked", "4"] * len(ENDS)
    for number in range(len(ENDS)):
        with raxlog.open(path / str(number)) as store:
            assert (len(store.stream("q")), store.last_end.problems) == (4, ())


def test_a_read_of_the_parent_keeps_its_pages_while_unseen_children_come_and_go(path: Path) -> None:
    said = run(path, """
        from raxlog.store import parts
        store, stream, group = opened()
        seen = []
        def read():
            with parts(store)[0].env.read() as txn:
                inside.set()
                assert go.wait(30)
                seen.append(store.readers()[0].pid == os.getpid())
        inside, go = threading.Event(), threading.Event()
        thread = threading.Thread(target=read)
        thread.start()
        inside.wait(10)
        for way in ("len(stream)", "store.close()", "pass"):
            pid = fork()
            if pid == 0:
                try: exec(way)
                except raxlog.StoreError: pass
                os._exit(0) if way != "pass" else None
                threading._shutdown = lambda: None  # it would wait for the thread, which is the parent's
                sys.exit(0)
            ended(pid)
        go.set()
        thread.join(10)
        print(seen)
        store.close()
    """)
    assert said == ["[True]"]


@pytest.mark.parametrize("first", [False, True])
def test_the_hook_of_python_called_by_hand_in_the_child_makes_the_store_usable(path: Path, first: bool) -> None:
    said = run(path, f"""
        store, stream, group = opened()
        pid = fork()
        if pid == 0:
            if {first}:
                tried("before the hook:", lambda: len(stream))
            ctypes.pythonapi.PyOS_AfterFork_Child()
            stream.append({{"n": 2}})
            store.close()
            sys.exit(0)
        ended(pid)
        stream.append({{"n": 3}})
        print(len(stream))
    """)
    assert said == ["before the hook: names the fork"] * first + ["4"]
    assert in_a_new_process(path) == 4


def test_the_hook_called_by_hand_beside_a_transaction_of_another_thread_leaves_a_child_that_says_so(path: Path) -> None:
    said = run(path, """
        store, stream, group = opened()
        inside, go = threading.Event(), threading.Event()
        def hold():
            with store.transaction() as tx:
                tx.stream("q").append({"n": 2})
                inside.set()
                go.wait(30)
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait(10)
        pid = fork(late_hook=True)
        if pid == 0:
            tried("append:", lambda: stream.append({"n": 9}))
            os._exit(0)
        ended(pid)
        go.set()
        thread.join()
        print(len(stream))
    """)
    assert said == ["append: names the fork", "3"]


@pytest.mark.parametrize("options", ["readonly=True", "durability='buffered'"])
def test_a_store_is_opened_again_while_a_child_still_has_the_closed_ones_files(path: Path, options: str) -> None:
    """As one that another thread starts has, until it has loaded its program."""
    raxlog.open(path).close()
    said = run(path, f"""
        store = raxlog.open(path, {options})
        pid = fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        store.close()
        for again in range(3):
            with raxlog.open(path) as store:
                store.stream("q").append({{"n": again}})
                print(store.last_end.how, store.stream("q").info().length, store.compact().bytes_after > 0)
            with raxlog.open(path, readonly=True) as store:
                print(len(store.stream("q")))
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    """)
    assert said == ["clean 1 True", "1", "clean 2 True", "2", "clean 3 True", "3"]


def test_an_unseen_child_may_open_another_store(path: Path) -> None:
    said = run(path, """
        store, stream, group = opened()
        pid = fork()
        if pid == 0:
            with raxlog.open(path + ".own") as own:
                own.stream("q").append({"n": 0})
                print(len(own.stream("q")))
                tried("the parent's:", lambda: len(stream))
                pid = os.fork()
                if pid == 0:
                    own.stream("q").append({"n": 1})
                    os._exit(0)
                os.waitpid(pid, 0)
                print(len(own.stream("q")))
            sys.exit(0)
        ended(pid)
        print(len(stream))
    """)
    assert said == ["1", "the parent's: names the fork", "2", "2"]


def test_a_program_that_has_opened_no_store_may_be_forked_by_c_and_open_one(path: Path) -> None:
    said = run(path, """
        for n in range(2):
            pid = fork()
            if pid == 0:
                raxlog.open(path).stream("q").append({"n": n})
                sys.exit(0)
            ended(pid)
        print(len(raxlog.open(path).stream("q")))
    """)
    assert said == ["2"]


@pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="PID namespaces need root")
def test_a_child_with_the_parents_number_in_a_namespace_of_its_own_is_noticed(path: Path) -> None:
    said = run(path, """
        import ctypes
        CLONE_NEWPID = 0x20000000
        libc = ctypes.PyDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWPID):
            print("names the fork", 3)  # not allowed here
            sys.exit(0)
        outer = os.fork()
        if outer:
            os.waitpid(outer, 0)
            sys.exit(0)
        store, stream, group = opened()  # in process 1
        assert os.getpid() == 1
        assert libc.unshare(CLONE_NEWPID) == 0
        pid = fork()
        if pid == 0:
            assert os.getpid() == 1
            try: stream.append({"n": 2})
            except raxlog.StoreError as error: print("names the fork" if "forked" in str(error) else error, end=" ")
            store.close()
            sys.exit(0)
        ended(pid)
        stream.append({"n": 2})
        print(len(stream))
        store.close()
    """)
    assert said == ["names the fork 3"]
    assert raxlog.open(path, readonly=True).last_end.how in ("clean", "killed")


@pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="PID namespaces need root")
def test_two_processes_of_one_number_in_two_namespaces_are_told_why_the_second_cannot_open(path: Path) -> None:
    raxlog.open(path).close()
    said = run(path, """
        libc = ctypes.PyDLL(None, use_errno=True)
        opened, release = os.pipe(), os.pipe()
        def alone(work):
            outer = os.fork()
            if outer:
                return outer
            if libc.unshare(0x20000000):
                print("not allowed here", flush=True)
                os._exit(3)
            if os.fork() == 0:
                assert os.getpid() == 1
                work()
                os._exit(0)
            os.wait()
            os._exit(0)
        def hold():
            with raxlog.open(path) as store:
                os.write(opened[1], b"!")
                os.read(release[0], 1)
                store.stream("q").append({"n": 0})
        def come():
            for readonly in (False, True):
                try:
                    raxlog.open(path, readonly=readonly)
                except raxlog.StoreError as error:
                    print("PID namespace" in str(error), flush=True)
        first = alone(hold)
        os.close(opened[1])
        if os.read(opened[0], 1):
            os.waitpid(alone(come), 0)
            os.write(release[1], b"!")
        os.waitpid(first, 0)
    """)
    assert said in (["True", "True"], ["not allowed here"])
    if said[0] == "True":
        assert in_a_new_process(path) == 1
