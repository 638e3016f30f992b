"""Keyspace notifications of `raxlog serve`: those that Redis sends, with each command."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from door import door
from resp_wire import RespWire

SCRIPT = """
XADD s 1-1 a 1
XADD s 1-1 a 1
XADD s MAXLEN 1 2-1 a 1
XADD s MAXLEN ~ 1 3-1 a 1
XADD n NOMKSTREAM * a 1
XTRIM s MAXLEN 1
XTRIM s MAXLEN 1
XADD s 4-1 a 1
XADD s 5-1 a 1
XADD s 6-1 a 1
XDEL s 4-1
XDEL s 4-1
XDELEX s IDS 1 5-1
XDELEX s IDS 1 5-1
XSETID s 9-1
XGROUP CREATE s g 0
XGROUP CREATE t g 0 MKSTREAM
XGROUP CREATE s g 0
XGROUP SETID s g 0
XGROUP CREATECONSUMER s g c
XGROUP CREATECONSUMER s g c
XREADGROUP GROUP g d STREAMS s >
XREADGROUP GROUP g e STREAMS s 0
XADD s 10-1 a 1
XADD s 11-1 a 1
XREADGROUP GROUP g d COUNT 1 STREAMS s >
XCLAIM s g f 0 10-1
XCLAIM s g ff 0 99-1
XAUTOCLAIM s g h 0 0
XACK s g 10-1
XACKDEL s g IDS 1 6-1
XGROUP DELCONSUMER s g c
XGROUP DELCONSUMER s g c
XGROUP DESTROY s g
XGROUP DESTROY s g
RENAME s s
RENAME s r
RENAMENX r q
COPY q p
DEL q
DEL q
UNLINK p
SET k v
SET k v EX 100
SETNX k2 v
SETEX k2 10 v
GETSET k w
GETEX k PERSIST
GETEX k EX 10
GETEX k EXAT 1
SET k v GET
MSET a 1 b 2
INCR a
DECR a
INCRBY a 2
APPEND a x
GETDEL a
EXPIRE b 100
PERSIST b
PERSIST b
PEXPIRE b 100000
EXPIRE b -1
RPUSH l a b c
LPUSH l z
LPUSHX l y
LREM l 1 a
LREM l 1 nope
LPOP l
RPOP l 2
BLPOP l 0
LPOP l
RPUSH l a
LREM l 1 a
EXPIRE t 1000
COPY b bb
SELECT 3
XADD s 1-1 a 1
COPY s t DB 4
RENAME s u
MULTI
XADD s 2-1 a 1
XADD s 1-1 a 1
DEL s
EXEC
SELECT 0
XADD s2 1-1 a 1
XTRIM s2 MAXLEN 0
XADD s2 2-1 a 1
XREADGROUP GROUP none c STREAMS s2 >
FLUSHALL
"""
SETTINGS = ["", "A", "KEA", "g$lshzxetd", "Kt", "Ext", "gE", "KEg$", "mK", "Kn", "KQ", "tK$", "Ko", "Kc", "K"]


@pytest.fixture
def address(path: Path) -> Iterator[tuple[str, int]]:
    with door(path) as served:
        yield served


def noted(listener: RespWire, publisher: RespWire) -> list[tuple[bytes, bytes]]:
    """The notifications that have come: channels and messages."""
    publisher.ask("PUBLISH", "__keyx__:end", "")
    messages = iter(lambda: [part for _, part in listener.reply()[1][2:]], [b"__keyx__:end", b""])
    return [(channel, message) for channel, message in messages]


@pytest.mark.parametrize("setting", ["KEA", "Kt", "Eg", "xE"])
def test_each_command_is_noted_as_in_redis(
    address: tuple[str, int], newer_address: tuple[str, int], setting: str
) -> None:
    shown: list[list[Any]] = []
    for server in (newer_address, address):
        with RespWire(server) as wire, RespWire(server) as listener, RespWire(server) as other:
            wire.ask("FLUSHALL")
            wire.ask("CONFIG", "SET", "notify-keyspace-events", setting)
            listener.ask("PSUBSCRIBE", "__key*__:*")
            steps = []
            for line in SCRIPT.strip().splitlines():
                wire.ask(*line.split())
                steps.append((line, noted(listener, other)))
            wire.ask("SET", "e", "v", "PX", 20)
            time.sleep(0.4)
            steps.append(("expired", noted(listener, other)))
            wire.ask("CONFIG", "SET", "notify-keyspace-events", "")
            shown.append(steps)
    for theirs, ours in zip(*shown, strict=True):
        assert ours == theirs


def test_the_setting_is_shown_as_in_redis(address: tuple[str, int], newer_address: tuple[str, int]) -> None:
    with RespWire(address) as ours, RespWire(newer_address) as theirs:
        for setting in SETTINGS:
            for words in (["CONFIG", "SET", "notify-keyspace-events", setting],
                          ["CONFIG", "GET", "notify-keyspace-events"]):
                assert ours.ask(*words) == theirs.ask(*words)
        theirs.ask("CONFIG", "SET", "notify-keyspace-events", "")
