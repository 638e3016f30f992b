"""raxlog.testing.clock(): the wall clock stands still until a test moves it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import raxlog
from raxlog.testing import Clock, clock

HOUR = 3600


class Sleeper:
    """A call that waits, in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.found: list[object] = []
        self._thread = threading.Thread(target=lambda: self.found.append(call()), daemon=True)
        self._thread.start()

    def ended_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


@contextmanager
def open_elsewhere(path: Path, readonly: bool = False) -> Iterator[int]:
    """A process that has the store open; its number."""
    program = (f"import raxlog\nwith raxlog.open({str(path)!r}, readonly={readonly}):\n"
               "    print('open', flush=True)\n    input()")
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process.pid
        process.communicate("\n")
    assert process.returncode == 0


def test_ids_stand_still_and_move_with_the_clock(raxlog_store: raxlog.Store, raxlog_clock: Clock) -> None:
    stream = raxlog_store.stream("q")
    before = raxlog_clock.now()
    first, second = stream.append({"n": 1}), stream.append({"n": 2})
    assert (second.ms, second.seq) == (first.ms, first.seq + 1)
    raxlog_clock.advance(HOUR)
    assert stream.append({"n": 3}).ms == first.ms + HOUR * 1000
    assert raxlog_clock.now() - before == timedelta(hours=1)


def test_the_clock_begins_with_the_machines_and_ends_with_it(raxlog_store: raxlog.Store) -> None:
    stream = raxlog_store.stream("q")
    with clock() as held:
        assert abs(held.now() - datetime.now(UTC)) < timedelta(seconds=5)
        held.advance(10)
    raxlog_store.delete_stream("q")
    assert abs(stream.append({"n": 1}).ms / 1000 - time.time()) < 5


def test_a_deferred_entry_is_there_at_its_time_and_not_before(raxlog_store: raxlog.Store, raxlog_clock: Clock) -> None:
    stream = raxlog_store.stream("q")
    group = stream.create_group("g", create_stream=True)
    stream.defer({"n": 1}, delay=HOUR)
    stream.defer({"n": 2}, at=raxlog_clock.now() + timedelta(hours=2))
    raxlog_clock.advance(HOUR - 0.001)
    assert group.read("w") == []
    raxlog_clock.advance(0.001)
    assert len(group.read("w")) == 1
    raxlog_clock.advance(HOUR)
    assert len(group.read("w")) == 1


def test_a_lease_runs_out_when_the_clock_is_moved(raxlog_store: raxlog.Store, raxlog_clock: Clock) -> None:
    stream = raxlog_store.stream("q")
    group = stream.create_group("g", create_stream=True)
    stream.append({"n": 1})
    assert len(group.read("one")) == 1
    raxlog_clock.advance(59)
    assert group.read("two", claim_idle=60) == []
    raxlog_clock.advance(1)
    [entry] = group.read("two", claim_idle=60)
    assert (entry.deliveries, entry.idle) == (2, 60)


def test_a_released_entry_a_pause_and_a_result_keep_to_the_clock(raxlog_store: raxlog.Store,
                                                                raxlog_clock: Clock) -> None:
    stream = raxlog_store.stream("q")
    group = stream.create_group("g", create_stream=True)
    sid = stream.append({"n": 1})
    group.read("w")
    group.nack(sid, delay=HOUR)
    group.keep_results({sid: raxlog.Result(7)}, ttl=HOUR)
    group.pause(until=raxlog_clock.now() + timedelta(hours=2))
    raxlog_clock.advance(HOUR - 1)
    assert group.wait_result(sid, 0) == raxlog.Result(7)
    raxlog_clock.advance(1)
    assert group.wait_result(sid, 0).status == "timeout"  # it waits for a retry, and none is kept any more
    assert group.read("w", claim_idle=9999) == []
    raxlog_clock.advance(HOUR)
    assert not group.paused
    assert len(group.read("w", claim_idle=9999)) == 1


@pytest.mark.parametrize("kind", ["read", "group", "follow", "result", "live", "interest"])
def test_a_wait_ends_when_the_clock_passes_its_deadline(kind: str, raxlog_store: raxlog.Store,
                                                        raxlog_clock: Clock) -> None:
    stream = raxlog_store.stream("q")
    group = stream.create_group("g", create_stream=True)
    subscription = raxlog_store.subscribe("news.>")
    queued = raxlog_store.stream("other").append({"n": 1})
    other = raxlog_store.stream("other").create_group("g")
    waits: dict[str, Callable[[], object]] = {
        "read": lambda: raxlog_store.read({"q": "$"}, timeout=HOUR),
        "group": lambda: group.read("w", timeout=HOUR),
        "follow": lambda: list(stream.follow(timeout=HOUR)),
        "result": lambda: other.wait_result(queued, HOUR),
        "live": lambda: subscription.get(HOUR),
        "interest": lambda: [watch.wait(), watch.wait(HOUR)],
    }
    with raxlog_store.watch("other") as watch:
        sleeper = Sleeper(waits[kind])
        assert not sleeper.ended_within(0.1)
        raxlog_clock.advance(HOUR - 60)
        assert not sleeper.ended_within(0.1)
        raxlog_clock.advance(60)
        assert sleeper.ended_within(30)


