"""store.state: what a dict's methods do, each in one commit, for one caller only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
from counting import commits_of
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog import InvalidArgument
from raxlog.storage.format import records

NAMES = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.binary(max_size=3)
CALLS = st.one_of(
    st.tuples(st.just("pop"), NAMES), st.tuples(st.just("pop"), NAMES, st.none() | VALUES),
    st.tuples(st.just("popitem")), st.tuples(st.just("setdefault"), NAMES, VALUES), st.tuples(st.just("clear")),
    st.tuples(st.just("update"), st.dictionaries(NAMES, VALUES)),
    st.tuples(st.just("update"), st.lists(st.tuples(NAMES, VALUES), max_size=4)),
    st.tuples(st.just("__delitem__"), NAMES), st.tuples(st.just("__setitem__"), NAMES, VALUES),
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[raxlog.Store]:
    with raxlog.open(tmp_path / "s") as store:
        yield store


class InOrder(dict[bytes, bytes]):
    """A dict that gives its first key first."""

    def popitem(self) -> tuple[bytes, bytes]:
        if not self:
            raise KeyError
        return (first := min(self)), self.pop(first)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except KeyError:
        return KeyError


@settings(deadline=None, max_examples=examples(60))
@given(calls=st.lists(CALLS, max_size=12), together=st.booleans(), text=st.booleans())
def test_the_calls_of_a_dict_do_what_they_do_in_one(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[Any, ...]], together: bool, text: bool
) -> None:
    model = InOrder()

    def shown(key: bytes) -> str | bytes:
        return key.decode("utf-8", "surrogateescape") if text else key

    def items() -> list[tuple[str | bytes, bytes]]:
        return [(shown(key), value) for key, value in sorted(model.items())]

    encoding = "utf-8" if text else None
    with raxlog.open(tmp_path_factory.mktemp("s") / "s", durability="relaxed", encoding=encoding) as store:

        def all_calls(state: Any) -> None:
            for name, *arguments in calls:
                done = [outcome(lambda of=of: getattr(of, name)(*arguments)) for of in (state, model)]  # noqa: B023
                assert done[0] == ((shown(done[1][0]), done[1][1]) if type(done[1]) is tuple else done[1])
                assert (dict(state.items()), len(state)) == (dict(items()), len(model))
                assert [*state] == state.between(b"") == [key for key, _ in items()]
                assert all(key in state for key, _ in items())  # what came out goes in

        if together:
            with store.transaction() as tx:
                all_calls(tx.state)
        else:
            all_calls(store.state)
        assert (list(store.state.items()), len(store.state)) == (items(), len(model))


def at_once(call: Callable[[int], Any]) -> list[Any]:
    """What four threads get that call it at the same time."""
    got: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: got.append(outcome(lambda: call(n)))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_a_value_is_popped_by_one_of_many_threads(store: raxlog.Store) -> None:
    for number in range(20):
        value = b"%d" % number
        store.state["job"] = value
        assert sorted(at_once(lambda _: store.state.pop("job", b""))) == [b"", b"", b"", value]
        store.state["job"] = value
        popped = at_once(lambda _: store.state.popitem())
        assert (popped.count(("job", value)), popped.count(KeyError)) == (1, 3)


def test_one_of_many_threads_sets_a_default(store: raxlog.Store) -> None:
    for number in range(20):
        key = str(number)
        got = at_once(lambda thread, key=key: store.state.setdefault(key, str(thread)))
        assert got == [store.state[key]] * 4


def test_many_keys_are_set_and_cleared_in_one_commit(store: raxlog.Store) -> None:
    seen: set[int] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.add(len(store.state))

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(20):
        store.state.update({b"%d" % number: b"" for number in range(99)}, last="")
        assert len(store.state) == 100
        store.state.clear()
        assert len(store.state) == 0
    over.set()
    looking.join()
    assert seen <= {0, 100}


def test_a_long_state_is_cleared_in_pieces_between_which_others_write(store: raxlog.Store) -> None:
    store.state.update({b"%05d" % number: b"" for number in range(25_000)})
    before = commits_of(store)
    store.state.clear()
    assert commits_of(store) - before == 3
    assert (len(store.state), list(store.state)) == (0, [])
    store.state.clear()
    assert commits_of(store) - before == 3
    store.state.update({b"%05d" % number: b"" for number in range(25_000)})

    def clear_and_fail() -> None:
        with store.transaction() as tx:
            tx.state.clear()
            raise KeyError(len(tx.state))

    with pytest.raises(KeyError, match="0"):
        clear_and_fail()
    assert len(store.state) == len(list(store.state)) == 25_000


def test_an_update_of_many_keys_reads_the_count_of_keys_once(store: raxlog.Store, monkeypatch: Any) -> None:
    """Each reading of it is one of the store's record, and writing one of that."""
    unsealed: list[bytes] = []
    real = records.unseal
    monkeypatch.setattr(records, "unseal", lambda key, value: unsealed.append(key) or real(key, value))
    store.state.update({b"%05d" % number: b"" for number in range(3_000)})
    store.state.clear()
    assert len(unsealed) < 10


def test_an_update_with_one_bad_value_sets_none(store: raxlog.Store) -> None:
    store.state["a"] = b"0"
    for bad in ({"a": b"1", "b" * 503: b""}, {"a": b"1", "b": None}, {"a": b"1", "b": bytes((1 << 24) + 1)}):
        with pytest.raises(InvalidArgument):
            store.state.update(bad)
    with pytest.raises(InvalidArgument):
        store.state.setdefault("b", None)  # type: ignore[arg-type]
    assert dict(store.state.items()) == {"a": b"0"}
