"""Descriptors: a process that has no more of them to give."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def descriptors_taken(free: int = 0) -> Iterator[list[int]]:
    """All but so many of this process' 256 descriptors are taken; those that are, which may be closed and removed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield taken
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
