"""One entry ends no worker: whatever its handler raises or returns, it has failed, and the others are run."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import forkserver
import pytest
import raxlog
import raxlog.aio
from cli_runs import CLI
from raxlog import Discard, Retry, Snooze, TimeLimit
from raxlog.storage.format.keys import MAX_NAME
from raxlog.tools.aio.worker import Awaited

SOON = 10.0


def refuse(*_: object) -> NoReturn:
    raise RuntimeError("no text")


class NoText(Exception):
    __str__ = refuse


class ExitsAsText(Exception):
    __str__ = sys.exit


class NoClass(Exception):
    @property
    def __class__(self) -> Any:
        refuse()


class RetryWithoutInit(Retry):
    def __init__(self) -> None: ...


class SnoozeWithoutInit(Snooze):
    def __init__(self) -> None: ...


class DiscardWithoutText(Discard):
    __str__ = refuse

    def __init__(self) -> None: ...


class RetryWithProperty(Retry):
    after = property(refuse)  # type: ignore[assignment]

    def __init__(self) -> None: ...


class SnoozeForNoTime(Snooze):
    def __init__(self) -> None:
        self.seconds = "soon"  # type: ignore[assignment]


class OwnedByNone(raxlog.NotOwner):
    ids = property(refuse)  # type: ignore[assignment]

    def __init__(self) -> None: ...


class NoTypeName(type):
    __name__ = property(refuse)  # type: ignore[assignment]


class Nameless(Exception, metaclass=NoTypeName): ...


class NoNotes(Exception):
    __notes__ = property(refuse)


class EndsAll(BaseException): ...


class NoAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt(name)


def cycle() -> Exception:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def in_bad_source(path: Path) -> None:
    """Raise from a file whose text cannot be decoded."""
    file = path / "bad.py"
    file.write_bytes(b"# coding: no-such-codec\nraise ValueError('\xff\xfe')\n")
    exec(compile("raise ValueError('bad source')", str(file), "exec"))


def recurse() -> None:
    recurse()


def raising(error: Callable[[], BaseException]) -> Callable[[Path], None]:
    def act(_: Path) -> None:
        raise error()

    return act


RAISED: dict[str, Callable[[Path], None]] = {
    **{kind.__name__: raising(kind) for kind in (
        NoText, ExitsAsText, NoClass, RetryWithoutInit, SnoozeWithoutInit, RetryWithProperty, SnoozeForNoTime,
        OwnedByNone, NoNotes, NoAttributes, EndsAll, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError,
        StopIteration)},
    "a type without a name": raising(Nameless),
    "a type of an odd name": raising(type("odd\n\x1b[2J" * 3, (Exception,), {})),
    "surrogates": raising(lambda: ValueError("\udcff \ud800")),
    "a text of a megabyte": raising(lambda: ValueError("x" * (1 << 20))),
    "a cycle": raising(cycle),
    "a source that cannot be read": in_bad_source,
    "recursion": lambda _: recurse(),
}


@pytest.fixture
def group(store: raxlog.Store) -> raxlog.Group:
    return store.stream("jobs").create_group("mail", start="0", create_stream=True)


@pytest.fixture(params=["plain", "transaction", "coroutine", "coroutine of another thread"])
def run(request: pytest.FixtureRequest, store: raxlog.Store) -> Callable[..., raxlog.Counts]:
    """Run a function for each entry until nothing is left to read; the worker's counts."""
    def run(handle: Callable[[raxlog.Entry], object], **options: Any) -> raxlog.Counts:
        async def awaited(entry: raxlog.Entry) -> object:
            return handle(entry)

        async def program() -> raxlog.Counts:
            async with raxlog.aio.open(store.path) as opened:
                worker = opened.stream("jobs").group("mail").worker(awaited, **options)
                await worker.run(burst=True)
                return worker.counts

        if request.param == "coroutine":
            return asyncio.run(program())
        group = store.stream("jobs").group("mail")
        if request.param == "transaction":
            worker = group.worker(lambda entry, tx: handle(entry), transaction=True, **options)
        elif request.param == "plain":
            worker = group.worker(handle, **options)
        else:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever)
            thread.start()
            worker = group.worker(Awaited(awaited, False, loop), **options)
        worker.run(burst=True)
        if request.param == "coroutine of another thread":
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
        return worker.counts

    return run


