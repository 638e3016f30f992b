"""`raxlog serve` and those that mean it no good: pages in a browser, clients that leave or do not read. Its memory."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import raxlog
from door import door, started
from raxlog.tools.resp.options import Options
from raxlog.tools.resp.server import serve
from resp_wire import RespWire

MB = 1 << 20
CLIENTS = 20 if os.environ.get("RAXLOG_LONG") else 7  # of each kind and way: those of a kind hold more than LEFT
LEFT = 90  # MB that the server may have more once all have left


@pytest.fixture
def freed_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the servers free goes back to the system: so what a process takes is what it holds."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")


@pytest.fixture
def address(path: Path) -> Iterator[tuple[str, int]]:
    with door(path) as served:
        yield served


def all_replies(wire: RespWire) -> bytes:
    """All that comes up to the end of the connection, however it ends."""
    got = bytearray()
    with suppress(ConnectionResetError):
        while some := wire.socket.recv(1 << 16):
            got += some
    return bytes(got)


HEADERS = b"Host: 127.0.0.1\r\nOrigin: http://other.example\r\nContent-Type: text/plain\r\n\r\n"
FOREIGN = [
    b"POST / HTTP/1.1\r\n" + HEADERS, b"post / http/1.1\r\n" + HEADERS, b"  \tPoSt /\n", b"POST\r\n", b'"POST" /\r\n',
    b"GET / HTTP/1.1\r\n" + HEADERS, b"DEL k HTTP/1.1\r\n" + HEADERS, b"OPTIONS * HTTP/1.0\r\n", b"hOsT: x\r\n",
    b"Host:127.0.0.1\r\n", b"*1\r\n$4\r\nPOST\r\n", b"*2\r\n$5\r\nhost:\r\n$1\r\nx\r\n",
    b"MULTI\r\nDEL k\r\nPOST / x\r\n",
    b"PING\r\n" * 300 + b"POST / HTTP/1.1\r\n", b"*1\r\n$4\r\nPING\r\nHost: x\r\n", b"BLPOP list 0.01\r\nPOST /\r\n",
]


@pytest.mark.parametrize("piece", [1 << 20, 7])
def test_nothing_behind_a_line_of_http_is_a_command(path: Path, piece: int) -> None:
    with raxlog.open(path) as store:
        store.state["k"] = b"v"
    with door(path) as address, RespWire(address) as good:
        for request in FOREIGN:
            with RespWire(address) as page:
                data = request + b"FLUSHALL\r\nDEL k\r\n*2\r\n$3\r\nDEL\r\n$1\r\nk\r\nEXEC\r\n"
                with suppress(OSError):  # the connection has been ended
                    for start in range(0, len(data), piece):
                        page.socket.sendall(data[start : start + piece])
                assert re.sub(rb"(\+PONG|\+OK|\+QUEUED|\*-1)\r\n", b"", all_replies(page)) == b"", request
            assert good.ask("GET", "k") == ("$", b"v"), request
        assert good.ask("SET", "answer", "HTTP/1.1 200 OK") == good.ask("SET", "x", "POST") == ("+", "OK")


OTHER = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a ticket \n", "SMTP": b"EHLO x\r\n",
    "PROXY": b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n", "SIP": b"INVITE sip:x SIP/2.0\r\n", "AMQP": b"AMQP\0\0\x09\x01\r\n",
    "PostgreSQL": b"\0\0\0\x08\x04\xd2\x16\x2f\n", "after empty lines": b"\r\n\0\r\nUSER x\r\n",
}


@pytest.mark.parametrize("protocol", OTHER)
def test_a_first_line_that_is_no_command_ends_the_connection_and_a_later_one_does_not(
    address: tuple[str, int], protocol: str
) -> None:
    with RespWire(address) as good:
        good.ask("SET", "k", "v")
        with RespWire(address) as other:
            other.socket.sendall(OTHER[protocol] + b"FLUSHALL\r\n")
            assert all_replies(other) == b"-ERR Protocol error: the first line is no command\r\n"
        assert good.ask("GET", "k") == ("$", b"v")
        for first in (b"PING\r\n", b"client id\r\n", b"*1\r\n$3\r\nFOO\r\n"):
            with RespWire(address) as person:
                person.socket.sendall(first + b"PING\r\nPNIG\r\nGET k\r\n")
                assert person.reply()[0] in "+:-"
                assert person.reply() == ("+", "PONG")
                kind, text = person.reply()
                assert (kind, "unknown command" in text) == ("-", True)
                assert person.reply() == ("$", b"v")


def test_a_page_that_sends_http_is_warned_of_in_the_log_and_not_with_each_request(path: Path) -> None:
    server = subprocess.Popen([sys.executable, "-m", "raxlog", "serve", str(path), "--port", "0"],
                              stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        address = "127.0.0.1", int(server.stderr.readline().rpartition(":")[2])
        for _ in range(20):
            with RespWire(address) as page:
                page.socket.sendall(b"POST / HTTP/1.1\r\n")
                assert all_replies(page) == b""
    finally:
        server.terminate()
        assert server.wait(30) == 0
        log = server.stderr.read()
        server.stderr.close()
    assert log.count("HTTP") == 1
    assert "127.0.0.1:" in log


def test_a_password_that_keeps_other_machines_out_cannot_be_taken_away(path: Path) -> None:
    with door(path, "--bind", "0.0.0.0", "--requirepass", "secret") as (_, port):
        with RespWire(("127.0.0.1", port)) as wire:
            assert wire.ask("AUTH", "secret") == ("+", "OK")
            kind, text = wire.ask("CONFIG", "SET", "requirepass", "")
            assert (kind, "--requirepass" in text) == ("-", True)
            assert wire.ask("CONFIG", "SET", "requirepass", "other") == ("+", "OK")
        with RespWire(("127.0.0.1", port)) as wire:
            assert wire.ask("GET", "k") == ("-", "NOAUTH Authentication required.")
            assert wire.ask("AUTH", "other") == ("+", "OK")
    with door(path, "--requirepass", "secret") as address, RespWire(address) as wire:
        wire.ask("AUTH", "secret")
        assert wire.ask("CONFIG", "SET", "requirepass", "") == ("+", "OK")  # of this machine alone


def test_a_unix_socket_is_for_its_owner_alone_whatever_the_mask(path: Path, tmp_path: Path) -> None:
    place = tmp_path / "sock"
    before = os.umask(0)
    try:
        for _ in range(2):  # over the one that is left there, too
            with door(path, "--unixsocket", str(place)):
                assert stat.S_IMODE(place.stat().st_mode) == 0o600
                with socket.socket(socket.AF_UNIX) as local:
                    local.connect(str(place))
                    local.sendall(b"PING\r\n")
                    assert local.recv(100) == b"+PONG\r\n"
    finally:
        os.umask(before)


def memory(wire: RespWire) -> int:
    """MB that the server has taken."""
    figures = dict(line.split(b":", 1) for line in wire.ask("INFO", "server")[1].split() if b":" in line)
    status = Path(f"/proc/{int(figures[b'process_id'])}/status").read_text()
    return int(dict(line.split(":", 1) for line in status.splitlines())["RssAnon"].split()[0]) >> 10


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether it comes true in that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def clients(wire: RespWire) -> int:
    """How many the server has."""
    return int(wire.ask("CLIENT", "LIST")[1].count(b"\n"))


def close(wire: RespWire) -> None:
    wire.close()


def reset(wire: RespWire) -> None:
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def quit_(wire: RespWire) -> None:
    with suppress(OSError):
        wire.socket.sendall(b"QUIT\r\n")
    wire.close()


def half_close(wire: RespWire) -> None:
    wire.socket.shutdown(socket.SHUT_WR)
    all_replies(wire)
    wire.close()


VALUE = b"y" * (4 * MB)
SET = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%b\r\n" % (len(VALUE), VALUE)
HELD = {
    "queued": b"MULTI\r\n" + SET, "half a request": SET[:-9],
    "a large request announced": b"*1\r\n$500000000\r\n" + VALUE,
    "behind one that waits": b"BLPOP list 0\r\n" + SET, "watched": b"WATCH a\r\nMULTI\r\n" + SET,
    "subscribed": b"HELLO 3\r\nSUBSCRIBE c\r\n" + SET[:-9], "monitoring": b"MONITOR\r\n" + SET[:-9],
    "refused": b"MULTI\r\n*2\r\n$3\r\nFOO\r\n$%d\r\n%b\r\n" % (len(VALUE), VALUE),
    "failed": b"*3\r\n$5\r\nRPUSH\r\n$3\r\nbig\r\n$%d\r\n%b\r\n" % (len(VALUE), VALUE) + b"MULTI\r\n",
    "a name": b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$%d\r\n%b\r\n" % (len(VALUE), VALUE),
    "a reply": b"XRANGE big - +\r\n" * 3, "values": b"GET value\r\n" * 3,
}
LEAVE = [close, reset, quit_, half_close]


@pytest.mark.usefixtures("freed_is_given_back")
def test_hundreds_of_clients_that_leave_in_any_way_leave_nothing_behind(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("big").extend({"n": number, "text": "x" * 400} for number in range(3000))
        store.state["value"] = VALUE
    with door(path) as address, RespWire(address) as wire:
        before = memory(wire)
        for what, data in HELD.items():
            for leave in LEAVE:
                for _ in range(CLIENTS):
                    one = RespWire(address)
                    with suppress(OSError):
                        one.socket.sendall(data)
                    if leave is half_close and what in ("behind one that waits", "monitoring"):
                        reset(one)
                    else:
                        leave(one)
                assert eventually(lambda: clients(wire) == 1), (what, leave.__name__)
            assert eventually(lambda: memory(wire) < before + LEFT, 10), (what, before, memory(wire))
            print(f"{what}: {before} -> {memory(wire)} MB")
        assert wire.ask("PUBLISH", "c", "m") == (":", 0)
        assert wire.ask("RPUSH", "list", "item") == (":", 1)


@contextmanager
def served_here(store: raxlog.Store) -> Iterator[tuple[str, int]]:
    """A server in a thread of this process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(serve(store, Options(port=0)), loop).result()
        yield "127.0.0.1", server.port
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_not_a_single_client_leaves_anything_behind(path: Path) -> None:
    store = raxlog.open(path)
    store.stream("big").extend({"n": number, "text": "x" * 400} for number in range(3000))
    store.state["value"] = VALUE
    with served_here(store) as address, RespWire(address) as wire:
        for repeated in range(2):  # the first time it loads modules
            for what, data in HELD.items():
                for leave in LEAVE:
                    if leave is half_close and what in ("behind one that waits", "monitoring"):
                        continue
                    tracemalloc.start()
                    try:
                        one = RespWire(address)
                        with suppress(OSError):
                            one.socket.sendall(data)
                        leave(one)
                        del one
                        assert eventually(lambda: clients(wire) == 1), (what, leave.__name__)
                        if repeated:
                            assert eventually(lambda: tracemalloc.get_traced_memory()[0] < len(VALUE) / 2, 10), (
                                what, leave.__name__, tracemalloc.take_snapshot().statistics("lineno")[:3])
                    finally:
                        tracemalloc.stop()


