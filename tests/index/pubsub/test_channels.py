"""Channels answer as a live redis-server does, and cost what their names say."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import raxlog
from counting import commits_of
from raxlog.index.pubsub import channel_index
from raxlog.index.pubsub.channels import ChannelMessage, Subscriber
from redis_wire import Wire

LONG = os.environ.get("RAXLOG_LONG") == "1"
CHANNELS = [b"a", b"ab", b"abc", b"b", b"a.b", b"", b"x\x00y", b"news.it", b"news.fr", b"q" * 600]
GLOBS = [b"a*", b"*b", b"?", b"*", b"news.*", b"[ab]", b"a\\*", b"abc", b"*.it", b"x\x00*", b"q*", b"*q", b"[", b""]
VERBS = ["subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe"]


def gathered(clients: list[Subscriber], copies: int) -> list[list[tuple[Any, ...]]]:
    """What the clients get of a message that was sent in so many copies."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in clients]
    deadline = time.monotonic() + 10
    while sum(map(len, found)) < copies:
        assert time.monotonic() < deadline, f"{copies} copies were sent, these have come: {found}"
        for mine, client in zip(found, clients, strict=True):
            message = client.get(0.001)
            if message is not None:
                mine.append(as_redis(message))
    return found


def as_redis(message: ChannelMessage) -> tuple[Any, ...]:
    if message.kind == "pmessage":
        return (b"pmessage", message.pattern, message.channel, message.data)
    return (message.kind.encode(), message.channel, message.data)


def pending_of(client: Wire) -> list[tuple[Any, ...]]:
    """The messages a Redis client has been sent so far."""
    client.send(b"PING")
    messages: list[tuple[Any, ...]] = []
    while True:
        reply = client.reply()
        if reply in ("PONG", [b"pong", b""]):
            return messages
        messages.append(tuple(reply))


def test_random_commands_of_three_clients_are_answered_as_redis_does(
        tmp_path: Path, redis_address: tuple[str, int]) -> None:
    seed = int(os.environ.get("RAXLOG_SEED") or random.randrange(1 << 32))
    print(f"RAXLOG_SEED={seed}")
    rng = random.Random(seed)
    with raxlog.open(tmp_path / "s.rax", durability="relaxed", encoding=None) as store, Wire(redis_address) as asker:
        ours = [store.channels.subscriber() for _ in range(3)]
        theirs = [Wire(redis_address) for _ in range(3)]
        for step in range(3000 if LONG else 300):
            kind = rng.random()
            who = rng.randrange(3)
            if kind < 0.45:
                verb = rng.choice(VERBS)
                names = rng.sample(GLOBS if verb[0] == "p" else CHANNELS, rng.randrange(0 if "un" in verb else 1, 4))
                replies = getattr(ours[who], verb)(*names)
                theirs[who].send(verb.upper().encode(), *names)
                expected = [theirs[who].reply() for _ in replies]
                assert [reply[0].encode() for reply in replies] == [reply[0] for reply in expected]
                assert Counter(reply[1] for reply in replies) == Counter(reply[1] for reply in expected)
                assert [reply[2] for reply in replies] == [reply[2] for reply in expected], (step, verb, names)
            elif kind < 0.85:
                sharded = rng.random() < 0.3
                channel, data = rng.choice(CHANNELS), b"%d" % step
                publish = store.channels.spublish if sharded else store.channels.publish
                copies = publish(channel, data)
                assert copies == asker.ask(b"SPUBLISH" if sharded else b"PUBLISH", channel, data)
                got = gathered(ours, copies)
                for mine, client in zip(got, theirs, strict=True):
                    expected_messages = pending_of(client)
                    assert Counter(mine) == Counter(expected_messages)
                    assert [m for m in mine if m[0] == b"message"] == mine[:sum(m[0] == b"message" for m in mine)]
            else:
                some = rng.sample(CHANNELS, 3)
                glob = rng.choice(GLOBS)
                channels = store.channels
                assert channels.channels() == sorted(asker.ask(b"PUBSUB", b"CHANNELS"))
                assert channels.channels(glob) == sorted(asker.ask(b"PUBSUB", b"CHANNELS", glob))
                assert channels.shardchannels(glob) == sorted(asker.ask(b"PUBSUB", b"SHARDCHANNELS", glob))
                flat = asker.ask(b"PUBSUB", b"NUMSUB", *some)
                assert list(channels.numsub(*some).items()) == list(zip(flat[::2], flat[1::2], strict=True))
                flat = asker.ask(b"PUBSUB", b"SHARDNUMSUB", *some)
                assert list(channels.shardnumsub(*some).items()) == list(zip(flat[::2], flat[1::2], strict=True))
                assert channels.numpat() == asker.ask(b"PUBSUB", b"NUMPAT")
        for client in ours:
            client.close()
        for wire in theirs:
            wire.__exit__()
        assert store.channels.channels() == []
        assert store.channels.numpat() == 0