def is_first(entry: raxlog.Entry) -> bool:
    return entry.fields["n"] == "0"


@pytest.mark.parametrize("what", RAISED)
def test_whatever_a_handler_raises_its_entry_has_failed_and_the_others_are_run(
    store: raxlog.Store, group: raxlog.Group, run: Callable[..., raxlog.Counts], what: str, tmp_path: Path
) -> None:
    first, *_ = store.stream("jobs").extend([{"n": n} for n in range(3)])

    def handle(entry: raxlog.Entry) -> None:
        if is_first(entry):
            RAISED[what](tmp_path)

    assert run(handle, retry=0, max_deliveries=2, result_ttl=60) == raxlog.Counts(done=2, failed=2, dead=1)
    (letter,) = group.dead_letters
    assert (letter.origin, letter.reason, letter.deliveries) == (first, "failed", 2)
    assert len(letter.error) <= 4000
    assert group.wait_result(first, 0) == raxlog.Result(None, letter.error, "dead")
    assert group.pending().total == 0


def test_a_discard_without_a_text_is_a_dead_letter_at_once(
    store: raxlog.Store, group: raxlog.Group, run: Callable[..., raxlog.Counts]
) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(3)])

    def handle(entry: raxlog.Entry) -> None:
        if is_first(entry):
            raise DiscardWithoutText

    assert run(handle) == raxlog.Counts(done=2, failed=1, dead=1)
    assert [letter.reason for letter in group.dead_letters] == ["discarded"]


class NoRepr:
    __repr__ = refuse


class NoItems(dict[Any, Any]):
    items = refuse  # type: ignore[assignment]


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(3000):
        found = [found]
    return found


RETURNED: dict[str, Callable[[], object]] = {
    "without repr": NoRepr, "deep": deep, "a tuple as a key": lambda: {(1, 2): 3},
    "a key within a key": lambda: [{((1,), 2): 3}], "a dict of its own": lambda: NoItems(a=1),
    "a surrogate": lambda: {"\ud800": 1}, "too large a number": lambda: 1 << 64,
}


@pytest.mark.parametrize("what", RETURNED)
def test_a_result_that_cannot_be_kept_or_not_be_read_back_is_an_error_that_says_so(
    store: raxlog.Store, group: raxlog.Group, run: Callable[..., raxlog.Counts], what: str
) -> None:
    ids = store.stream("jobs").extend([{"n": n} for n in range(3)])
    made = run(lambda entry: RETURNED[what]() if is_first(entry) else "kept", result_ttl=60)
    assert made == raxlog.Counts(done=3)
    results = [group.wait_result(sid, SOON) for sid in ids]
    assert results[1:] == [raxlog.Result("kept")] * 2
    assert (results[0].status, results[0].value) == ("error", None)
    assert "cannot be kept as a result" in str(results[0].error)
    group.keep_results({"9-9": raxlog.Result(RETURNED[what]())}, 60)
    assert group.wait_result("9-9", 0) == results[0]


def test_a_result_is_what_the_handler_returned_though_it_changes_that_later(
    store: raxlog.Store, group: raxlog.Group, run: Callable[..., raxlog.Counts]
) -> None:
    ids = store.stream("jobs").extend([{"n": n} for n in range(3)])
    shared: list[object] = []

    def handle(entry: raxlog.Entry) -> list[object]:
        shared.append(object() if entry.id == ids[2] else int(entry.fields["n"]))
        return shared

    run(handle, result_ttl=60)
    assert [group.wait_result(sid, 0).value for sid in ids] == [[0], [0, 1], None]


