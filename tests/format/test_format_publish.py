"""What publishing writes lies where its page says, and what is wrong with it is found."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest
import raxlog
from children import Child
from raxlog.index.pubsub import channel_index
from raxlog.index.pubsub.check import problems
from raxlog.storage.format import records


def rows(store: raxlog.Store, kind: int) -> dict[bytes, list[Any]]:
    """Key behind the kind, and record, of all rows of a kind of number 0."""
    prefix = bytes(8) + bytes([kind])
    found = {}
    with store._env.read() as txn:
        cursor: Any = txn.cursor()
        more = cursor.set_range(prefix)
        while more and cursor.key().startswith(prefix):
            found[cursor.key()[9:]] = records.unseal(cursor.key(), cursor.value())
            more = cursor.next()
    return found


def wrong(store: raxlog.Store) -> list[str]:
    with store._env.read() as txn:
        return list(problems(txn))


def test_a_channels_row_is_the_one_in_the_example(store: raxlog.Store) -> None:
    def two(txn: Any) -> None:
        channel_index.add_owner(txn, 1, 4711, 5)
        channel_index.add(txn, 1, channel_index.CHANNEL, b"news.it", 2)

    store._source.submit(two)
    key = bytes.fromhex("63 6e 65 77 73 2e 69 74 00 00 00 00 00 00 00 00 00 01")
    assert rows(store, 0x1C) == {key: [b"news.it", 2]}
    assert b"\1" + msgpack.packb([b"news.it", 2]) == bytes.fromhex("01 92 c4 07 6e 65 77 73 2e 69 74 02")
    assert rows(store, 0x1E) == {key[-8:]: [4711, 5], key[-8:] + key[:-8]: []}
    assert wrong(store) == []


def test_globs_lie_under_their_longer_literal_end(store: raxlog.Store) -> None:
    with store.channels.psubscribe("news.*", "*:done", "*"):
        kept = rows(store, 0x1C)
        assert [(key[:1], record) for key, record in kept.items() if len(key) > 1] == [
            (b"p", [b"*", 1]), (b"p", [b"news.*", 1]), (b"q", [b"*:done", 1]),
        ]
        assert [key[1:-24] for key in kept if len(key) > 1] == [b"\0\0", b"news.\0\0", b"enod:\0\0"]
        assert kept[b"\0"] == [3, 3]
        assert wrong(store) == []


def test_a_message_in_the_ring_is_as_described(store: raxlog.Store) -> None:
    with store.subscribe("a") as live, store.subscribe("a", queue="q") as member:
        store.publish("a", {"x": 1})
        ring = rows(store, 0x1D)
        owner = next(iter(store.listeners()))
        (number, message), (end, state) = ring.items()
        assert number == (1).to_bytes(8, "big")
        assert message[0:1] + message[2:] == [0, b"a", [b"x", b"1"], [owner], [member.id]]
        assert (end, state[:2]) == (b"\xff" * 8, [2, 1])
        assert live.id != member.id


def test_after_kills_at_any_moment_all_rows_agree(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"

    def churn(say: Any) -> None:
        rng = random.Random(time.time_ns())
        with raxlog.open(path, durability="relaxed") as mine:
            client = mine.channels.subscriber()
            say("ready")
            while True:
                client.subscribe(*rng.choices(["a", "b", "c\0d", "e" * 600], k=2))
                client.psubscribe(*rng.choices(["a*", "*b", "*", "c*e"], k=2))
                live, durable = mine.subscribe("x.*"), mine.subscribe_durable("x.>", durable=f"d{rng.randrange(3)}")
                mine.publish("x.y", {"n": 1})
                mine.channels.publish("a", "m")
                client.unsubscribe()
                live.close()
                durable.close()
                mine.unsubscribe(f"d{rng.randrange(3)}")

    for _ in range(8):
        with Child(churn) as one, Child(churn) as two:
            one.heard()
            two.heard()
            time.sleep(0.1)
            one.kill()
            two.kill()
        with raxlog.open(path, readonly=True) as store:
            assert wrong(store) == []
        with raxlog.open(path) as store:
            assert wrong(store) == []
            assert store.channels.channels() == []
            assert store.channels.numpat() == 0
            assert list(rows(store, 0x1E)) == []


@pytest.mark.parametrize(("kind", "place", "told"), [
    (0x1C, 0, "globs"), (0x1C, 1, "not there"), (0x1E, 0, "not recorded"), (0x1E, 1, "not among"),
    (0x1D, 0, "should be"), (0x1D, 1, "should be"), (0x02, 0, "is durable"),
])
def test_a_row_that_is_missing_is_told_of(store: raxlog.Store, kind: int, place: int, told: str) -> None:
    with store.subscribe("a"), store.channels.psubscribe("x*"), store.subscribe_durable("a", durable="d"):
        store.publish("a", {"n": 1})
        store.publish("a", {"n": 2})
        key = bytes(8) + bytes([kind]) + sorted(rows(store, kind))[place]
        value: Any = store._source.submit(lambda txn: (txn.get(key), txn.delete(key))[0])
        assert any(told in what for what in wrong(store)), wrong(store)
        store._source.submit(lambda txn: txn.put(key, value))
        assert wrong(store) == []