def test_a_client_on_a_channel_and_two_globs_hears_a_message_three_times(store: raxlog.Store) -> None:
    with store.channels.subscribe("c") as client:
        client.psubscribe("c*", "?")
        assert store.channels.publish("c", "m") == 3
        heard = [client.get(5) for _ in range(3)]
        assert next((m.kind, m.pattern, m.channel, m.data) for m in heard if m is not None) == (
            "message", None, b"c", b"m"
        )
        assert {m.pattern for m in heard if m is not None} == {None, b"c*", b"?"}


def test_with_nobody_there_publishing_writes_nothing(store: raxlog.Store) -> None:
    with store.channels.psubscribe("other.*"):
        before = commits_of(store)
        assert store.channels.publish("news", "x") == 0
        assert commits_of(store) == before


def test_subjects_and_channels_do_not_hear_each_other(store: raxlog.Store) -> None:
    with store.subscribe("news.*") as subjects, store.channels.psubscribe("news.*") as channels:
        assert store.publish("news.it", {"a": 1}) == 1
        assert store.channels.publish("news.it", "a") == 1
        assert subjects.get(5) is not None
        assert channels.get(5) is not None
        assert subjects.get(0.05) is None
        assert channels.get(0.05) is None


def test_an_encoding_gives_text(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", encoding="utf-8") as store, store.channels.psubscribe("ü*") as client:
        assert store.channels.publish("über", "grün") == 1
        message = client.get(5)
        assert message == ChannelMessage("pmessage", "ü*", "über", "grün")


@pytest.mark.parametrize("call", [
    lambda channels: channels.publish(None, "x"), lambda channels: channels.publish("a", None),
    lambda channels: channels.subscribe(), lambda channels: channels.psubscribe(),
    lambda channels: channels.subscribe([]),
    lambda channels: channels.publish("a" * 70_000, "x"), lambda channels: channels.subscribe("a", max_queued=0),
    lambda channels: channels.subscribe("a", callback=3), lambda channels: channels.channels(3.5j),
    lambda channels: channels.subscribe("a" * 70_000),
])
def test_bad_arguments_are_refused_and_change_nothing(store: raxlog.Store, call: Any) -> None:
    with pytest.raises(raxlog.InvalidArgument):
        call(store.channels)
    assert store.channels.channels() == []


def test_a_closed_subscriber_says_so(store: raxlog.Store) -> None:
    client = store.channels.subscribe("a")
    client.close()
    client.close()
    assert client.get() is None
    with pytest.raises(raxlog.InvalidArgument, match="closed"):
        client.subscribe("b")
    assert store.channels.publish("a", "x") == 0


def test_long_names_with_the_same_beginning_are_told_apart(store: raxlog.Store) -> None:
    long = [b"n" * 500 + tail for tail in (b"", b"1", b"2")]
    with store.channels.subscribe(*long[:2]) as client:
        assert [store.channels.publish(name, "x") for name in long] == [1, 1, 0]
        assert [m.channel for m in (client.get(5), client.get(5)) if m is not None] == long[:2]
        assert store.channels.channels(b"n" * 300 + b"*") == long[:2]


class _Counted:
    """A transaction that counts descents."""

    def __init__(self, txn: Any) -> None:
        self._txn = txn
        self.descents = 0

    def get(self, key: bytes) -> Any:
        self.descents += 1
        return self._txn.get(key)

    def cursor(self) -> Any:
        return _CountedCursor(self, self._txn.cursor())


class _CountedCursor:
    def __init__(self, counted: _Counted, cursor: Any) -> None:
        self._counted = counted
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        self._counted.descents += name in ("set_range", "last", "next", "prev")
        return getattr(self._cursor, name)


def test_globs_anchored_elsewhere_cost_a_publish_nothing(store: raxlog.Store) -> None:
    def descents() -> int:
        with store._env.read() as txn:
            counted = _Counted(txn)
            found = channel_index.subscribers(counted, channel_index.CHANNEL, b"device.777.temperature")
            assert [row.glob for row in found] == [b"device.777.*", b"*.777.temperature"]
            return counted.descents

    with store.channels.psubscribe("device.777.*", "*.777.temperature") as client:
        alone = descents()
        client.psubscribe(*(f"device.{n}.*" for n in range(3000)), *(f"*.{n}.temperature" for n in range(3000)))
        assert descents() <= alone + 30


def test_the_hearers_are_those_a_test_of_every_glob_finds(store: raxlog.Store) -> None:
    rng = random.Random(11)
    globs = {bytes(rng.choices(b"ab.*?[]\\\x00", k=rng.randrange(1, 7))) for _ in range(300)}
    with store.channels.psubscribe(*globs), store._env.read() as txn:
        for _ in range(500):
            channel = bytes(rng.choices(b"ab.\x00*", k=rng.randrange(7)))
            found = [row.glob for row in channel_index.subscribers(txn, channel_index.CHANNEL, channel)]
            assert len(found) == len(set(found))
            assert set(found) == {glob for glob in globs if raxlog.glob_matches(glob, channel)}
