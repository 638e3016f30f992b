"""redis-cli on `raxlog serve`: at a terminal, --pipe, --scan, --bigkeys and the like, as on a Redis 8.2."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from door import door
from resp_wire import RespWire

pytestmark = pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli")
LINES = ["ping", "xadd s 1-1 a b", "xadd s 1-1 a b", "xrange s - +", "xgroup create s g 0",
         "xreadgroup group g c streams s >", "xpending s g", "xinfo groups s", "type s", "select 3",
         'set k "a b\\x41"', "get k", "foo bar", "multi", "xlen s", "exec", "set", "keys *",
         "xinfo groups nosuch", "client no-evict on", "object encoding k", "select 0"]


@pytest.fixture
def addresses(path: Path, newer_address: tuple[str, int]) -> Iterator[list[tuple[str, int]]]:
    """Redis and the server, both empty."""
    with door(path) as address:
        for one in (newer_address, address):
            with RespWire(one) as wire:
                wire.ask("FLUSHALL")
        yield [newer_address, address]


def cli(address: tuple[str, int], *words: str, given: bytes = b"") -> str:
    return subprocess.run(["redis-cli", "-h", address[0], "-p", str(address[1]), *words], input=given, check=True,
                          capture_output=True, timeout=30).stdout.decode()


def at_a_terminal(address: tuple[str, int], lines: list[str]) -> str:
    """What a person sees who types these lines, each after the answer to the one before."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="dumb", HOME="/nonexistent")
        os.execvp("redis-cli", ["redis-cli", "-h", address[0], "-p", str(address[1])])
    seen = b""
    for line in [*lines, ""]:
        deadline = time.monotonic() + 20
        while not seen.endswith(b"> ") and time.monotonic() < deadline:
            if select.select([fd], [], [], 0.05)[0]:
                seen += os.read(fd, 1 << 16)
        os.write(fd, line.encode() + b"\n")
        seen += b"\n"
    os.close(fd)
    os.waitpid(pid, 0)
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]|:\d+(?=[\[>(])", "", seen.decode())


def test_a_person_at_a_terminal_sees_what_redis_would_show(addresses: list[tuple[str, int]]) -> None:
    theirs, ours = (at_a_terminal(one, LINES) for one in addresses)
    assert ours == theirs
    assert "Appends" in at_a_terminal(addresses[1], ["help xadd"])


def test_its_modes_work_as_with_redis(addresses: list[tuple[str, int]]) -> None:
    shown = []
    for address in addresses:
        requests = b"".join(b"*5\r\n$4\r\nXADD\r\n$1\r\np\r\n$4\r\n%d-0\r\n$1\r\na\r\n$1\r\nb\r\n" % number
                            for number in range(10, 99))
        piped = cli(address, "--pipe", given=requests)
        cli(address, given=b"rpush l a b\nset x y\nxadd z 1-1 a b\n")
        figures = [line for line in cli(address, "--bigkeys").splitlines() if "found '" in line or "avg size" in line]
        shown.append([piped, sorted(cli(address, "--scan", "--pattern", "[lpxz]").split()), sorted(figures)])
    assert shown[1] == shown[0]
