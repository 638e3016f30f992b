"""A redis-server of the tests' own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loopback import free_port, wait_until_listening


@contextmanager
def redis_server(program: str, folder: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Start one that saves nothing; its host and port."""
    port = free_port()
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
         "--dir", str(folder), *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until_listening(server, port)
        yield "127.0.0.1", port
    finally:
        server.terminate()
        server.wait(10)
