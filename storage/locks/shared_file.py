"""The file ``shared`` in a store's folder: what the processes that have the store open tell each other.

    0 … 263              mapped    where the line for the writer's lock ends, and words to sleep on (futex.py)
    512 … 519            written   the number of the last commit; sleeping readers of other processes watch for it
    4096 + 64 n          written   slot n, of a process that writes, and locks it (presence.py)
    2^31 - pid … 2^31    locked    the gate: by a process that looks for a slot (ofd_lock.py)
    2^31 + 1             locked    shared, by all that have the store open with readonly=True
    2^32 - pid … 2^32    locked    the writer's lock (writer_lock.py)
    2^33 + n · 2^23 …    locked    place n in the line for it, up to 2^61
    2^62 + owner         locked    by the process of that owner number, which listens live (index/pubsub/leases.py)

It is 4,096 bytes long from the beginning, so that what is mapped is there. None of it is needed once no process is
at work; of what was killed, the slots tell the next opening. Deleted or replaced in use, it is two files, and each
has a lock of its own: so processes write only while it is in place (store_files.py).
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

from .. import disk
from . import ofd_lock

SHARED = "shared"
WAKE = 512
SLOTS = 4096
READERS = ofd_lock.GATE + 1
LEASES = 1 << 62


def open_shared(store: Path) -> FileIO:
    """Open it to write. Where it is missing it is made. OSError."""
    file = ofd_lock.open_file(store / SHARED)
    if os.fstat(file.fileno()).st_size < SLOTS:
        disk.allocate(store / SHARED, 0, SLOTS)  # a page that has no room on the disk would be a bus error
    return file
