"""IDs of a call: as arguments, or as one iterable of any kind; an empty one does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import raxlog
import raxlog.aio

KINDS: dict[str, Callable[[list[Any]], Iterable[Any]]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict.fromkeys,
    "keys": lambda ids: dict.fromkeys(ids).keys(),
    "iterator": iter,
    "generator": lambda ids: (sid for sid in ids),
    "map": lambda ids: map(str, ids),
    "str": lambda ids: [str(sid) for sid in ids],
    "bytes": lambda ids: [str(sid).encode() for sid in ids],
    "datetimes": lambda ids: [datetime.fromtimestamp(sid.ms / 1000, UTC) for sid in ids],
    "milliseconds": lambda ids: [sid.ms for sid in ids],
}
CALLS: dict[str, Callable[..., Any]] = {  # each with one of four pending entries left out
    "ack": lambda at, *ids: at.group.ack(*ids),
    "ack of a consumer": lambda at, *ids: at.group.ack(*ids, consumer="a"),
    "nack": lambda at, *ids: at.group.nack(*ids),
    "nack of a consumer": lambda at, *ids: at.group.nack(*ids, consumer="a"),
    "ack_delete": lambda at, *ids: len([one for one in at.group.ack_delete(*ids) if one.name == "DELETED"]),
    "renew": lambda at, *ids: 3 - len(at.group.renew("a", *ids)),
    "claim": lambda at, *ids: len(at.group.claim("b", *ids)),
    "claim_ids": lambda at, *ids: len(at.group.claim_ids("b", *ids)),
    "delete": lambda at, *ids: at.stream.delete(*ids),
    "delete_ex": lambda at, *ids: len([one for one in at.stream.delete_ex(*ids) if one.name == "DELETED"]),
}
EMPTY = [[], (), set(), iter(()), {}]


class At:
    """A group with four entries pending with consumer a, and where its calls go: to the store, or into something."""

    def __init__(self, stream: Any, group: Any) -> None:
        self.stream = stream
        self.group = group


@pytest.fixture
def ids(store: raxlog.Store) -> list[raxlog.StreamID]:
    stream = store.stream("orders")
    made = stream.extend([{"n": n} for n in range(4)], ids=[(1 + n) * 1000 for n in range(4)])
    stream.create_group("g").read("a")
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
def test_ids_are_arguments_or_one_iterable(store: raxlog.Store, ids: list[Any], call: str, kind: str) -> None:
    at = At(store.stream("orders"), store.stream("orders").group("g"))
    assert CALLS[call](at, KINDS[kind](ids[:3])) == 3
    assert len(at.stream) + len(at.group.pending_entries()) > 0  # one was left out
    assert CALLS[call](at, ids[3]) == (3 if call == "renew" else 1)


@pytest.mark.parametrize("call", CALLS)
def test_a_transaction_and_a_pipeline_take_them_too(store: raxlog.Store, ids: list[Any], call: str) -> None:
    with store.transaction() as tx:
        at = At(tx.stream("orders"), tx.group("orders", "g"))
        assert CALLS[call](at, (sid for sid in ids[:3])) == 3
    name = call.split(maxsplit=1)[0]
    with store.pipeline() as pipe:
        consumer = ["a"] if name in ("renew", "claim", "claim_ids") else []
        queue = pipe.stream("orders") if name.startswith("delete") else pipe.group("orders", "g")
        getattr(queue, name)(*consumer, (sid for sid in ids[3:]))
        [result] = pipe.execute()
    assert result in (1, [], [raxlog.DeleteResult.DELETED], [ids[3]]) or result[0].id == ids[3]


@pytest.mark.parametrize("call", CALLS)
def test_tasks_give_them_too(store: raxlog.Store, ids: list[Any], call: str, tmp_path: Path) -> None:
    name = call.split(maxsplit=1)[0]

    async def program() -> None:
        async with raxlog.aio.open(store.path) as opened:
            stream = opened.stream("orders")
            handle = stream if name.startswith("delete") else stream.group("g")
            consumer = ["a"] if name in ("renew", "claim", "claim_ids") else []
            result = await getattr(handle, name)(*consumer, (sid for sid in ids[:3]))
            assert result == 3 or len(result) == (0 if name == "renew" else 3)
            assert not await getattr(handle, name)(*consumer, [])

    asyncio.run(program())


@pytest.mark.parametrize("empty", EMPTY, ids=lambda empty: type(empty).__name__)
@pytest.mark.parametrize("call", CALLS)
def test_an_empty_iterable_does_nothing(store: raxlog.Store, ids: list[Any], call: str, empty: Any) -> None:
    at = At(store.stream("orders"), store.stream("orders").group("g"))
    before = store.status().commit
    assert CALLS[call](at, empty) == (3 if call == "renew" else 0)
    assert store.status().commit == before
    assert at.group.pending().consumers == {"a": 4}
    assert [one.name for one in at.group.consumers()] == ["a"]
    assert len(at.stream) == 4


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("datetimes", "milliseconds")])
@pytest.mark.parametrize("call", ["replay", "purge"])
def test_dead_letters_are_chosen_by_an_iterable(store: raxlog.Store, call: str, kind: str) -> None:
    group = store.stream("jobs").create_group("g")
    store.stream("jobs").extend([{"n": n} for n in range(3)])

    def fail(entry: raxlog.Entry) -> None:
        raise raxlog.Discard("no")

    group.worker(fail).run(burst=True)
    letters = [letter.id for letter in group.dead_letters]
    assert getattr(group.dead_letters, call)([]) == getattr(group.dead_letters, call)(iter(())) == 0
    assert len(group.dead_letters) == 3
    assert getattr(group.dead_letters, call)(KINDS[kind](letters[:2])) == 2
    assert [letter.id for letter in group.dead_letters] == letters[2:]
    assert getattr(group.dead_letters, call)() == 1


def test_messages_are_acknowledged_by_an_iterable(store: raxlog.Store) -> None:
    with store.subscribe_durable("orders.>", "mail") as mail:
        for n in range(4):
            store.publish("orders.new", {"n": n})
        first, second, third, fourth = (mail.get(timeout=5) for _ in range(4))
        assert mail.ack([]) == 0
        assert mail.ack([first, second]) == 2
        assert mail.ack(sid for sid in (third.id, second.id)) == 1
        assert mail.ack(fourth) == 1
        assert mail.pending == 0


@pytest.mark.parametrize("wrong", [
    (1000, 0), bytearray(b"1000-0"), memoryview(b"1000-0"), None, 1.5, ["x"], [["1000-0"]], [(1000, 0)], [None],
], ids=lambda wrong: repr(wrong).split(" at ")[0])
def test_what_is_neither_an_id_nor_ids_is_refused(store: raxlog.Store, ids: list[Any], wrong: Any) -> None:
    at = At(store.stream("orders"), store.stream("orders").group("g"))
    for call in CALLS.values():
        with pytest.raises(raxlog.InvalidStreamID):
            call(at, wrong)
    with pytest.raises(raxlog.InvalidStreamID):
        at.group.ack(ids[0], ids[1:])
    assert (len(at.stream), at.group.pending().total) == (4, 4)


def test_an_entry_is_no_iterable_of_ids(store: raxlog.Store, ids: list[Any]) -> None:
    [entry] = store.stream("orders").range(count=1)
    for given in (entry, [entry]):
        with pytest.raises(raxlog.InvalidStreamID, match=r"Give the Entry's \.id"):
            store.stream("orders").group("g").ack(given)
