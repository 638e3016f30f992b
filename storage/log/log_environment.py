"""The log's environment: what the layers above use of LMDB's, with the log in front of it.

    begin()              a view of LMDB's snapshot and the overlay; for writing a transaction that appends a record
    sync()               flush the log
    copy()               LMDB's, and what the log has besides
    info()               the number of the last transaction is the log's end
    stat(), …            LMDB's own
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb

from ..files import directory, log_file
from .log import MOST_MEMORY, Log, put_changes, unseal
from .overlay import View
from .room import ENOUGH

if TYPE_CHECKING:
    from ..engine.store_map import StoreMap


class LogEnvironment:
    """LMDB's environment of one store with a log, entered."""

    def __init__(self, store_map: StoreMap, folder: Path, real: lmdb.Environment, shares: bool) -> None:
        self._real = real
        self.log = log = Log(folder, real, store_map.options, shares=shares, store_map=store_map)
        self.begin = log.begin
        self.set_mapsize = log.set_mapsize
        store_map.enough_for = ENOUGH

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def info(self) -> dict[str, Any]:
        """LMDB's, but for the last transaction."""
        return {**self._real.info(), "last_txnid": self.log.end()}

    def open_db(self, key: bytes | None = None, *, txn: View) -> object:
        """LMDB's, by its transaction."""
        return self._real.open_db(key, txn=txn.lmdb())

    def sync(self, force: bool = False) -> None:
        """Have the disk hold all that has been committed; a checkpoint has flushed what it wrote."""
        self.log.flush()

    def copy(self, path: str, compact: bool = False, txn: View | None = None) -> None:
        """A copy of LMDB's file with all that a view sees, or that is committed now. The log goes on beside it."""
        with self.log.read() if txn is None else contextlib.nullcontext(txn) as view:
            held = view.lmdb()
            self._real.copy(path, compact=compact, txn=held)
            changes = view.overlay.changes(unseal(held.get(log_file.APPLIED))[0], view.upto)
        if changes:
            size = 2 * os.stat(f"{path}/{directory.DATA}").st_size + MOST_MEMORY
            with lmdb.open(path, map_size=8 * size, create=False) as made, made.begin(write=True) as raw:
                put_changes(raw, changes, view.upto, 0)

    def close(self) -> None:
        """Leave, and close LMDB's."""
        try:
            self.log.close()
        finally:
            self._real.close()
