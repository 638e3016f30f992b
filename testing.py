"""raxlog.testing: a store in memory, a clock that tests move, and handlers run inline.

    pytest_plugins = ["raxlog.testing"]             in conftest.py: raxlog_store, raxlog_async_store, raxlog_clock

It is no entry point of pytest: that would load raxlog in every run on a machine that has it. See docs/howto/testing.md.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, Unpack

from .storage.clocks import Clock
from .store import Store

if TYPE_CHECKING:
    from .stream.node.arguments import Appendable, StreamOptions
    from .stream.node.typed import Kind
    from .tools.aio.handles import AsyncStore

__all__ = ["Clock", "clock", "run", "store"]

P = ParamSpec("P")
T = TypeVar("T")
clock = Clock
_MEMORY, _ROOM = "/dev/shm", 64 << 20  # a file system in memory, and the bytes that must be free there


def _temporary(opener: Callable[Concatenate[str, P], Store]) -> Callable[P, AbstractContextManager[Store]]:
    @contextmanager
    def store(*args: P.args, **options: P.kwargs) -> Iterator[Store]:
        """A new store for one test, in memory if there is room, removed with the block. Options of raxlog.open()."""
        place = None
        with suppress(OSError):
            room = os.statvfs(_MEMORY)
            place = _MEMORY if os.access(_MEMORY, os.W_OK) and room.f_bavail * room.f_frsize >= _ROOM else None
        with (tempfile.TemporaryDirectory(prefix="raxlog-", dir=place, ignore_cleanup_errors=True) as folder,
              opener(os.path.join(folder, "test.rax"), *args, **options) as opened):
            yield opened

    return store


store = _temporary(Store.open)



def run(handler: Callable[..., T], fields: Appendable, /, *arguments: object, deliveries: int = 1,
        type: Kind = None, **options: Unpack[StreamOptions]) -> T:
    """Call a worker's handler with an entry, as a worker does; its value, or what it raises. Nothing is retried.

    ``fields`` are as for append(), ``type`` and ``options`` for Store.stream(). ``arguments`` is what the handler takes
    behind the entry: the transaction of ``worker(transaction=True)``. ``deliveries`` is 1 at the first attempt. Of an
    ``async`` handler it returns the coroutine, to be awaited.
    """
    with store() as opened:
        stream = opened.stream("jobs", type=type, **options)
        stream.append(fields)
        [entry] = stream.create_group("workers", start="0").read("worker")
    entry.deliveries = deliveries
    return handler(entry, *arguments)


with suppress(ImportError):  # without pytest all but the fixtures is there
    import pytest

    @pytest.fixture
    def raxlog_store() -> Iterator[Store]:
        """A new, empty store."""
        with store() as opened:
            yield opened

    @pytest.fixture
    def raxlog_clock() -> Iterator[Clock]:
        """A clock that the test moves."""
        with clock() as fake:
            yield fake

    @pytest.fixture
    def raxlog_async_store(raxlog_store: Store) -> AsyncStore:
        """The same store for asyncio, which the test opens: ``async with raxlog_async_store as store:``."""
        from .tools.aio.handles import open as open_async  # noqa: PLC0415 - only tests of asyncio load it

        return open_async(raxlog_store.path)
