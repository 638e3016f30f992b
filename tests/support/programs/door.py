"""A `raxlog serve` of the tests' own, as a real process."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

import forkserver


@contextmanager
def door(store: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Start one; its host and port."""
    with started([sys.executable, "-m", "raxlog", "serve", str(store), "--port", "0", *options]) as address:
        yield address


@contextmanager
def started(command: list[str]) -> Iterator[tuple[str, int]]:
    """A server that a command starts. It logs to a file: where a pipe is full that no test reads, it stands still."""
    with NamedTemporaryFile("ab") as log:
        server = forkserver.Popen(command, stderr=log)

        def logged() -> str:
            return Path(log.name).read_text(encoding="utf-8", errors="replace")

        try:
            while (found := re.search(r" on (\S+):(\d+)\n", logged())) is None:
                assert server.poll() is None, logged()
                time.sleep(0.01)
            yield found[1], int(found[2])
        finally:
            server.terminate()
            assert server.wait(30) == 0, logged()
            assert "CancelledError" not in logged(), logged()  # of sessions that the end of the server cuts short
