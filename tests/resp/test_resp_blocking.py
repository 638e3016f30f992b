"""Clients of `raxlog serve` that block: woken in order, by any process, and leaving nothing behind."""

from __future__ import annotations

import os
import random
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
from door import door
from resp_wire import RespWire

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
APPEND = "import raxlog, sys; raxlog.open(sys.argv[1]).stream('s').append({'n': 'other'}, sys.argv[2])"


@pytest.fixture
def address(path: Path) -> Iterator[tuple[str, int]]:
    with door(path) as served:
        yield served


def blocked(wire: RespWire, many: int) -> None:
    """Until so many clients are blocked."""
    end = time.monotonic() + 20
    while f"blocked_clients:{many}\r\n".encode() not in wire.ask("INFO", "clients")[1]:
        assert time.monotonic() < end, wire.ask("INFO")
        time.sleep(0.01)


def ids(reply: Any) -> list[bytes]:
    """The IDs of the entries of one stream."""
    return [row[1][0][1] for row in reply[1][0][1][1][1]]


def test_a_hundred_clients_of_a_group_are_served_in_the_order_they_came(address: tuple[str, int]) -> None:
    with RespWire(address) as wire:
        wire.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        waiting = []
        for number in range(100):
            waiting.append(RespWire(address))
            waiting[-1].send("XREADGROUP", "GROUP", "g", f"c{number}", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", ">")
            if number % 20 == 19:
                blocked(wire, number + 1)
        for number in range(1, 51):
            wire.send("XADD", "s", f"{number}-0", "n", number)
        for _ in range(50):
            assert wire.reply()[0] == "$"
        for number in range(1, 51):
            sid = f"{number}-0"
            assert wire.ask("XPENDING", "s", "g", sid, sid, 1)[1][0][1][0][1] == sid.encode()
        got = [ids(one.reply()) for one in waiting[:50]]
        order = [int(row[0].split(b"-")[0]) for row in got]
        assert sorted(order) == list(range(1, 51))
        for start in range(0, 50, 20):  # those that came in one batch did so in any order
            batch = order[start : start + 20]
            assert sorted(batch) == list(range(start + 1, start + 1 + len(batch)))
        blocked(wire, 50)
        for one in waiting:
            one.close()
        blocked(wire, 0)


def test_readers_without_a_group_all_get_it_and_the_blocked_come_before_a_pipeline(address: tuple[str, int]) -> None:
    with RespWire(address) as wire, RespWire(address) as plain, RespWire(address) as other, RespWire(address) as member:
        wire.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        plain.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        other.send("XREAD", "BLOCK", 0, "STREAMS", "none", "s", "$", "$")
        member.send("XREADGROUP", "GROUP", "g", "blocked", "BLOCK", 0, "STREAMS", "s", ">")
        blocked(wire, 3)
        wire.send("XADD", "s", "5-0", "n", 1)
        wire.send("XREADGROUP", "GROUP", "g", "late", "STREAMS", "s", ">")
        assert [ids(one.reply()) for one in (plain, other, member)] == [[b"5-0"]] * 3
        assert wire.reply()[1] == b"5-0"
        assert wire.reply() == ("*", None)
        # all of a MULTI is seen together; what was deleted in it wakes no reader
        plain.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        blocked(wire, 1)
        for words in (["MULTI"], ["XADD", "s", "6-0", "n", 1], ["XDEL", "s", "6-0"], ["EXEC"], ["MULTI"],
                      ["XADD", "s", "7-0", "n", 1], ["XADD", "s", "8-0", "n", 1], ["EXEC"]):
            wire.ask(*words)
        assert ids(plain.reply()) == [b"7-0", b"8-0"]


def test_a_block_ends_at_its_time_and_what_follows_in_the_pipeline_waits_for_it(address: tuple[str, int]) -> None:
    with RespWire(address) as wire:
        started = time.monotonic()
        wire.send("XREAD", "BLOCK", 200, "STREAMS", "s", "$")
        wire.send("XADD", "s", "5-0", "n", 1)
        wire.send("PING")
        assert wire.reply() == ("*", None)
        assert 0.15 < time.monotonic() - started < 5
        assert wire.reply() == ("$", b"5-0")
        assert wire.reply() == ("+", "PONG")
        assert ids(wire.ask("XREAD", "BLOCK", 0, "STREAMS", "s", "0")) == [b"5-0"]


def test_one_that_is_killed_while_it_blocks_takes_nothing(address: tuple[str, int]) -> None:
    with RespWire(address) as wire:
        wire.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        client = forkserver.Popen(
            [sys.executable, "-c", "import socket, sys, time\n"
             "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
             "s.sendall(b'XREADGROUP GROUP g dead BLOCK 0 STREAMS s >\\r\\n')\ntime.sleep(60)", *map(str, address)])
        blocked(wire, 1)
        client.kill()
        client.wait()
        blocked(wire, 0)
        wire.ask("XADD", "s", "5-0", "n", 1)
        assert wire.ask("XPENDING", "s", "g")[1][0] == (":", 0)
        assert ids(wire.ask("XREADGROUP", "GROUP", "g", "w", "STREAMS", "s", ">")) == [b"5-0"]


def test_commits_of_another_process_wake_readers(address: tuple[str, int], path: Path) -> None:
    with RespWire(address) as wire, RespWire(address) as plain, RespWire(address) as member, RespWire(address) as last:
        wire.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        plain.send("XREAD", "BLOCK", 20_000, "STREAMS", "s", "$")
        member.send("XREADGROUP", "GROUP", "g", "w", "BLOCK", 20_000, "STREAMS", "s", ">")
        blocked(wire, 2)
        forkserver.run([sys.executable, "-c", APPEND, str(path), "5-0"], check=True)
        assert ids(plain.reply()) == ids(member.reply()) == [b"5-0"]
        last.send("XREADGROUP", "GROUP", "g", "w", "BLOCK", 0, "STREAMS", "s", ">")
        blocked(wire, 1)
        with raxlog.open(path) as store:
            store.stream("s").group("g").destroy()
        kind, text = last.reply()
        assert (kind, text.split(" ")[0]) == ("-", "NOGROUP")


def test_the_end_of_the_group_and_of_the_stream(address: tuple[str, int]) -> None:
    with RespWire(address) as wire, RespWire(address) as member, RespWire(address) as plain:
        for words in (["XGROUP", "DESTROY", "s", "g"], ["DEL", "s"], ["FLUSHALL"]):
            wire.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            member.send("XREADGROUP", "GROUP", "g", "w", "BLOCK", 0, "STREAMS", "s", ">")
            blocked(wire, 1)
            wire.ask(*words)
            kind, text = member.reply()
            assert (kind, text.split(" ")[0]) == ("-", "NOGROUP")
        plain.send("XREAD", "BLOCK", 0, "STREAMS", "s", "0")
        blocked(wire, 1)
        wire.ask("DEL", "s")
        blocked(wire, 1)
        wire.ask("XADD", "s", "1-0", "n", 1)
        assert ids(plain.reply()) == [b"1-0"]


def test_a_hundred_that_wait_in_all_ways_and_are_killed_get_what_they_get_from_redis(
    address: tuple[str, int], newer_address: tuple[str, int]
) -> None:
    print("RAXLOG_SEED =", SEED)
    shown = []
    for server in (newer_address, address):
        rng = random.Random(SEED)
        with RespWire(server) as wire:
            wire.ask("DEL", "s", "t", "l", "m")
            for group in ("g", "h"):
                wire.ask("XGROUP", "CREATE", "s", group, "0", "MKSTREAM")
            waiting: list[RespWire | None] = []
            for number in range(100):
                client = RespWire(server)
                client.send(*rng.choice([
                    ["XREAD", "BLOCK", 0, "STREAMS", "s", "$"], ["XREAD", "BLOCK", 0, "STREAMS", "t", "s", "$", "$"],
                    *[["XREADGROUP", "GROUP", group, f"c{number}", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", ">"]
                      for group in "ggh"], *[["BLPOP", *keys, 0] for keys in ("l", "ml", "lm")]]))
                waiting.append(client)
                blocked(wire, number + 1)
            for place in rng.sample(range(100), 30):
                killed = waiting[place]
                assert killed is not None
                killed.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no farewell
                killed.close()
                waiting[place] = None
            blocked(wire, 70)
            for number in range(1, 41):
                wire.ask(*rng.choice([["XADD", "s", f"{number}-0", "n", number], ["XADD", "t", f"{number}-0", "n", 1],
                                      ["RPUSH", "l", number], ["RPUSH", "m", number, -number]]))
            left = int(wire.ask("INFO", "clients")[1].partition(b"blocked_clients:")[2].split()[0])
            shown += [wire.ask("XPENDING", "s", "g"), wire.ask("LRANGE", "l", 0, -1)]  # what was taken, what was not
            for number in range(100, 200):  # so that all have a reply
                for words in (["XADD", "s", f"{number}-0", "n", 1], ["RPUSH", "l", number], ["RPUSH", "m", number]):
                    wire.ask(*words)
            shown.append([left, *[None if one is None else one.reply() for one in waiting]])
            for one in waiting:
                if one is not None:
                    one.close()
    assert shown[3:] == shown[:3]


def test_a_read_that_claims_leaves_pending_what_is_gone_and_waits_for_what_is_there(
    address: tuple[str, int], path: Path
) -> None:
    with RespWire(address) as wire, RespWire(address) as reader:
        wire.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        for sid in ("1-0", "2-0", "3-0"):
            wire.ask("XADD", "s", sid, "n", sid)
        wire.ask("XREADGROUP", "GROUP", "g", "died", "STREAMS", "s", ">")
        wire.ask("XDEL", "s", "1-0", "2-0")
        wire.ask("XNACK", "s", "g", "FAIL", "IDS", 2, "1-0", "2-0")
        wire.ask("XCLAIM", "s", "g", "died", 0, "3-0", "JUSTID")
        pid = int(wire.ask("INFO", "server")[1].split(b"process_id:")[1].split()[0])
        used, began = cpu_of(pid), time.monotonic()
        claim = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 1500, "CLAIM", 60_000, "STREAMS", "s", ">")
        assert wire.ask(*claim) == ("*", None)
        assert 1.4 < time.monotonic() - began < 15
        reader.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 20_000, "CLAIM", 2_000, "STREAMS", "s", ">")
        assert ids(reader.reply()) == [b"3-0"]
        took = time.monotonic() - began
        assert took < 15
        assert cpu_of(pid) - used < 0.3 + took / 5
        assert wire.ask("XPENDING", "s", "g")[1][0] == (":", 3)
        reader.send("XREADGROUP", "GROUP", "g", "d", "BLOCK", 20_000, "CLAIM", 60_000, "STREAMS", "s", ">")
        blocked(wire, 1)
        with raxlog.open(path) as store:  # in another process, and behind released entries that are gone
            store.stream("s").group("g").nack("3-0")
        assert ids(reader.reply()) == [b"3-0"]
        assert wire.ask("XPENDING", "s", "g")[1][0] == (":", 3)
        assert wire.ask("XAUTOCLAIM", "s", "g", "c", 0, 0)[1][2][1] == [("$", b"1-0"), ("$", b"2-0")]


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
