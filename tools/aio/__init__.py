"""raxlog for asyncio: the same calls, awaitable, for any number of a loop's tasks.

    raxlog.aio ──> store.py, stream.py   what users hold
                   ├── methods.py        the plain methods made awaitable
                   ├── group_read.py     a group read, and its delivery taken back where its task is cancelled
                   ├── entries.py        async for: range(), follow()
                   ├── turn.py           a task in a line of waiting readers, without a thread
                   └── threads.py        three lanes (lane.py): writes, in batches (batch.py); reads; other calls
"""
