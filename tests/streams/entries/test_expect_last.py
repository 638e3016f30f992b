"""expect_last: an append that is made only if nothing has come since; of several exactly one is."""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from raxlog import Conflict, InvalidStreamID

LONG = bool(os.environ.get("RAXLOG_LONG"))


@pytest.fixture(params=["commit", "buffered", "transaction"])
def stream(request: pytest.FixtureRequest, path: Path) -> Iterator[raxlog.Stream]:
    """A stream that is not there yet, through each kind of handle."""
    with ExitStack() as stack:
        how = request.param
        store = stack.enter_context(raxlog.open(path, durability="buffered" if how == "buffered" else "commit"))
        yield (stack.enter_context(store.transaction()) if how == "transaction" else store).stream("s")


def test_it_appends_where_the_last_id_is_the_expected_one(stream: raxlog.Stream) -> None:
    first = stream.append({"n": 1}, expect_last="0-0")  # none yet
    second = stream.append({"n": 2}, expect_last=first)
    more = stream.extend([{"n": 3}, {"n": 4}], expect_last=str(second))
    last = stream.append({"n": 5}, maxlen=2, expect_last=more[-1])
    assert [entry.id for entry in stream] == [more[-1], last]


def test_a_conflict_names_the_last_id_and_changes_nothing(stream: raxlog.Stream) -> None:
    for call in (lambda: stream.append({"n": 1}, expect_last="5-0"),
                 lambda: stream.append({"n": 1}, expect_last="5-0", create=False),
                 lambda: stream.extend([{"n": 1}], expect_last="5-0")):
        with pytest.raises(Conflict, match="0-0") as caught:
            call()
        assert caught.value.last_id == raxlog.StreamID.MIN
        assert not stream.exists()
    assert stream.append({"n": 1}, expect_last=0, create=False) is None
    last = stream.append({"n": 1})
    for expected in ("0-0", "5", last.next()):
        with pytest.raises(Conflict, match=str(last)) as caught:
            stream.append({"n": 2}, expect_last=expected)
        assert caught.value.last_id == last
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.last_id) == (str(caught.value), last)
        with pytest.raises(Conflict):
            stream.extend([{"n": 2}, {"n": 3}], expect_last=expected)
    assert [entry.id for entry in stream] == [last]
    assert issubclass(Conflict, raxlog.StreamError)


def test_a_deleted_entry_is_still_the_last(stream: raxlog.Stream) -> None:
    last = stream.append({"n": 1})
    stream.delete(last)
    with pytest.raises(Conflict):
        stream.append({"n": 2}, expect_last="0-0")
    assert stream.append({"n": 2}, expect_last=last) > last


def test_an_idempotent_append_sent_again_returns_the_first_time_and_no_conflict(stream: raxlog.Stream) -> None:
    sid = stream.append({"n": 1}, producer="p", idempotent_id="1", expect_last="0-0")
    assert stream.append({"n": 1}, producer="p", idempotent_id="1", expect_last="0-0") == sid
    with pytest.raises(Conflict):
        stream.append({"n": 1}, producer="p", idempotent_id="2", expect_last="0-0")
    assert len(stream) == 1


@pytest.mark.parametrize("wrong", ["$", "*", "-", "", "a", -1, True, float("nan"), (1, 2, 3)], ids=str)
def test_what_is_no_id_is_refused(stream: raxlog.Stream, wrong: Any) -> None:
    with pytest.raises(InvalidStreamID):
        stream.append({"n": 1}, expect_last=wrong)
    with pytest.raises(InvalidStreamID):
        stream.extend([{"n": 1}], expect_last=wrong)
    assert not stream.exists()


def test_a_conflict_in_a_transaction_may_be_caught(store: raxlog.Store) -> None:
    with store.transaction() as tx:
        tx.stream("a").append({"n": 1})
        with pytest.raises(Conflict):
            tx.stream("a").append({"n": 2}, expect_last="0-0")
        tx.stream("a").append({"n": 3})
    assert len(store.stream("a")) == 2


def test_a_buffered_append_waits_and_sees_those_before_it(path: Path) -> None:
    with raxlog.open(path, durability="buffered", buffer_window=5) as store:
        stream = store.stream("s")
        last = stream.append({"n": 1})
        sid = stream.append({"n": 2}, expect_last=last)

        def read(say: Callable[[Any], None]) -> None:
            with raxlog.open(path, readonly=True) as other:
                say(other.stream("s").last_id)

        with Child(read) as child:
            assert child.finish() == [sid]


def test_of_eight_processes_one_wins_each_sequence_through_kills(path: Path) -> None:
    """Each appends the number behind the last one it has seen; no number is there twice, none is missing."""
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    chance = random.Random(seed)
    raxlog.open(path).close()

    def contend(number: int) -> Callable[[Callable[[Any], None]], None]:
        def run(say: Callable[[Any], None]) -> None:
            with raxlog.open(path, durability="buffered" if number % 4 == 0 else "commit") as store:
                stream = store.stream("s")
                while True:
                    newest = next(iter(stream.range(count=1, reverse=True)), None)
                    n, last = (0, raxlog.StreamID.MIN) if newest is None else (int(newest.fields["n"]), newest.id)
                    try:
                        say((n + 1, stream.append({"n": n + 1, "by": number}, expect_last=last)))
                    except Conflict as conflict:
                        if conflict.last_id <= last:
                            raise

        return run

    won: dict[int, Any] = {}
    with ExitStack() as stack:
        children = {number: stack.enter_context(Child(contend(number))) for number in range(8)}
        end = time.monotonic() + (60 if LONG else 2)
        kills = 0
        while time.monotonic() < end or kills <= 5 or len(won) <= 50:  # a busy machine takes longer
            time.sleep(chance.uniform(0.01, 0.15))
            number = chance.randrange(8)
            children[number].send(signal.SIGKILL)
            said = children[number].all_heard()
            children[number].wait()
            assert children[number].status == -signal.SIGKILL, "it has ended by itself"
            kills += 1
            for n, sid in said:
                assert won.setdefault(n, sid) == sid
            children[number] = stack.enter_context(Child(contend(number)))
        for child in children.values():
            child.send(signal.SIGKILL)
            for n, sid in child.all_heard():
                assert won.setdefault(n, sid) == sid
    assert raxlog.check(path).ok
    with raxlog.open(path) as store:
        stored = [(int(entry.fields["n"]), entry.id) for entry in store.stream("s")]
    assert [n for n, _ in stored] == list(range(1, len(stored) + 1))
    assert won.items() <= dict(stored).items()
    assert len(stored) > 50
    assert kills > 5
