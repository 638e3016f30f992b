"""raxlog.aio: the store for the tasks of an asyncio or uvloop loop. ``import raxlog`` does not load it.

    async with raxlog.aio.open("events.rax") as store:
        await store.stream("orders").append({"item": "book"})

The public name of tools/aio/. docs/asyncio.md shows how it is used.
"""

from .tools.aio.store import AsyncStore, Opening, open
from .tools.aio.stream import AsyncDeadLetters, AsyncDeferred, AsyncGroup, AsyncState, AsyncStream
from .tools.aio.waits import AsyncFollower
from .tools.aio.worker import AsyncWorker

__all__ = [
    "AsyncDeadLetters", "AsyncDeferred", "AsyncFollower", "AsyncGroup", "AsyncState", "AsyncStore", "AsyncStream",
    "AsyncWorker", "Opening", "open",
]
