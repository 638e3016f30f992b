"""raxlog for asyncio: the same calls, awaitable, for any number of a loop's tasks.

    raxlog.aio ──> store.py, stream.py   what users hold
                   ├── waits.py          tasks that wait for entries, without a thread; async for
                   └── threads.py        three lanes (lane.py): writes, in batches (batch.py); reads; other calls
"""
