"""Results: what a handler has returned, or why an entry was given up, found for a time and then no more."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import forkserver
import pytest
import raxlog
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog import Result
from raxlog.stream.jobs import results

SOON = 10.0


@pytest.fixture
def group(store: raxlog.Store) -> raxlog.Group:
    return store.stream("jobs").create_group("mail", start="0", create_stream=True)


def handle(entry: raxlog.Entry, tx: Any = None) -> object:
    n = int(entry.fields["n"])
    if n == 3:
        raise ValueError("no three")
    if n == 4:
        return object()
    if n == 5:
        return "\ud800"
    if n == 6:
        return 1 << 64
    return {"n": n, "text": "ü", "raw": b"\xff", "list": (n, None, True, 1.5)}


@pytest.mark.parametrize("options", [{}, {"threads": 3}, {"transaction": True}])
def test_what_handlers_return_is_found_by_the_entry_s_id(
    store: raxlog.Store, group: raxlog.Group, options: dict[str, Any]
) -> None:
    ids = store.stream("jobs").extend([{"n": n} for n in range(200)])
    assert group.wait_result(ids[0], 0) == Result(status="timeout")
    group.worker(handle, result_ttl=60, max_deliveries=1, **options).run(burst=True)
    for n, sid in enumerate(ids):
        result = group.wait_result(sid, SOON)
        if n == 3:
            assert result == Result(None, "ValueError: no three", "dead")
        elif n in (4, 5, 6):
            assert result.value is None
            assert "cannot be kept" in str(result.error)
        else:
            assert result == Result({"n": n, "text": "ü", "raw": b"\xff", "list": [n, None, True, 1.5]})
    assert group.pending().total == group.lag == 0
    assert raxlog.check(store.path).ok


def test_a_result_is_waited_for_in_another_process(store: raxlog.Store, group: raxlog.Group) -> None:
    sid = store.stream("jobs").append({"n": 1})
    wait = ("import sys, raxlog\nwith raxlog.open(sys.argv[1]) as store:\n    print('ready', flush=True)\n"
            "    print(store.stream('jobs').group('mail').wait_result(sys.argv[2]).value['n'])\n")
    with forkserver.Popen([sys.executable, "-c", wait, str(store.path), str(sid)], stdout=subprocess.PIPE,
                          text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        group.worker(handle, result_ttl=60).run(burst=True)
        assert other.stdout.readline() == "1\n"


def test_waiting_ends_in_time_and_when_it_is_stopped(store: raxlog.Store, group: raxlog.Group) -> None:
    began = time.monotonic()
    sid = store.stream("jobs").append({"n": 0})
    assert group.wait_result(sid, 0.1).status == "timeout"
    later = store.stream("jobs").defer({"n": 1}, delay=60)
    with pytest.raises(raxlog.InvalidStreamID, match="A deferred entry has no ID before it is appended"):
        group.wait_result(later, 0.1)  # type: ignore[arg-type]
    assert 0.1 <= time.monotonic() - began < SOON
    stop = raxlog.Stop()
    threading.Timer(0.1, stop.set).start()
    assert group.wait_result(sid, stop=stop).status == "timeout"
    with pytest.raises(raxlog.NoGroup, match="mule"):
        store.stream("jobs").group("mule").wait_result("1-1", 0)
    with store.transaction() as tx:
        tx.stream("jobs").group("mail").keep_results({"1-1": Result(5)}, 60)
        assert tx.stream("jobs").group("mail").wait_result("1-1") == Result(5)
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises(raxlog.InvalidArgument):
            group.keep_results({"1-1": Result(6)}, wrong)  # type: ignore[arg-type]
        with pytest.raises(raxlog.InvalidArgument):
            group.worker(handle, result_ttl=wrong)  # type: ignore[arg-type]
    with pytest.raises(raxlog.InvalidStreamID):
        group.keep_results({"1-1": Result(6), "x": Result(7)}, 60)
    assert group.wait_result("1-1", 0) == Result(5)


@settings(max_examples=12)
@given(steps=st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 1, 5, 20]), st.integers(0, 6))))
def test_results_are_there_until_their_time_and_leave_nothing_behind(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("results") / "s.rax"
    now = 10**12
    model: dict[int, tuple[int, int]] = {}
    with raxlog.open(path, durability="relaxed") as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "now_ms", lambda: now)
        group = store.stream("jobs").create_group("mail", "$", create_stream=True)
        for number, (job, seconds, pause) in enumerate(steps):
            group.keep_results({f"{job}-0": Result(number)}, seconds)
            model[job] = now + seconds * 1000, number
            now += pause * 1000
            for one in range(1, 6):
                expires, value = model.get(one, (0, 0))
                assert group.wait_result(f"{one}-0", 0) == (
                    Result(value) if expires > now else Result(status="unknown"))
        for _ in range(2):
            now += 10**6
            group.keep_results({"9-0": Result(None)}, 1)
    report = raxlog.check(path)
    assert report.ok
    assert report.counts["results"] == 1


def test_a_worker_that_is_killed_before_it_acknowledges_has_its_result_replaced(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    sid = store.stream("jobs").append({"n": 1})
    code = ("import os, signal, sys, raxlog\nwith raxlog.open(sys.argv[1]) as store:\n"
            "    group = store.stream('jobs').group('mail')\n    (entry,) = group.read('w')\n"
            "    group.keep_results({entry.id: raxlog.Result('first')}, 60)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n")
    forkserver.run([sys.executable, "-c", code, str(store.path)], check=False)
    assert group.wait_result(sid, 0) == Result("first")
    worker = group.worker(handle, result_ttl=60, lease=0.2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    deadline = time.monotonic() + SOON
    while group.wait_result(sid, 0) == Result("first") and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.stop()
    thread.join()
    assert group.wait_result(sid, 0).value["n"] == 1
