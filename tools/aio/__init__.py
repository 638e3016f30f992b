"""raxlog for asyncio: the same calls, awaitable, for any number of a loop's tasks.

    raxlog.aio ──> handles.py        what users hold
                   ├── waits.py      tasks that wait for entries, without a thread; async for
                   ├── worker.py     handlers that are coroutines
                   └── threads.py    threads (serial_executor.py): writes, in batches (batch.py); reads; others
"""