@pytest.mark.parametrize("shared", [False, True])
def test_a_result_for_which_the_store_has_no_room_is_an_error_and_the_worker_goes_on(path: Path, shared: bool) -> None:
    with raxlog.open(path, max_map_size=16 << 20) as store:
        group = store.stream("jobs").create_group("mail", start="0", create_stream=True)
        ids = store.stream("jobs").extend([{"n": n} for n in range(40)])
        worker = group.worker(lambda entry: os.urandom(20 << 20) if entry.id == ids[20 * shared] else "kept",
                              result_ttl=60)
        threading.Timer(SOON, worker.stop).start()
        worker.run(burst=True)
        assert worker.counts == raxlog.Counts(done=40)
        results = [group.wait_result(sid, 0) for sid in ids]
        refused = results.pop(20 * shared)
        assert results == [raxlog.Result("kept")] * 39
        assert (refused.status, refused.value, "StoreFull" in str(refused.error)) == ("error", None, True)
        assert group.pending().total == 0


def no_room(store: raxlog.Store) -> None:
    store.stream("jobs.mail.dead").append({"$dead": "{}"}, id=f"{2**64 - 1}-{2**64 - 1}")


def schema(store: raxlog.Store) -> None:
    letters = store.stream("jobs.mail.dead")
    letters.append({"$dead": "{}"})
    letters.configure(schema={"$dead": "bigint"}, schema_checked=True)


def ordinary(store: raxlog.Store) -> None:
    store.stream("jobs.mail.dead").append({"n": 1})


@pytest.mark.parametrize("spoil", [no_room, schema, ordinary])
def test_an_entry_whose_letter_cannot_be_written_stays_pending_and_comes_again(
    store: raxlog.Store, group: raxlog.Group, run: Callable[..., raxlog.Counts], caplog: pytest.LogCaptureFixture,
    spoil: Callable[[raxlog.Store], None]
) -> None:
    first, *_ = store.stream("jobs").extend([{"n": n} for n in range(3)])
    spoil(store)

    def handle(entry: raxlog.Entry) -> None:
        if is_first(entry):
            raise ValueError

    assert run(handle, retry=0, max_deliveries=2, result_ttl=60) == raxlog.Counts(done=2, failed=2)
    assert [(one.id, one.deliveries) for one in group.pending_entries("-")] == [(first, 2)]
    assert f"{first} stays pending" in caplog.text
    store.delete_stream("jobs.mail.dead")
    deadline = time.monotonic() + SOON
    while group.pending().total:
        time.sleep(0.05)  # it comes again after a while
        run(handle, max_deliveries=2)
        assert time.monotonic() < deadline
    assert [(letter.origin, letter.reason) for letter in group.dead_letters] == [(first, "exhausted")]


@pytest.mark.parametrize(("stream", "name"), [
    ("jobs", "g" * 500), ("jobs", "g" * 60_000), ("s" * MAX_NAME, "g"), ("j" * 300, "g" * 300)])
def test_a_name_too_long_for_dead_letters_or_results_is_cut_off(
    store: raxlog.Store, stream: bytes, name: bytes
) -> None:
    group = store.stream(stream).create_group(name, "0", create_stream=True)
    other = store.stream(stream).create_group(name[:-1] + "h", "0")
    ids = store.stream(stream).extend([{"n": n} for n in range(3)])

    def handle(entry: raxlog.Entry) -> int:
        if is_first(entry):
            raise ValueError("no")
        return 5

    worker = group.worker(handle, max_deliveries=1, result_ttl=60)
    worker.run(burst=True)
    assert worker.counts == raxlog.Counts(done=2, failed=1, dead=1)
    assert [letter.origin for letter in group.dead_letters] == ids[:1]
    assert [group.wait_result(sid, 0) for sid in ids] == [
        raxlog.Result(None, "ValueError: no", "dead"), raxlog.Result(5), raxlog.Result(5)]
    assert other.wait_result(ids[1], 0).status == "timeout"
    assert len(other.dead_letters) == 0
    assert raxlog.check(store.path).ok


@pytest.mark.parametrize("retry", [
    refuse, lambda _: "soon", lambda _: None, lambda _: -1, lambda _: float("nan"), lambda _: sys.exit(1),
    lambda _: NoRepr(), lambda _: 1e300])
def test_a_function_of_delays_that_raises_or_returns_no_delay_leaves_the_usual_one(
    store: raxlog.Store, group: raxlog.Group, retry: Callable[[int], Any]
) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(3)])

    def handle(entry: raxlog.Entry) -> None:
        if is_first(entry):
            raise ValueError

    worker = group.worker(handle, retry=retry)
    worker.run(burst=True)
    assert worker.counts == raxlog.Counts(done=2, failed=1)
    assert [one.deliveries for one in group.pending_entries("-")] == [1]


