"""A `raxlog serve` of the tests' own, as a real process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def door(store: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Start one; its host and port."""
    server = subprocess.Popen([sys.executable, "-m", "raxlog", "serve", str(store), "--port", "0", *options],
                              stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        line = server.stderr.readline()
        found = re.search(r" on (\S+):(\d+)$", line)
        assert found is not None, line + server.stderr.read()
        yield found[1], int(found[2])
    finally:
        server.terminate()
        assert server.wait(30) == 0, server.stderr.read()
        server.stderr.close()
