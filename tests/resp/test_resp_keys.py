"""`raxlog serve` and keys of all kinds: when they go, lists that are waited for, locks, MONITOR, and reopening."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
import redis
from door import door
from resp_wire import RespWire


@pytest.fixture
def address(path: Path) -> Iterator[tuple[str, int]]:
    with door(path) as served:
        yield served


def until(wire: RespWire, words: list[object], reply: object) -> None:
    """Ask until this is the reply."""
    end = time.monotonic() + 20
    while (got := wire.ask(*words)) != reply:
        assert time.monotonic() < end, got
        time.sleep(0.01)


def blocked(wire: RespWire, many: int) -> None:
    """Until so many clients are blocked."""
    end = time.monotonic() + 20
    while f"blocked_clients:{many}\r\n".encode() not in wire.ask("INFO", "clients")[1]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_keys_of_all_kinds_go_in_time_also_while_the_server_is_down(path: Path) -> None:
    with door(path) as address, RespWire(address) as wire, RespWire(address) as member:
        wire.ask("SET", "string", "v", "PX", 100)
        wire.ask("RPUSH", "list", "a", "b")
        wire.ask("XGROUP", "CREATE", "stream", "g", "0", "MKSTREAM")
        member.send("XREADGROUP", "GROUP", "g", "w", "BLOCK", 0, "STREAMS", "stream", ">")
        blocked(wire, 1)
        assert wire.ask("PEXPIRE", "list", 100) == wire.ask("PEXPIRE", "stream", 100) == (":", 1)
        assert member.reply()[1].startswith("NOGROUP")
        assert wire.ask("EXISTS", "stream") == (":", 0)
        until(wire, ["DBSIZE"], (":", 0))
        wire.ask("SET", "later", "v", "PX", 300)
        wire.ask("SET", "stays", "v", "EX", 100)
        wire.ask("SELECT", 3)
        wire.ask("SET", "of three", "v", "PX", 1)
        time.sleep(0.002)
        assert wire.ask("GET", "of three") == ("$", None)
    with raxlog.open(path) as store:
        assert store.state[b"stays"] == b"v"
    time.sleep(0.3)
    with door(path) as address, RespWire(address) as wire:
        assert wire.ask("GET", "later") == ("$", None)
        assert 90 <= wire.ask("TTL", "stays")[1] <= 100
        wire.ask("DEL", "stays")
    with raxlog.open(path) as store:
        assert len(store.state) == 0
        assert store.streams() == []
    assert raxlog.check(path).ok


def test_what_a_program_names_like_a_stream_does_not_keep_clients_from_it(address: tuple[str, int], path: Path) -> None:
    with raxlog.open(path) as store, RespWire(address) as wire:
        store.state["orders"] = b"offset"
        store.stream("orders").append({"n": 1}, "1-0")
        assert wire.ask("TYPE", "orders") == ("+", "stream")
        assert wire.ask("XADD", "orders", "2-0", "n", 2) == ("$", b"2-0")
        assert wire.ask("GET", "orders")[1].startswith("WRONGTYPE")
        assert wire.ask("XADD", "x" * 502, "2-0", "n", 2) == ("$", b"2-0")
        assert wire.ask("EXPIRE", "x" * 502, 10)[0] == "-"
        assert wire.ask("TTL", "x" * 502) == (":", -1)


def test_no_key_of_one_database_is_another_one_s_or_a_row_of_the_server(
    address: tuple[str, int], path: Path
) -> None:
    with RespWire(address) as wire:
        wire.ask("SELECT", 3)
        wire.ask("SET", "k", "three")
        wire.ask("RPUSH", "l", "a")
        wire.ask("SELECT", 0)
        wire.ask("RPUSH", "l", "b")
        for key in (b"\0db3\0k", b"\0db0\0k", b"\0dbl\0l", b"\0dbe\0l", b"\0db"):
            for command in (["SET", key, "x"], ["GET", key], ["DEL", key], ["XADD", key, "*", "n", 1],
                            ["RPUSH", key, "x"], ["RENAME", "l", key], ["COPY", "l", key], ["EXPIRE", key, 1]):
                kind, text = wire.ask(*command)
                assert kind == "-", command
                assert "no key can begin with" in text
        assert wire.ask("SET", b"\0dc", "x") == ("+", "OK")
        assert wire.ask("LRANGE", "l", 0, -1) == ("*", [("$", b"b")])
        wire.ask("SELECT", 3)
        assert wire.ask("GET", "k") == ("$", b"three")
        assert wire.ask("SET", b"\0db0\0k", "x") == ("+", "OK")
        assert wire.ask("LRANGE", "l", 0, -1) == ("*", [("$", b"a")])


def test_those_who_wait_for_a_list_are_served_in_order_by_any_server(address: tuple[str, int], path: Path) -> None:
    with RespWire(address) as wire, door(path) as other_address, RespWire(other_address) as other:
        waiting = []
        for number in range(4):
            waiting.append(RespWire(address))
            waiting[-1].send("BLPOP" if number % 2 else "BRPOP", "none", "l", 0)
            blocked(wire, number + 1)
        assert wire.ask("RPUSH", "l", "1", "2", "3") == (":", 3)
        got = [one.reply()[1][1][1] for one in waiting[:3]]
        assert got == [b"3", b"1", b"2"]
        assert wire.ask("EXISTS", "l") == (":", 0)
        assert other.ask("LPUSH", "l", "from afar") == (":", 1)
        assert waiting[3].reply() == ("*", [("$", b"l"), ("$", b"from afar")])
        wire.send("BLPOP", "l", 0.05)
        assert wire.reply() == ("*", None)
        waiting[0].send("BLPOP", "l", 0)
        blocked(wire, 1)
        wire.ask("SET", "l", "no list")  # it goes on waiting
        wire.ask("DEL", "l")
        for words in (["MULTI"], ["LPUSH", "l", "a"], ["LPUSH", "l", "b"], ["EXEC"]):
            wire.ask(*words)
        assert waiting[0].reply()[1][1] == ("$", b"b")
        for one in waiting:
            one.close()


def test_a_transaction_watches_strings_and_lists(address: tuple[str, int]) -> None:
    with RespWire(address) as wire, RespWire(address) as other:
        for change in (["SET", "k", "2"], ["EXPIRE", "k", 100], ["DEL", "k"], ["RPUSH", "l", "x"]):
            wire.ask("WATCH", "k", "l", "untouched")
            other.ask(*change)
            wire.ask("MULTI")
            wire.ask("INCR", "n")
            assert wire.ask("EXEC") == ("*", None)
        assert wire.ask("EXISTS", "n") == (":", 0)


def test_locks_of_redis_py_and_no_other_script(address: tuple[str, int]) -> None:
    client: Any = redis.Redis(*address)
    lock, late = client.lock("lock", timeout=100), client.lock("lock", timeout=100, blocking=False)
    assert lock.acquire()
    assert not late.acquire()
    lock.extend(100)
    assert 150 < client.ttl("lock") <= 200
    lock.extend(50, replace_ttl=True)
    assert 20 < client.ttl("lock") <= 50
    lock.reacquire()
    assert 50 < client.ttl("lock") <= 100
    client.set("lock", "another's")
    for call in (lock.release, lock.reacquire):
        lock.local.token = lock.local.token or b"mine"
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            call()
    client.delete("lock")
    with client.lock("lock", timeout=0.2):
        assert client.exists("lock")
    assert not client.exists("lock")
    for words, error in ((["EVAL", "return 1", 0], "no scripts"), (["SCRIPT", "LOAD", "return 1"], "MULTI"),
                         (["EVALSHA", "0" * 40, 0], "No matching script"), (["SADD", "s", "m"], "no sets"),
                         (["ZADD", "z", 1, "m"], "XADD and XRANGE"), (["HGETALL", "h"], "no hashes")):
        with pytest.raises(redis.ResponseError, match=error):
            client.execute_command(*words)
    client.close()


def test_monitor_shows_the_commands_of_all_clients(address: tuple[str, int], newer_address: tuple[str, int]) -> None:
    shown = []
    for server in (address, newer_address):
        with RespWire(server) as watching, RespWire(server) as wire:
            assert watching.ask("MONITOR") == ("+", "OK")
            for words in (["SELECT", 2], ["SET", b"a\"\x01\n\xff", "v 1"], ["AUTH", "secret"], ["MULTI"], ["GET", "x"],
                          ["EXEC"], ["FOO"]):
                wire.ask(*words)
            wire.ask("PING")
            lines: list[str] = []
            while not lines or "PING" not in lines[-1]:
                kind, line = watching.reply()
                seconds, database, _, rest = line.split(" ", 3)
                assert kind == "+"
                assert float(seconds) > 1e9
                lines.append(f"{database} {rest}")
            assert watching.ask("RESET") == ("+", "RESET")
            wire.ask("PING")
            assert watching.ask("PING") == ("+", "PONG")
            shown.append(lines)
    assert shown[0] == shown[1]


def test_the_store_is_opened_again_under_clients_that_wait(address: tuple[str, int], path: Path) -> None:
    with RespWire(address) as wire, RespWire(address) as reader, RespWire(address) as popper, RespWire(address) as busy:
        wire.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        wire.ask("SET", "k", "v", "EX", 100)
        reader.send("XREADGROUP", "GROUP", "g", "w", "BLOCK", 0, "STREAMS", "s", ">")
        popper.send("BLPOP", "l", 0)
        blocked(wire, 2)
        for number, words in enumerate((["DEBUG", "RELOAD"], ["DEBUG", "LOADAOF"], ["SAVE"], ["BGSAVE"],
                                        ["BGREWRITEAOF"])):
            for _ in range(50):
                busy.send("XADD", "many", "*", "n", number)
                busy.send("XLEN", "many")
            assert wire.ask(*words)[0] == "+"
            for _ in range(50):
                assert busy.reply()[0] == "$"
                assert busy.reply()[0] == ":"
        assert wire.ask("GET", "k") == ("$", b"v")
        assert wire.ask("XLEN", "many") == (":", 250)
        blocked(wire, 2)
        forkserver.run([sys.executable, "-c", "import raxlog, sys\nwith raxlog.open(sys.argv[1]) as store:\n"
                        "    store.stream('s').append({'n': 1}, '5-0')", str(path)], check=True)
        assert reader.reply()[1][0][1][1][1][0][1][0] == ("$", b"5-0")
        wire.ask("RPUSH", "l", "v")
        assert popper.reply()[1][1] == ("$", b"v")
        wire.ask("MULTI")
        assert wire.ask("SAVE") == ("-", "ERR Command not allowed inside a transaction")
        assert wire.ask("EXEC")[1].startswith("EXECABORT")


def test_what_a_key_is_is_looked_at_again_after_it_has_changed(address: tuple[str, int]) -> None:
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    with RespWire(address) as wire:
        assert wire.ask("XLEN", "s") == (":", 0)
        wire.ask("SET", "s", "v")
        assert wire.ask("XLEN", "s") == ("-", wrong)
        wire.socket.sendall(b"DEL s\r\nXLEN s\r\nRPUSH s v\r\nXLEN s\r\nDEL s\r\nXLEN s\r\nAPPEND s v\r\nXLEN s\r\n")
        assert [wire.reply() for _ in range(8)] == [
            (":", 1), (":", 0), (":", 1), ("-", wrong), (":", 1), (":", 0), (":", 1), ("-", wrong)]


def test_a_transaction_that_fails_half_way_is_undone_and_the_rest_of_the_pipeline_is_not(
    address: tuple[str, int]
) -> None:
    long = "x" * 495  # it can be a key, but not one that goes
    with RespWire(address) as wire:
        wire.ask("SET", "s", "v")
        wire.ask("RPUSH", "l", "a")
        for words in (["XADD", "t", "1-1", "n", 1], ["MULTI"], ["DEL", "s"], ["XLEN", "s"], ["RPUSH", "l", "b"],
                      ["SET", long, "v", "EX", 10], ["EXEC"], ["XLEN", "s"], ["XLEN", "t"], ["GET", "s"]):
            wire.send(*words)
        replies = [wire.reply() for _ in range(10)]
        assert replies[0] == ("$", b"1-1")
        assert replies[6][0] == "-"
        assert "502 are allowed" in replies[6][1]
        assert replies[7][1].startswith("WRONGTYPE")
        assert replies[8:] == [(":", 1), ("$", b"v")]
        assert wire.ask("LRANGE", "l", 0, -1) == ("*", [("$", b"a")])
        assert wire.ask("EXISTS", long) == (":", 0)
        # one that has changed nothing leaves the others as they are
        for words in (["MULTI"], ["XADD", "t", "2-1", "n", 1], ["XADD", "t", "1-1", "n", 1], ["EXEC"]):
            reply = wire.ask(*words)
        assert [kind for kind, _ in reply[1]] == ["$", "-"]
        assert wire.ask("XLEN", "t") == (":", 2)


def test_a_server_that_nothing_asks_lets_keys_of_another_program_go(address: tuple[str, int], path: Path) -> None:
    with RespWire(address) as wire:
        assert wire.ask("DEBUG", "RELOAD") == ("+", "OK")  # it looks on in the store that has been opened again
    with door(path) as other, RespWire(other) as wire:
        wire.ask("SET", "k", "1", "PX", 700)
        wire.ask("SET", "stays", "1")
    with raxlog.open(path) as store:
        deadline = time.monotonic() + 10
        while list(store.state) != ["stays"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_wrong_command_inside_a_transaction_aborts_it_where_redis_does(
    address: tuple[str, int], newer_address: tuple[str, int]
) -> None:
    for wrong in (["WATCH"], ["MULTI", "x"], ["EXEC", "x"], ["DISCARD", "x"], ["RESET", "x"], ["GET"], ["WATCH", "k"],
                  ["MULTI"]):
        replies = []
        for server in (newer_address, address):
            with RespWire(server) as wire:
                script = [["MULTI"], ["SET", "k", 1], wrong, ["EXEC"], ["EXEC", "x"]]
                replies.append([wire.ask(*words) for words in script])
        assert replies[1] == replies[0], wrong


def test_appends_of_a_pipeline_are_refused_one_by_one_and_wake_in_between(
    address: tuple[str, int], newer_address: tuple[str, int]
) -> None:
    lines = ["DEL s str", "XADD s 1-1 a b", "XADD s 1-1 a b", "XADD s 1-2 a", "XADD s 2-1 a b",
             "XADD s MAXLEN 1 3-1 a b", "XADD s x-1 a b", "XADD s NOMKSTREAM 0-0 a b", "XADD none NOMKSTREAM * a b",
             "SET str 1", "XADD str 1-1 a b", "XADD s 9-1 a b", "XADD s MAXLEN x * a b", "XRANGE s - +"]
    replies = []
    for server in (newer_address, address):
        with RespWire(server) as wire, RespWire(server) as waiting:
            wire.ask("DEL", "s")
            waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "1-1")
            while b"blocked_clients:1" not in wire.ask("INFO")[1]:
                time.sleep(0.01)
            wire.socket.sendall("".join(f"{line}\r\n" for line in lines).encode())
            replies.append([[wire.reply() for _ in lines], waiting.reply()])
    assert replies[1] == replies[0]


def test_appends_of_a_pipeline_that_are_alike_get_what_each_gets_alone(
    address: tuple[str, int], newer_address: tuple[str, int], path: Path
) -> None:
    last = "18446744073709551615-18446744073709551612"
    lines = ["SET str 1", "XADD end 1-1 a b", f"XSETID end {last}",
             *["XADD s * a b"] * 5, *["XADD t * a b c d"] * 3, "XADD s * a", "XADD s * a b", "XADD s * MAXLEN 2",
             "XADD s * a b", "XADD s MAXLEN 2 * a b", *["XADD str * a b"] * 3, *["XADD end * a b"] * 5,
             f"XADD s * a {'x' * 700_000}", f"XADD s * a {'y' * 700_000}", "XLEN s", "XLEN t", "XLEN end",
             "XREVRANGE end + - COUNT 4", "XRANGE t - + COUNT 2"]
    replies = []
    for server in (newer_address, address):
        with RespWire(server) as wire:
            wire.ask("DEL", "s", "t", "str", "end")
            for line in lines:
                wire.send(*line.split())
            got = [wire.reply() for _ in lines]
            ids = [raxlog.StreamID(reply[1]) for reply in got
                   if reply[0] == "$" and not reply[1].startswith(b"1844") and reply[1] != b"1-1"]
            assert ids[:5] == sorted(set(ids[:5]))
            replies.append(without_ids(got))
    assert replies[1] == replies[0]
    with raxlog.open(path) as store:
        store.stream("typed").append({"n": 0})
        store.stream("typed").configure(schema={"n": "bigint"}, schema_checked=True)
    with RespWire(address) as wire:  # one that the schema refuses costs the others nothing
        wire.socket.sendall(b"XADD typed * n 1\r\nXADD typed * n x\r\nXADD typed * n 3\r\n")
        assert [wire.reply()[0] for _ in range(3)] == ["$", "-", "$"]


def without_ids(replies: list[Any]) -> list[Any]:
    """Replies without the IDs that were made from the clock."""
    return [(kind, without_ids(value)) if isinstance(value, list)
            else (kind, "ID" if isinstance(value, bytes) and re.fullmatch(rb"17\d+-\d+|18\d{11}-\d+", value) else value)
            for kind, value in replies]
