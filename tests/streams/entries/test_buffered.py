"""durability="buffered": IDs at once, commits behind the callers, and nobody can tell but by a kill.

The same calls give the same store as with "commit"; what is read is what was appended; errors come
when they can be known. test_buffered_losses.py has commits that fail, threads, signals and processes,
test_buffered_crashes.py kills and power cuts. RAXLOG_LONG=1 makes all of them longer.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import raxlog
from buffered_workloads import committed
from children import Child
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog import StreamID
from raxlog.index.pubsub import pubsub
from raxlog.stream import stream as stream_module
from raxlog.stream.entries import write_buffer
from raxlog.stream.group import deliver as group_read_module
from raxlog.stream.group import group as group_module

Say = Callable[[Any], None]


@pytest.fixture
def store(path: Path) -> Iterator[raxlog.Store]:
    """A window that no test waits for: what is committed, a flush has committed."""
    with raxlog.open(path, durability="buffered", buffer_window=30) as opened:
        yield opened


# -- the same store in the end ---------------------------------------------------------------


class Clock:
    now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@contextmanager
def standing_clock() -> Iterator[Clock]:
    clock = Clock()
    with ExitStack() as stack:
        for module in (group_module, group_read_module, stream_module, write_buffer, pubsub):
            stack.enter_context(patch.object(module, "now_ms", clock))
        yield clock


NAMES = st.sampled_from(["s", "t", "u"])
IDS = st.one_of(
    st.just("*"), st.just("*"), st.just("0-0"), st.just("x"),
    st.integers(-3, 20).map(lambda ms: f"{Clock.now + ms}-*"),
    st.tuples(st.integers(-2, 20), st.integers(0, 3)).map(lambda pair: f"{Clock.now + pair[0]}-{pair[1]}"),
)
FIELDS = st.dictionaries(st.sampled_from(["a", "b", "item"]), st.binary(max_size=1500), min_size=1, max_size=3)
TRIMS = st.sampled_from([{}, {}, {"maxlen": 3}, {"maxlen": 5, "approximate": True}, {"limit": 4}])
CALLS = st.one_of(
    st.tuples(st.just("append"), NAMES, FIELDS, IDS, TRIMS, st.booleans()),
    st.tuples(st.just("append"), NAMES, FIELDS, st.just("*"), st.just({}), st.just(True)),
    st.tuples(st.just("append"), NAMES, FIELDS, st.just("*"), st.just({}), st.just(True)),
    st.tuples(st.just("extend"), NAMES, st.lists(FIELDS, max_size=4), st.none() | st.lists(IDS, max_size=4), TRIMS),
    st.tuples(st.just("sent twice"), NAMES, FIELDS),
    st.tuples(st.just("delete"), NAMES, st.integers(0, 5)),
    st.tuples(st.just("trim"), NAMES, st.integers(0, 4)),
    st.tuples(st.just("set_id"), NAMES, st.integers(0, 30)),
    st.tuples(st.just("read"), NAMES),
    st.tuples(st.just("ack"), NAMES),
    st.tuples(st.just("transaction"), NAMES, FIELDS),
    st.tuples(st.just("drop"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("publish"), FIELDS),
    st.tuples(st.just("look"), NAMES),
    st.tuples(st.just("flush")),
    st.tuples(st.just("clock"), st.integers(-2, 5)),
)


def do(store: raxlog.Store, what: str, *how: Any) -> Any:
    """One call; what it gives, or the kind of error it raises."""
    try:
        return _do(store, what, *how)
    except raxlog.RaxlogError as error:
        return type(error), str(error).replace(str(store.path), "")


def _do(store: raxlog.Store, what: str, *how: Any) -> Any:
    if what == "flush":
        return store.flush()
    if what == "publish":
        return store.publish("orders.new", how[0]).ids
    stream = store.stream(how[0], node_max_entries=5)
    if what == "append":
        return stream.append(how[1], id=how[2], create=how[4], **how[3])
    if what == "extend":
        return stream.extend(how[1], ids=how[2], **how[3])
    if what == "sent twice":
        return [stream.append(how[1], producer="p"), stream.append(how[1], producer="p")]
    if what == "delete":
        return stream.delete(*[entry.id for entry in list(stream.range())[how[1]:how[1] + 1]])
    if what == "trim":
        return stream.trim(maxlen=how[1])
    if what == "set_id":
        return stream.set_id(f"{Clock.now + how[1]}-0")
    if what == "read":
        stream.create_group("g", "0", exist_ok=True)
        return stream.group("g").read("c", count=3)
    if what == "ack":
        return stream.group("g").ack(*[row.id for row in stream.group("g").pending_entries("-", "+", 2)])
    if what == "transaction":
        with store.transaction() as tx:
            tx.state["last"] = "x"
            return [tx.stream(how[0]).append(how[1]), len(tx.stream(how[0]))]
    if what == "drop":
        return store.delete_stream(how[0])
    if what == "rename":
        return store.rename_stream(how[0], how[1])
    return len(stream), stream.last_id, stream.count(), [entry.pairs for entry in stream.range()]


def contents(store: raxlog.Store) -> list[Any]:
    told: list[Any] = [store.streams(), dict(store.state)]
    for name in store.streams():
        stream = store.stream(name)
        told += [stream.info(), list(stream.nodes()), stream.groups()]
    return told


@settings(max_examples=examples(60, 400))
@given(st.lists(CALLS, max_size=40))
def test_the_same_calls_give_the_same_answers_and_the_same_store_as_with_commits(
    calls: list[tuple[Any, ...]]
) -> None:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        _same(Path(name), calls)


def _same(folder: Path, calls: list[tuple[Any, ...]]) -> None:
    with standing_clock() as clock, raxlog.open(folder / "a.rax") as one, \
            raxlog.open(folder / "b.rax", durability="buffered", buffer_window=20) as other:
        for each in (one, other):
            each.bind("orders.>", stream="s")
        for call in calls:
            if call[0] == "clock":
                clock.now += call[1]
            else:
                assert do(one, *call) == do(other, *call), call
        other.flush()
        assert contents(one) == contents(other)
    with raxlog.open(folder / "a.rax") as one, raxlog.open(folder / "b.rax") as other:
        assert contents(one) == contents(other)


# -- what a caller sees ----------------------------------------------------------------------


def test_appends_are_there_for_their_own_process_before_they_are_for_others(store: raxlog.Store, path: Path) -> None:
    stream = store.stream("s")
    ids = [stream.append({"n": n}) for n in range(100)]
    ids += stream.extend([{"n": 100}, {"n": 101}])
    assert committed(path) == []
    assert [entry.id for entry in stream.range()] == ids
    assert committed(path) == ids


@pytest.mark.parametrize("look", [
    lambda s: len(s.stream("s")) == 1, lambda s: s.stream("s").info().length == 1, lambda s: s.streams() == ["s"],
    lambda s: s.stream("s").exists(), lambda s: s.stream("s").count() == 1, lambda s: s.stream("s").last_id.ms > 0,
    lambda s: len(s.read({"s": "0"})[("s")]) == 1, lambda s: s.stream("s").create_group("g", "0").lag == 1,
    lambda s: s.delete_stream("s"), lambda s: s.stream("s").trim(maxlen=0) == 1,
    lambda s: raxlog.check(s.path).counts["records"] > 4,
], ids=range(11))  # fmt: skip
def test_whatever_is_called_next_sees_the_append(store: raxlog.Store, look: Callable[[raxlog.Store], bool]) -> None:
    store.stream("s").append({"n": 1})
    assert look(store)


def test_a_transaction_sees_the_appends_before_it_and_refuses_those_beside_it(store: raxlog.Store) -> None:
    stream = store.stream("s")
    sid = stream.append({"n": 1})
    with store.transaction() as tx:
        assert tx.stream("s").last_id == sid
        with pytest.raises(raxlog.TransactionError):
            stream.append({"n": 2})
        tx.stream("s").append({"n": 2})
    assert stream.append({"n": 3}) > stream.last_id or len(stream) == 3


def test_a_snapshot_and_a_compaction_hold_what_was_appended_before(store: raxlog.Store, tmp_path: Path) -> None:
    stream = store.stream("s")
    stream.append({"n": 1})
    store.snapshot(tmp_path / "snapshot")
    stream.append({"n": 2})
    store.compact()
    stream.append({"n": 3})
    assert len(stream) == 3
    with raxlog.open(tmp_path / "snapshot", readonly=True) as copy:
        assert len(copy.stream("s")) == 1


def test_what_nobody_flushes_is_committed_all_the_same(path: Path) -> None:
    with raxlog.open(path, durability="buffered") as store:
        sid = store.stream("s").append({"n": 1})
        deadline = time.monotonic() + 20
        while committed(path) != [sid]:
            assert time.monotonic() < deadline, "nobody commits"


def test_a_buffer_that_is_full_is_committed_and_goes_on(store: raxlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_buffer, "MOST_ENTRIES", 50)
    monkeypatch.setattr(write_buffer, "MOST_BYTES", 3000)
    stream = store.stream("s")
    for n in range(40):
        stream.append({"n": n, "x": "x" * (n % 7 * 100)})
    stream.extend([{"n": n} for n in range(40, 160)])
    stream.append({"n": 160, "x": "x" * 5000})
    stream.append({"n": 161})
    assert [int(entry.fields["n"]) for entry in stream.range()] == list(range(162))


def test_errors_that_can_be_known_are_raised_at_once_and_change_nothing(store: raxlog.Store) -> None:
    stream = store.stream("s")
    last = stream.append({"n": 1}, id="5-5")
    for error, call in (
        (raxlog.IDTooSmall, lambda: stream.append({"n": 2}, id="5-5")),
        (raxlog.IDTooSmall, lambda: stream.append({"n": 2}, id="4-*")),
        (raxlog.IDTooSmall, lambda: stream.append({"n": 2}, id="0-0")),
        (raxlog.IDTooSmall, lambda: stream.extend([{"n": 2}, {"n": 3}], ids=["6-0", "6-0"])),
        (raxlog.InvalidStreamID, lambda: stream.append({"n": 2}, id="so")),
        (raxlog.InvalidFields, lambda: stream.append({})),
        (raxlog.InvalidFields, lambda: stream.append({"n": object()})),
        (raxlog.InvalidArgument, lambda: stream.append({"n": 2}, maxlen=-1)),
        (raxlog.InvalidArgument, lambda: stream.append({"n": 2}, refs="perhaps")),
        (raxlog.InvalidName, lambda: store.stream("x" * 503)),
        (raxlog.StreamExhausted, lambda: store.stream("end").append({"n": 1})),
    ):  # fmt: skip
        if error is raxlog.StreamExhausted:
            store.stream("end").append({"n": 0}, id=StreamID.MAX)
        with pytest.raises(error):
            call()
    assert store.stream("none").append({"n": 1}, create=False) is None
    assert [entry.id for entry in stream.range()] == [last]
    assert store.streams() == ["end", "s"]


def test_a_closed_handle_a_read_only_store_and_other_settings_are_refused(path: Path) -> None:
    with raxlog.open(path, durability="buffered") as store:
        stream = store.stream("s")
        other = raxlog.open(path, durability="buffered")
        handle = other.stream("s")
        stream.append({"n": 1})
        other.close()
        with pytest.raises(raxlog.StoreClosed):
            handle.append({"n": 2})
        for options in ({}, {"durability": "relaxed"}, {"durability": "buffered", "buffer_window": 0.01}):
            with pytest.raises(raxlog.SettingsConflict):
                raxlog.open(path, **options)
    with pytest.raises(raxlog.StoreClosed):
        stream.append({"n": 2})
    with raxlog.open(path, durability="buffered", readonly=True) as store:
        assert len(store.stream("s")) == 1
        with pytest.raises(raxlog.ReadOnlyStore):
            store.stream("s").append({"n": 2})


@pytest.mark.parametrize("window", [0, -1, None, "5", True, float("nan"), 61])
def test_a_window_that_is_none_is_refused(path: Path, window: Any) -> None:
    with pytest.raises(raxlog.InvalidArgument, match="buffer_window"):
        raxlog.open(path, durability="buffered", buffer_window=window)
    assert not path.exists()


def test_a_reader_that_sleeps_is_woken_by_the_commit(path: Path) -> None:
    def append(say: Say) -> None:
        with raxlog.open(path, durability="buffered") as store:
            say("open")
            time.sleep(0.2)
            store.stream("s").append({"n": 1})
            time.sleep(60)

    raxlog.open(path).close()
    with Child(append) as child, raxlog.open(path, durability="buffered") as store:
        child.heard()
        group = store.stream("s").create_group("g", "0", create_stream=True)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(group.read("mine", timeout=30)))
        thread.start()
        thread.join(30)
        assert [entry.fields for entry in found] == [{"n": "1"}]
        thread = threading.Thread(target=lambda: found.extend(group.read("mine", timeout=30)))
        thread.start()
        time.sleep(0.1)
        store.stream("s").append({"n": 2})  # by another thread of the reader's own process
        thread.join(30)
        assert [entry.fields for entry in found] == [{"n": "1"}, {"n": "2"}]
