"""`raxlog serve` as a real process: unchanged clients, passwords, limits, bytes that are no request, kills."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
import redis
from door import door
from resp_wire import RespWire

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))


FUZZ_SECONDS = float(os.environ.get("RAXLOG_FUZZ_SECONDS", "30"))
LONG = os.environ.get("RAXLOG_LONG") == "1"
APPENDS_AT_ONCE = [1, 1, 1, 1, 30, 30, 100, 100]  # requests that a client sends before it reads
MOST_MEMORY = 600  # MB that the server may take, under requests of up to 512 MB that none completes


@pytest.fixture
def address(path: Path) -> Iterator[tuple[str, int]]:
    with door(path) as served:
        yield served


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_works_unchanged_and_the_store_has_it(address: tuple[str, int], path: Path, protocol: int) -> None:
    client: Any = redis.Redis(*address, protocol=protocol, decode_responses=True, client_name="me")
    first = client.xadd("orders", {"item": "book"})
    client.xgroup_create("orders", "billing", id="0")
    reply = client.xreadgroup("billing", "w1", {"orders": ">"}, count=10, block=100)
    rows = [(first, {"item": "book"})]
    assert reply in ([["orders", rows]], {"orders": [rows]})
    assert client.xpending("orders", "billing")["pending"] == 1
    assert client.xack("orders", "billing", first) == 1
    assert client.xinfo_stream("orders")["length"] == 1
    assert client.xinfo_groups("orders")[0]["name"] == "billing"
    assert client.xautoclaim("orders", "billing", "w2", 0)[0] == "0-0"
    with client.pipeline(transaction=True) as pipe:
        for number in range(300):
            pipe.xadd("many", {"n": number})
        pipe.xlen("many")
        assert pipe.execute()[-1] == 300
    with client.pipeline(transaction=False) as pipe:
        pipe.xadd("many", {"n": 1}, id="1-1").xlen("many").foo = None
        replies = pipe.execute(raise_on_error=False)
        assert isinstance(replies[0], redis.ResponseError)
        assert replies[1] == 300
    assert sorted(client.scan_iter()) == sorted(client.keys()) == ["many", "orders"]
    assert client.client_getname() == "me"
    payload = redis.Redis(*address).dump("orders")
    assert client.restore("copy", 0, payload) in (True, "OK", b"OK")
    with pytest.raises(redis.ResponseError, match="unknown command 'HSET'"):
        client.hset("h", "f", "v")
    with raxlog.open(path, encoding=None) as store:  # beside the server
        assert len(store.stream("many")) == 300
        store.stream("orders").append({"item": "pen"})
    assert client.xlen("orders") == 2
    client.close()


def test_the_databases_are_apart_and_only_their_prefix_is_in_the_names(address: tuple[str, int], path: Path) -> None:
    with RespWire(address) as wire:
        for database in (0, 3):
            wire.ask("SELECT", database)
            wire.ask("XADD", "s", f"{database + 1}-0", "n", 1)
        assert wire.ask("KEYS", "*") == ("*", [("$", b"s")])
        assert wire.ask("COPY", "s", "t", "DB", 0) == (":", 1)
        wire.ask("SELECT", 0)
        assert wire.ask("DBSIZE") == (":", 2)
        assert wire.ask("XLEN", "x" * 503)[0] == "-"
    with raxlog.open(path, encoding=None) as store:
        assert store.streams() == [b"\0db3\0s", b"s", b"t"]


def test_a_pipeline_that_changes_the_database_or_watches_does_so_in_its_order(address: tuple[str, int]) -> None:
    with RespWire(address) as wire:
        for lines in (["SET a zero", "SELECT 3", "SET a three", "SELECT 0", "GET a"],
                      ["WATCH a", "SET a changed", "MULTI", "SET a lost", "EXEC"], ["MULTI", "SET b 1", "EXEC"],
                      ["WATCH a", "SET a more", "UNWATCH", "MULTI", "SET a kept", "EXEC"], ["GET a"]):
            wire.socket.sendall("".join(f"{line}\r\n" for line in lines).encode())
            last = [wire.reply() for _ in lines][-1]
            assert last == {"EXEC": ("*", None) if "SET a lost" in lines else ("*", [("+", "OK")]),
                            "GET a": ("$", b"zero" if len(lines) > 1 else b"kept")}[lines[-1]]


def test_a_password_is_asked_for_and_other_machines_are_kept_out_without(path: Path) -> None:
    with door(path, "--requirepass", "secret") as address:
        with RespWire(address) as wire:
            assert wire.ask("XLEN", "s") == ("-", "NOAUTH Authentication required.")
            assert wire.ask("AUTH", "wrong") == ("-", "WRONGPASS invalid username-password pair or user is disabled.")
            assert wire.ask("AUTH", "other", "secret")[1].startswith("WRONGPASS")
            assert wire.ask("HELLO", 3)[1].startswith("NOAUTH HELLO")
            assert wire.ask("AUTH", "secret") == ("+", "OK")
            assert wire.ask("XLEN", "s") == (":", 0)
            wire.ask("RESET")
            assert wire.ask("XLEN", "s")[1].startswith("NOAUTH")
            wire.socket.sendall(b"*11\r\n")
            assert wire.reply() == ("-", "ERR Protocol error: unauthenticated multibulk length")
            assert wire.reply() is None
        assert redis.Redis(*address, password="secret").ping()
    for options in (["--bind", "0.0.0.0"], ["--bind", "::"]):
        refused = forkserver.run([sys.executable, "-m", "raxlog", "serve", str(path), "--port", "0", *options],
                                 capture_output=True, text=True, check=False, timeout=30)
        assert refused.returncode == 2
        assert "--requirepass" in refused.stderr


def test_too_many_clients_are_refused_and_a_socket_of_the_machine_serves(path: Path, tmp_path: Path) -> None:
    with door(path, "--maxclients", "2", "--unixsocket", str(tmp_path / "sock")) as address:
        with RespWire(address) as one, RespWire(address) as two:
            assert one.ask("PING") == two.ask("PING") == ("+", "PONG")
            with RespWire(address) as three:
                assert three.reply() == ("-", "ERR max number of clients reached")
                assert three.reply() is None
        time.sleep(0.1)
        local = redis.Redis(unix_socket_path=str(tmp_path / "sock"))
        assert local.ping()
        local.close()


def memory(wire: RespWire) -> int:
    """MB that the server has taken."""
    figures = dict(line.split(b":", 1) for line in wire.ask("INFO")[1].split() if b":" in line)
    status = Path(f"/proc/{int(figures[b'process_id'])}/status").read_text()
    return int(dict(line.split(":", 1) for line in status.splitlines())["RssAnon"].split()[0]) >> 10


@pytest.fixture
def large(path: Path) -> tuple[int, int]:
    """A stream of so many entries and bytes, before the server begins."""
    with raxlog.open(path, encoding=None) as store:
        store.stream("large", node_max_bytes=4096, node_max_entries=100).extend(
            {"n": number, "text": "x" * 100} for number in range(200_000))
    return 200_000, 30 << 20


def test_what_is_long_runs_beside_the_others(large: tuple[int, int], address: tuple[str, int]) -> None:
    with RespWire(address) as wire, RespWire(address) as other:
        for words, kind in ((["XRANGE", "large", "-", "+"], b"*"), (["DUMP", "large"], b"$"),
                            (["XREAD", "STREAMS", "large", "0"], b"*"), (["XTRIM", "large", "MAXLEN", 10], b":")):
            started, served, slowest = time.monotonic(), 0, 0.0
            wire.send(*words)
            wire.send("PING")
            got = bytearray()

            def receive(got: bytearray = got) -> None:
                while not got.endswith(b"+PONG\r\n"):
                    got += wire.socket.recv(1 << 20)

            reading = threading.Thread(target=receive)
            reading.start()
            while reading.is_alive():
                before = time.monotonic()
                assert other.ask("XLEN", "none") == (":", 0)
                assert other.ask("XADD", "s", "*", "n", 1)[0] == "$"
                served, slowest = served + 1, max(slowest, time.monotonic() - before)
            reading.join()
            print(words[0], f"{time.monotonic() - started:.2f} s, beside {served}, the slowest {slowest:.2f} s")
            assert got.startswith(kind)
            assert slowest < max(1.0, (time.monotonic() - started) / 2)
        assert got.startswith(b":%d\r\n" % (large[0] - 10))
        assert wire.ask("XLEN", "large") == (":", 10)


def test_one_that_does_not_read_costs_one_reply(large: tuple[int, int], address: tuple[str, int]) -> None:
    with RespWire(address) as deaf, RespWire(address) as wire:
        deaf.socket.sendall(b"XRANGE large - +\r\n" * 200)
        for _ in range(30):
            assert wire.ask("XADD", "s", "*", "n", 1)[0] == "$"
            time.sleep(0.1)
        assert memory(wire) < MOST_MEMORY
        if LONG:
            time.sleep(35)
            assert wire.ask("CLIENT", "LIST")[1].count(b"\n") == 1


def test_the_limits_of_nodes_can_be_changed_for_streams_that_are_there(
    address: tuple[str, int], newer_address: tuple[str, int], path: Path
) -> None:
    shown = []
    for server in (newer_address, address):
        with RespWire(server) as wire:
            wire.ask("DEL", "limited")
            for limit in (3, 5, 2):
                wire.ask("CONFIG", "SET", "stream-node-max-entries", limit)
                for _ in range(7):
                    wire.ask("XADD", "limited", "*", "n", 1)
            shown.append(dict(zip(*[iter(wire.ask("XINFO", "STREAM", "limited")[1])] * 2, strict=True)))
            wire.ask("CONFIG", "SET", "stream-node-max-entries", 100)
    key = ("$", b"radix-tree-keys")
    assert shown[0][key] == shown[1][key]
    with raxlog.open(path, encoding=None) as store:
        store.stream("own").append({"n": 1})
        with RespWire(address) as wire:
            wire.ask("CONFIG", "SET", "stream-node-max-entries", 3)
        assert store.stream("own").info().node_rule == "page"


def test_many_large_values_in_a_pipeline_are_not_held_at_once(address: tuple[str, int]) -> None:
    with RespWire(address) as wire, RespWire(address) as deaf:
        wire.ask("SET", "v", b"x" * (15 << 20))
        deaf.socket.sendall(b"GET v\r\n" * 200)
        for _ in range(20):
            assert wire.ask("PING") == ("+", "PONG")
            time.sleep(0.1)
        assert memory(wire) < MOST_MEMORY


def test_a_scan_meets_each_key_that_stays_however_others_come_and_go(address: tuple[str, int]) -> None:
    print("RAXLOG_SEED =", SEED)
    rng = random.Random(SEED)
    with RespWire(address) as wire:
        stay = {b"key %03d" % number for number in range(0, 300, 3)}
        wire.ask("SELECT", 3)
        for number, key in enumerate(sorted(stay)):
            wire.ask(*[("SET", key, 1), ("RPUSH", key, 1), ("XADD", key, "*", "n", 1)][number % 3])
        scans: dict[bytes, set[bytes]] = {}
        for name in (b"a", b"b"):
            cursor, scans[name] = b"0", set()
            for _ in range(100):
                _, (place, found) = wire.ask("SCAN", cursor, "COUNT", rng.randrange(1, 30))
                scans[name].update(value for _, value in found[1])
                cursor = place[1]
                key = b"key %03d" % rng.choice([number for number in range(300) if number % 3])
                wire.ask(*rng.choice([("SET", key, 1), ("DEL", key), ("XADD", key, "*", "n", 1)]))
                if cursor == b"0":
                    break
            assert cursor == b"0"
            assert stay <= scans[name]
        whole = wire.ask("SCAN", 0, "COUNT", 1000, "TYPE", "list")[1]
        assert whole[0] == ("$", b"0")
        assert {value for _, value in whole[1][1]} == set(sorted(stay)[1::3])
        assert wire.ask("SCAN", 12345, "COUNT", 1000)[1][0] == ("$", b"0")  # unknown: from the beginning


RAW = [
    b"PING\r\n", b"\r\n\r\nPING\n", b"  ECHO  'a b\\' c' \r\n", b'ECHO "\\x41\\n\\"z"\r\n', b"ECHO \"open\r\n",
    b"ECHO 'a'b\r\n", b"*1\r\n$4\r\nPING\r\n", b"*0\r\nPING\r\n", b"*-1\r\nPING\r\n", b"*x\r\n", b"*2147483648\r\n",
    b"*1\r\n$x\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$2147483648\r\n", b"*2\r\n$4\r\nECHO\r\n:5\r\n",
    b"*1\r\n4\r\nPING\r\n", b"x" * 70_000, b"*" + b"1" * 70_000,
    b"*1\r\n$" + b"1" * 70_000, b"*99999999999999999999\r\n", b"PING\r\nPING\r\nFOO\r\n*x\r\n",
]


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_bytes_that_are_no_request_get_what_redis_says(
    address: tuple[str, int], newer_address: tuple[str, int], raw: bytes
) -> None:
    replies = []
    for server in (newer_address, address):
        with RespWire(server) as wire:
            wire.socket.sendall(raw)
            wire.socket.shutdown(socket.SHUT_WR)
            got = []
            while (reply := wire.reply()) is not None:
                got.append(reply)
            replies.append(got)
    assert replies[1] == replies[0]


def test_fuzzed_bytes_harm_nobody_else(address: tuple[str, int], path: Path) -> None:
    print("RAXLOG_SEED =", SEED)
    rng = random.Random(SEED)
    words = [b"XADD", b"s", b"*", b"a", b"XREADGROUP", b"GROUP", b"g", b"STREAMS", b">", b"BLOCK", b"0", b"MULTI",
             b"EXEC", b"XCLAIM", b"RESTORE", b"COUNT", b"-1", b"HELLO", b"3", b"SELECT", b"XINFO", b"STREAM", b"FULL",
             b"\xff\0"]
    with RespWire(address) as good:
        half = RespWire(address)
        half.socket.sendall(b"*3\r\n$4\r\nXADD\r\n$1")
        for number in range(300):
            with RespWire(address) as bad:
                for _ in range(rng.randrange(1, 6)):
                    some = [rng.choice(words) for _ in range(rng.randrange(1, 9))]
                    data = bytearray(b"*%d\r\n" % len(some) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in some))
                    if rng.random() < 0.5:
                        data[rng.randrange(len(data))] = rng.randrange(256)
                    if rng.random() < 0.3:
                        del data[rng.randrange(len(data)):]
                    with suppress(OSError):  # the connection has been ended
                        bad.socket.sendall(data)
            assert good.ask("XADD", "mine", f"{number + 1}-0", "n", number)[0] == "$"
        half.socket.sendall(b"\r\ns\r\n$1\r\n*\r\n")
        assert good.ask("XLEN", "mine") == (":", 300)
        half.close()
    assert raxlog.check(path).ok


def hostile(rng: random.Random, words: list[bytes]) -> bytes:
    """A pipeline: of commands, some damaged, of huge claims, of nested and of random bytes."""
    data = bytearray()
    for _ in range(rng.randrange(1, 12)):
        kind = rng.random()
        some = [rng.choice(words) for _ in range(rng.randrange(1, 9))]
        if kind < 0.7:
            data += b"*%d\r\n" % len(some) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in some)
        elif kind < 0.8:
            data += b" ".join(some) + rng.choice([b"\r\n", b"\n", b"\0", b'"'])
        elif kind < 0.9:
            data += rng.choice([b"*1000000000\r\n", b"*3\r\n$500000000\r\n", b"$-1\r\n", b"*-5\r\n", b"%2\r\n*1\r\n*1"])
        else:
            data += rng.randbytes(rng.randrange(1, 3000))
    for _ in range(rng.choice([0, 0, 1, 5])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.choice([len(data), len(data), rng.randrange(1, len(data) + 1)])])


@pytest.mark.storm
def test_thirty_seconds_of_fuzzed_protocol_harm_neither_the_server_nor_another_client(path: Path) -> None:
    print("RAXLOG_SEED =", SEED)
    words = [
        b"RELOAD", b"CREATE", b"FULL", b"STREAM", b"CONSUMERS", b"LIST", b"ENCODING", b"NUMSUB", b"MKSTREAM", b"a",
        b"b", b"g", b"c", b"*", b">", b"$", b"0", b"-1", b"1-1", b"5", b"STREAMS", b"GROUP", b"BLOCK", b"COUNT", b"IDS",
        b"10", b"EX", b"99999999999999999999", b"", b"\xff\0", b"x" * 5000]
    wrong: list[bytes] = []
    started, served, slowest = time.monotonic(), 0, 0.0
    with door(path) as address, RespWire(address) as good:
        known = [row[1][0][1].upper() for row in good.ask("COMMAND")[1]]
        words += [name for name in known if name not in (b"MONITOR", b"FLUSHALL", b"FLUSHDB")]

        def attack(seed: int) -> None:
            rng = random.Random(seed)
            open_ones: list[RespWire] = []
            while time.monotonic() < started + FUZZ_SECONDS:
                with suppress(OSError):  # the connection has been ended
                    if len(open_ones) < 10 or rng.random() < 0.3:
                        open_ones.append(RespWire(address))
                    bad = rng.choice(open_ones)
                    bad.socket.settimeout(0.05)
                    bad.socket.sendall(hostile(rng, words))
                    if b"internal error" in (got := bad.socket.recv(1 << 16)):
                        wrong.append(got)
                if len(open_ones) > 10:
                    open_ones.pop(rng.randrange(10)).close()
            for one in open_ones:
                one.close()

        threads = [threading.Thread(target=attack, args=(SEED + number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            served += 1
            before = time.monotonic()
            assert good.ask("SELECT", 9) == ("+", "OK")
            assert good.ask("XADD", f"mine {SEED}", f"{served}-0", "n", served) == ("$", b"%d-0" % served)
            slowest = max(slowest, time.monotonic() - before)
            assert memory(good) < MOST_MEMORY
            time.sleep(0.01)
        assert good.ask("XLEN", f"mine {SEED}") == (":", served)
    print(f"{served} commands served beside, the slowest in {slowest:.2f} s")
    assert not wrong
    assert served > FUZZ_SECONDS * 3
    assert slowest < 10
    assert raxlog.check(path).ok


def append_until_killed(path: Path, seconds: float, stream: str) -> list[list[bytes]]:
    """Have clients append to a server that is killed after so long: the replies to each, in their order."""
    server = forkserver.Popen([sys.executable, "-m", "raxlog", "serve", str(path), "--port", "0"],
                              stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    host, _, port = server.stderr.readline().rpartition(" ")[2].strip().rpartition(":")
    replied: list[list[bytes]] = [[] for _ in APPENDS_AT_ONCE]

    def write(client: int, at_once: int) -> None:
        mine = replied[client]
        with suppress(OSError), RespWire((host, int(port))) as wire:
            while True:
                wire.socket.sendall("".join(f"XADD {stream} * {client} {number}\r\n" for number in
                                            range(len(mine), len(mine) + at_once)).encode())
                for _ in range(at_once):
                    if (reply := wire.reply()) is None:
                        return
                    mine.append(reply[1])

    threads = [threading.Thread(target=write, args=row) for row in enumerate(APPENDS_AT_ONCE)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stderr.close()
    for thread in threads:
        thread.join()
    return replied


@pytest.mark.parametrize("kills", [1, pytest.param(100 if LONG else 4, marks=pytest.mark.storm)])
def test_what_was_replied_is_there_after_kills_and_no_pipeline_has_a_gap(path: Path, kills: int) -> None:
    print("RAXLOG_SEED =", SEED)
    rng = random.Random(SEED)
    lengths: dict[str, int] = {}
    many = 0
    for number in range(kills):
        replied = append_until_killed(path, rng.uniform(0.1, 0.9), f"s{number}")
        there: list[list[bytes]] = [[] for _ in APPENDS_AT_ONCE]
        with raxlog.open(path, encoding=None) as store:
            for entry in store.stream(f"s{number}"):
                ((client, place),) = entry.pairs
                assert int(place) == len(there[int(client)])  # in its order, none twice
                there[int(client)].append(str(entry.id).encode())
        for ids, found, at_once in zip(replied, there, APPENDS_AT_ONCE, strict=True):
            assert found[: len(ids)] == ids
            assert len(found) <= len(ids) + at_once
        lengths[f"s{number}"] = sum(map(len, there))
        many += sum(map(len, replied))
    print(f"{kills} kills, {many} replies, all there, and {sum(lengths.values()) - many} more")
    assert many > 50
    with door(path) as address, RespWire(address) as wire:
        assert {name: wire.ask("XLEN", name)[1] for name in lengths} == lengths
    assert raxlog.check(path).ok