@pytest.mark.usefixtures("freed_is_given_back")
def test_what_waits_for_a_client_behind_a_reply_that_it_does_not_read_has_a_limit(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("big").extend({"n": number, "text": "x" * 400} for number in range(30_000))
    with door(path) as address, RespWire(address) as wire:
        with RespWire(address) as slow:
            slow.ask("HELLO", 3)
            slow.ask("SUBSCRIBE", "c")
            slow.socket.sendall(b"XRANGE big - +\r\n" * 2)
            message = b"m" * MB
            reached = [wire.ask("PUBLISH", "c", message)[1] for _ in range(100)]
            assert reached[:20] == [1] * 20
            assert reached[-1] == 0
            assert memory(wire) < 350
        assert eventually(lambda: clients(wire) == 1)


@pytest.mark.usefixtures("freed_is_given_back")
def test_what_a_client_sends_behind_a_command_that_waits_has_a_limit(address: tuple[str, int]) -> None:
    with RespWire(address) as wire, RespWire(address) as waits, RespWire(address) as floods:
        waits.socket.sendall(b"BLPOP list 0\r\n" + SET * 4)
        with suppress(OSError):  # the connection has been ended
            floods.socket.sendall(b"BLPOP list 0\r\n" + SET * 100)
        assert eventually(lambda: clients(wire) == 2)
        assert memory(wire) < 350
        assert wire.ask("RPUSH", "list", "item") == (":", 1)
        assert waits.reply() == ("*", [("$", b"list"), ("$", b"item")])
        assert [waits.reply() for _ in range(4)] == [("+", "OK")] * 4


@pytest.mark.usefixtures("freed_is_given_back")
def test_what_a_client_that_monitors_is_shown_of_large_commands_has_a_limit(address: tuple[str, int]) -> None:
    with RespWire(address) as wire, RespWire(address) as monitor:
        assert monitor.ask("MONITOR") == ("+", "OK")
        before = memory(wire)
        value = b"\0" * (4 * MB)
        assert wire.ask("SET", "k", value) == ("+", "OK")
        while (shown := monitor.reply())[1].find('"SET"') < 0:
            pass
        assert shown[1].endswith('"SET" "k" "' + r"\x00" * (4 * MB) + '"')
        assert wire.ask("SET", "k", b"\xff" * (100 * MB))[0] == "-"
        assert eventually(lambda: clients(wire) == 1)
        assert memory(wire) < before + 350


@pytest.mark.usefixtures("freed_is_given_back")
def test_the_client_that_holds_the_most_is_ended_where_all_hold_too_much(address: tuple[str, int]) -> None:
    with ExitStack() as all_of_them:
        wire, *others = [all_of_them.enter_context(RespWire(address)) for _ in range(41)]
        wire.ask("CONFIG", "SET", "maxmemory-clients", 64 * MB)
        assert wire.ask("CONFIG", "GET", "maxmemory-clients")[1][1] == ("$", b"%d" % (64 * MB))
        small = all_of_them.enter_context(RespWire(address))
        assert small.ask("MULTI") == ("+", "OK")
        small.ask("SET", "kept", 1)
        before = memory(wire)
        for other in others:
            with suppress(OSError):  # some have been ended
                other.socket.sendall(b"*1\r\n$500000000\r\n" + VALUE)
        with suppress(OSError):
            others[0].socket.sendall(VALUE * 3)
        assert eventually(lambda: clients(wire) < 35)
        assert memory(wire) < before + 64 + 32 + LEFT
        assert small.ask("EXEC") == ("*", [("+", "OK")])


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
def test_a_client_whose_machine_has_vanished_is_noticed(address: tuple[str, int]) -> None:
    with RespWire(address) as wire:
        assert wire.ask("PING") == ("+", "PONG")
        mine = f":{wire.socket.getsockname()[1]:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        ((timer, left),) = [row[5].split(":") for row in rows if row[2].endswith(mine)]
        assert (timer, 0 < int(left, 16) <= 300 * 100) == ("02", True)  # that of keep-alive, in hundredths of a second


def test_clients_leave_the_server_the_files_that_it_needs(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 1})
    limited = f"ulimit -n 180; exec {sys.executable} -m raxlog serve {path} --port 0"
    with started(["sh", "-c", limited]) as address, ExitStack() as idle, RespWire(address) as wire:
        assert wire.ask("PING") == ("+", "PONG")
        last = [idle.enter_context(RespWire(address)) for _ in range(200)][-1]
        assert last.reply() == ("-", "ERR max number of clients reached")
        assert wire.ask("SAVE") == ("+", "OK")  # the store is opened again
        assert wire.ask("XADD", "s", "*", "n", 2)[0] == "$"


