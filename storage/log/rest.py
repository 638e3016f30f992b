"""Rest: how a process reads that may write none of a store's files, while no other has the store open.

    reader   R1 lock a byte of the data file, shared    R2 is a process inside? is log-state as it was?    read, unlock
    others   W1 enter the log (INSIDE)                  W2 is that byte locked? no checkpoint, until it is not

LMDB does not know of such a read: its second transaction from then on would overwrite pages that the read uses. Both
sides lock before they look (R1 before R2, W1 before W2), so one at least sees the other: the process inside makes no
checkpoint until the read has ended, or the reader gives up. Read permission suffices for such a lock. A process that
came and went between two reads has changed the words of log-state; then the reader maps the store anew.
"""

from __future__ import annotations

import contextlib
import os
from io import FileIO
from pathlib import Path

from ..errors import ReadOnlyStore
from ..folder import directory, log_file
from ..locks import ofd_lock
from ..tree import lock_file

_READ = 0  # the byte of the data file


class NotAtRest(ReadOnlyStore):
    """Another process is inside, or has been."""


class Rest:
    """A generation that this process found at rest, and reads without a place in LMDB's table."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._data, self._state = folder, folder / directory.DATA, folder / log_file.STATE
        self._words: bytes | None = None  # of log-state

    def read(self) -> FileIO:
        """Begin a read, which lasts until the returned file is closed. Raises NotAtRest. About 20 µs."""
        try:
            file = ofd_lock.open_file(self._data, os.O_RDONLY)
        except FileNotFoundError:
            if self._words is None:
                raise
            raise self._disturbed() from None  # a compaction has made another generation
        try:
            ofd_lock.take(file, _READ, 1, shared=True)
            words, is_free = b"", True
            with contextlib.suppress(FileNotFoundError), ofd_lock.open_file(self._state, os.O_RDONLY) as state:
                is_free = ofd_lock.is_free(state, log_file.INSIDE, 1)
                words = os.pread(state.fileno(), log_file.HEADER, log_file.HEADER)
            if not is_free or self._words not in (None, words):
                raise self._disturbed()
            self._words = words
        except BaseException:
            file.close()
            raise
        return file

    def _disturbed(self) -> NotAtRest:
        return NotAtRest(directory.cannot_register(self._folder, lock_file.holder(self._folder)))


def is_read(folder: Path) -> bool:
    """Whether such a read is open in another process."""
    with ofd_lock.open_file(folder / directory.DATA, os.O_RDONLY) as file:
        return not ofd_lock.is_free(file, _READ, 1)