def test_a_wait_with_a_timeout_ends_by_itself_too(raxlog_store: raxlog.Store, raxlog_clock: Clock) -> None:
    group = raxlog_store.stream("q").create_group("g", create_stream=True)
    assert group.read("w", timeout=0.05) == []


@pytest.mark.parametrize("how", ["deferred", "released", "lease", "pause"])
def test_a_wait_finds_what_falls_due_when_the_clock_is_moved(how: str, raxlog_store: raxlog.Store,
                                                             raxlog_clock: Clock) -> None:
    stream = raxlog_store.stream("q")
    group = stream.create_group("g", create_stream=True)
    if how == "deferred":
        stream.defer({"n": 1}, delay=HOUR)
    else:
        sid = stream.append({"n": 1})
    if how in ("released", "lease"):
        group.read("other")
    if how == "released":
        group.nack(sid, delay=HOUR)
    if how == "pause":
        group.pause(until=raxlog_clock.now() + timedelta(hours=1))
    sleeper = Sleeper(lambda: len(group.read("w", timeout=None, claim_idle=HOUR)))
    assert not sleeper.ended_within(0.1)
    raxlog_clock.advance(HOUR)
    assert sleeper.ended_within(30)
    assert sleeper.found == [1]


def test_a_wait_that_goes_on_behind_the_block_is_not_made_longer(raxlog_store: raxlog.Store) -> None:
    with clock() as held:
        held.advance(100 * HOUR)
        sleeper = Sleeper(lambda: raxlog_store.read({"q": "$"}, timeout=0.3))
    assert sleeper.ended_within(30)


def test_a_store_that_is_open_elsewhere_is_refused_at_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store, open_elsewhere(path) as pid:
        with pytest.raises(raxlog.StoreError, match=f"open in another process.*process {pid}"), clock():
            pass
        assert abs(store.stream("q").append({"n": 1}).ms / 1000 - time.time()) < 5


@pytest.mark.parametrize("readonly", [False, True])
def test_opening_a_store_that_is_open_elsewhere_is_refused_within(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "s.rax"
    raxlog.open(path).close()
    with open_elsewhere(path, readonly), clock():
        with pytest.raises(raxlog.StoreError, match="open in another process"):
            raxlog.open(path)
        with pytest.raises(raxlog.StoreError, match="open in another process"):
            raxlog.open(path, readonly=True)
    with raxlog.open(path) as store:
        assert store.last_end.how == "clean"


def test_the_clock_is_not_moved_once_another_process_has_opened_a_store(raxlog_store: raxlog.Store,
                                                                       raxlog_clock: Clock) -> None:
    before = raxlog_clock.now()
    refused = pytest.raises(raxlog.StoreError, match="open in another process")
    with open_elsewhere(raxlog_store.path, readonly=True), refused:
        raxlog_clock.advance(1)
    assert raxlog_clock.now() == before
    raxlog_clock.advance(1)


def test_processes_are_refused(raxlog_store: raxlog.Store) -> None:
    group = raxlog_store.stream("q").create_group("g", create_stream=True)
    made_before = group.worker(print, processes=2)
    with clock():
        with pytest.raises(raxlog.InvalidArgument, match="processes="):
            group.worker(print, processes=2)
        with pytest.raises(raxlog.InvalidArgument, match="processes="):
            made_before.run(burst=True)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e12, True, "60", None])
def test_a_wrong_step_is_refused_and_moves_nothing(seconds: float, raxlog_clock: Clock) -> None:
    before = raxlog_clock.now()
    with pytest.raises(raxlog.InvalidArgument, match="advance"):
        raxlog_clock.advance(seconds)
    assert raxlog_clock.now() == before


def test_there_is_one_clock_at_a_time_and_none_behind_its_block() -> None:
    with clock() as held:
        with pytest.raises(raxlog.RaxlogError, match="held already"), clock():
            pass
        held.advance(1)
    with pytest.raises(raxlog.InvalidArgument, match="within the"):
        held.advance(1)
