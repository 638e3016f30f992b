"""How the tests run the command line: in this process, or as one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import forkserver
import raxlog

CLI = [sys.executable, "-m", "raxlog"]
Run = Callable[..., tuple[int, str, str]]


def process(*arguments: str, stdin: bytes | None = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command line as a process of its own."""
    return forkserver.run([*CLI, *arguments], input=stdin, capture_output=True, timeout=60, check=False, **options)


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command line as a process that goes on; it does not outlive the block."""
    pipe = subprocess.PIPE
    with forkserver.Popen([*CLI, *arguments], stdin=pipe, stdout=pipe, stderr=pipe) as child:
        try:
            yield child
        finally:
            child.kill()


def output(child: subprocess.Popen[bytes]) -> IO[bytes]:
    """What a running command prints."""
    assert child.stdout is not None
    return child.stdout


def entries(path: str | Path, stream: str = "orders") -> list[tuple[str, list[tuple[bytes, bytes]]]]:
    with raxlog.open(path, readonly=True, encoding=None) as store:
        return [(str(entry.id), entry.pairs) for entry in store.stream(stream).range()]


def one_line(text: str | bytes) -> str:
    """The one line that an error is told in."""
    if isinstance(text, bytes):
        text = text.decode()
    assert text.startswith("raxlog: ")
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert "Traceback" not in text
    return text
