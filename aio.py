"""raxlog.aio: the store for the tasks of an asyncio or uvloop loop. ``import raxlog`` does not load it.

    async with raxlog.aio.open("events.rax") as store:
        await store.stream("orders").append({"item": "book"})

The public name of tools/aio/. docs/asyncio.md shows how it is used.
"""

from .tools.aio.handles import AsyncGroup, AsyncState, AsyncStore, AsyncStream, open, worker
from .tools.aio.waits import Readiness
from .tools.aio.worker import AsyncWorker

__all__ = ["AsyncGroup", "AsyncState", "AsyncStore", "AsyncStream", "AsyncWorker", "Readiness", "open", "worker"]
