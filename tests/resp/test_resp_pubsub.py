"""`raxlog serve` and publish and subscribe: as Redis answers it, over all processes on the store."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
import redis
from door import door
from resp_wire import RespWire

SCRIPT = """
SUBSCRIBE
SUBSCRIBE news news sport
PSUBSCRIBE n* n* ?port
PUBLISH
UNSUBSCRIBE sport none
UNSUBSCRIBE
PING
PING hello
GET x
XLEN s
PUNSUBSCRIBE none n*
PUNSUBSCRIBE
UNSUBSCRIBE
SSUBSCRIBE a
SUNSUBSCRIBE
GET x
RESET
PING
"""


@pytest.fixture
def address(path: Path) -> Iterator[tuple[str, int]]:
    with door(path) as served:
        yield served


def replies(wire: RespWire) -> list[Any]:
    """All that comes, up to the end of the connection, which has been half closed."""
    wire.socket.shutdown(socket.SHUT_WR)
    return list(iter(wire.reply, None))


@pytest.mark.parametrize("protocol", [2, 3])
def test_every_reply_is_as_in_redis(address: tuple[str, int], newer_address: tuple[str, int], protocol: int) -> None:
    shown = []
    for server in (newer_address, address):
        with RespWire(server) as wire, RespWire(server) as other:
            wire.ask("FLUSHALL")
            wire.ask("HELLO", protocol)
            for line in SCRIPT.strip().splitlines():
                wire.send(*line.split())
            answers = list(iter(wire.reply, ("+", "RESET")))
            figures: list[Any] = []
            with RespWire(server) as holder:
                holder.ask("SUBSCRIBE", "news")
                holder.ask("PSUBSCRIBE", "n*")
                for words in (["PUBSUB", "NUMSUB", "news", "news", "x"], ["PUBSUB", "CHANNELS"], ["PUBSUB", "NUMPAT"],
                              ["PUBSUB", "CHANNELS", "x*"], ["PUBSUB", "NUMSUB"], ["PUBSUB", "SHARDCHANNELS"],
                              ["PUBSUB", "FOO"], ["PUBSUB"], ["PUBLISH", "news", "m"], ["PUBLISH", "unheard", "m"],
                              ["SPUBLISH", "news", "m"], ["MULTI"], ["PUBLISH", "now", "1"], ["PUBLISH", "news", "2"],
                              ["EXEC"]):
                    figures.append(other.ask(*words))
                messages = [holder.reply() for _ in range(5)]
            shown.append([answers, replies(wire), figures, messages])
    for theirs, ours in zip(*shown, strict=True):
        assert ours == theirs


def test_messages_cross_servers_and_programs_and_the_end_of_a_client(address: tuple[str, int], path: Path) -> None:
    with door(path) as other_address, RespWire(address) as here, RespWire(other_address) as there:
        here.ask("HELLO", 3)
        assert here.ask("SUBSCRIBE", "c") == (">", [("$", b"subscribe"), ("$", b"c"), (":", 1)])
        there.ask("PSUBSCRIBE", "*")
        with raxlog.open(path) as store:
            assert store.channels.publish("c", "from a program") == 2
            expected = [("$", b"c"), ("$", b"from a program")]
            assert here.reply()[1][1:] == there.reply()[1][2:] == expected
            with store.channels.subscribe("c") as mine:
                assert here.ask("PUBLISH", "c", "m") in ((":", 3), (">", [("$", b"message"), ("$", b"c"), ("$", b"m")]))
                message = mine.get(timeout=10)
                assert message is not None
                assert message.data == "m"
            there.close()
            end = time.monotonic() + 10
            while store.channels.numpat() and time.monotonic() < end:
                time.sleep(0.01)
            assert store.channels.numpat() == 0
        with RespWire(address) as wire:
            assert wire.ask("SAVE") == ("+", "OK")  # the store is opened again: the subscription stays
            assert wire.ask("PUBLISH", "c", "again") == (":", 1)
        got = [here.reply() for _ in range(2)]
        assert (">", [("$", b"message"), ("$", b"c"), ("$", b"again")]) in got


def test_redis_py_subscribes_and_a_client_that_reads_nothing_is_let_go(address: tuple[str, int]) -> None:
    client: Any = redis.Redis(*address, decode_responses=True)
    with client.pubsub() as listening:
        listening.subscribe("a")
        listening.psubscribe("b*")
        got = []
        assert client.publish("a", "1") + client.publish("bc", "2") in (0, 1, 2)
        end = time.monotonic() + 10
        while sum(one["type"] in ("message", "pmessage") for one in got) < 2 and time.monotonic() < end:
            client.publish("a", "1")
            client.publish("bc", "2")
            got += [one for _ in range(4) if (one := listening.get_message(timeout=0.05))]
        assert {(one["channel"], one["data"]) for one in got if "message" in one["type"]} == {("a", "1"), ("bc", "2")}
    with RespWire(address) as deaf:
        deaf.ask("SUBSCRIBE", "loud")
        reached = 1
        for _ in range(100):
            if not (reached := client.publish("loud", "x" * (1 << 20))):
                break
        assert reached == 0
    assert client.ping()
    client.close()