def test_a_long_reply_ends_with_its_client_and_with_the_server(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("big", node_max_bytes=4096, node_max_entries=100).extend(
            {"n": number, "text": "x" * 50} for number in range(300_000))
    with door(path) as address, RespWire(address) as wire:
        started = time.monotonic()
        wire.socket.sendall(b"XRANGE big - +\r\n")
        wire.socket.recv(1)
        whole = time.monotonic() - started
        wire.close()
        gone = [RespWire(address) for _ in range(10)]
        for one in gone:
            one.socket.sendall(b"XRANGE big - +\r\n")
            one.socket.sendall(b"XRANGE big - +\r\n")
        time.sleep(whole / 10)
        for one in gone:
            reset(one)
        with RespWire(address) as last:
            started = time.monotonic()
            assert last.ask("XRANGE", "big", "-", "+", "COUNT", 1000)[0] == "*"  # behind those
            assert time.monotonic() - started < 5 * whole
    print(f"a reply in {whole:.2f} s")


def test_a_server_ends_at_once_though_a_long_reply_is_under_way(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("big", node_max_bytes=4096, node_max_entries=100).extend(
            {"n": number, "text": "x" * 50} for number in range(300_000))
    with ExitStack() as open_ones:
        with door(path) as address:
            wire = open_ones.enter_context(RespWire(address))
            started = time.monotonic()
            wire.socket.sendall(b"XRANGE big - +\r\n")
            wire.socket.recv(1)
            whole = time.monotonic() - started
            for _ in range(10):
                open_ones.enter_context(RespWire(address)).socket.sendall(b"XRANGE big - +\r\n")
            assert open_ones.enter_context(RespWire(address)).ask("PING") == ("+", "PONG")
            started = time.monotonic()
        ended = time.monotonic() - started
    print(f"a reply in {whole:.2f} s, the end in {ended:.2f} s")
    assert ended < max(1.0, whole / 2)