@pytest.fixture(params=[RuntimeError, SystemExit, KeyboardInterrupt])
def broken_logging(request: pytest.FixtureRequest) -> Iterator[None]:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            is_main = threading.current_thread() is threading.main_thread()  # where it would be a signal's
            raise (RuntimeError if is_main else request.param)("logging is broken")

    log, handler = logging.getLogger("raxlog"), Broken()
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@pytest.mark.usefixtures("broken_logging")
def test_a_logging_handler_that_raises_changes_nothing(
    store: raxlog.Store, group: raxlog.Group, run: Callable[..., raxlog.Counts]
) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(3)])

    def handle(entry: raxlog.Entry) -> None:
        if is_first(entry):
            raise ValueError

    assert run(handle, retry=lambda _: 0, max_deliveries=2) == raxlog.Counts(done=2, failed=2, dead=1)


@pytest.mark.usefixtures("broken_logging")
def test_processes_are_begun_anew_though_logging_raises(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(3)])

    def handle(entry: raxlog.Entry) -> None:
        if is_first(entry) and entry.deliveries == 1:
            os._exit(3)

    worker = group.worker(handle, processes=1, lease=0.2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    deadline = time.monotonic() + SOON
    while group.lag or group.pending().total:
        assert time.monotonic() < deadline
        assert thread.is_alive()
        time.sleep(0.01)
    worker.stop()
    thread.join(SOON)
    assert not thread.is_alive()


def test_the_beat_goes_on_where_the_letter_of_a_handler_that_hangs_is_refused(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    schema(store)
    store.stream("jobs").extend([{"n": n} for n in range(2)])
    limited = threading.Event()

    def handle(entry: raxlog.Entry) -> None:
        if is_first(entry):
            time.sleep(4)  # no exception reaches it
        try:
            while True:
                time.sleep(0.01)
        except TimeLimit:
            limited.set()
            raise

    worker = group.worker(handle, max_deliveries=1, timeout=0.1, drain=0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert limited.wait(SOON)
    worker.stop()
    thread.join(SOON)
    assert not thread.is_alive()


def test_a_coroutine_that_stops_the_loop_or_ends_it_does_not_end_the_command(
    store: raxlog.Store, group: raxlog.Group, tmp_path: Path
) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(4)])
    store.close()
    (tmp_path / "shop.py").write_text(
        "import asyncio, sys\nasync def handle(entry):\n    n = int(entry.fields['n'])\n    if n < 2:\n"
        "        loop = asyncio.get_running_loop()\n        loop.call_soon(sys.exit if n else loop.stop)\n"
        "        await asyncio.sleep(0.01)\n")
    command = [*CLI, "worker", "shop:handle", store.path, "jobs", "mail", "--burst"]
    forkserver.run(command, cwd=tmp_path, check=True, timeout=SOON)
    with raxlog.open(store.path) as opened:
        left = opened.stream("jobs").group("mail")
        assert (left.lag, left.pending().total) == (0, 0)


def test_a_handler_that_takes_too_long_is_told_how_long_it_had(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").append({"n": 0})

    def handle(entry: raxlog.Entry) -> None:
        while True:
            time.sleep(0.01)

    group.worker(handle, max_deliveries=1, timeout=0.25).run(burst=True)
    (letter,) = group.dead_letters
    assert letter.error.startswith("TimeLimit: the handler ran for 0.")
    assert "timeout=0.25" in letter.error


def test_a_pause_until_a_time_without_a_zone_is_refused_and_says_what_to_give(group: raxlog.Group) -> None:
    for wrong in (datetime(2030, 1, 1), "2030-01-01", 5, "5-0"):
        with pytest.raises(raxlog.InvalidArgument, match=r"until=.* must be a datetime with a time zone"):
            group.pause(wrong)  # type: ignore[arg-type]
    assert not group.paused
    group.pause(datetime(2130, 1, 1, tzinfo=UTC))
    assert group.paused
