"""Growth: how large the map is, and how it becomes larger, beside no read and no write.

Growth with a read open would kill that read, and memory kept from it is a SIGBUS. So growth
waits until this process reads no more, and nothing that LMDB lends (its buffers) outlives a
transaction here: every value is copied out.

The map is large and sparse from the start (64 GiB cost nothing until used), so growth is
rare. Another process may grow it too; LMDB then says MapResized at the next begin, and the
new size is taken over behind the same gate. A ceiling (``max_map_size``) leaves a reserve
above itself, into which only calls may write that make the store no larger: without it
nothing could be deleted from a full store, since deleting takes new pages first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import lmdb

from . import faults
from .gate import Gate

_RESERVE = 1 << 20  # above the ceiling; a trim of 1,000 nodes takes some 20 pages of it


class Growth(ABC):
    """The size of one store's map. StoreMap opens and closes it."""

    path: Path
    gate: Gate
    max_map_size: int | None
    _lmdb: lmdb.Environment | None

    @abstractmethod
    def live(self) -> lmdb.Environment:
        """The LMDB environment."""

    @abstractmethod
    def _map_anew(self, size: int) -> None: ...

    def pages_used(self) -> int:
        """The pages of the file that hold something or have held something."""
        assert self._lmdb is not None
        return int(self._lmdb.info()["last_pgno"]) + 1

    def _bytes_used(self) -> int:
        assert self._lmdb is not None
        return self.pages_used() * int(self._lmdb.stat()["psize"])

    def _set_map_size(self, size: int) -> None:
        assert self._lmdb is not None
        before = self._lmdb.info()["map_size"]
        try:
            self._lmdb.set_mapsize(size)
        except lmdb.Error:
            self._map_anew(before)  # the old map is gone: without it the next access is a SIGSEGV
            raise

    def adopt_map_size(self) -> None:
        """Take over the growth of another process: twice what is used, up to the ceiling."""
        try:
            self.gate.shut(self._adopt)
        except lmdb.Error as error:
            raise faults.meaning(self.path, error) from error

    def _adopt(self) -> None:
        needed = self._bytes_used()
        size = needed * 2
        if self.max_map_size is not None:
            size = max(needed, min(size, self.max_map_size))
        try:
            self._set_map_size(size)
        except lmdb.MemoryError:
            self._set_map_size(needed)

    def grow(self) -> bool:
        """Double the map, up to the ceiling. False where nothing larger is to be had."""
        environment = self.live()
        environment.reader_check()  # pages held back by dead readers may be all that is missing
        size = int(environment.info()["map_size"])
        for wanted in (size * 2, size + size // 4):
            if self.max_map_size is not None:
                wanted = min(wanted, self.max_map_size)
            if wanted <= size:
                return False
            try:
                self.gate.shut(lambda wanted=wanted: self._set_map_size(wanted))  # type: ignore[misc]
                return True
            except lmdb.MemoryError:
                continue  # no address space for so much
        return False

    def set_reserve(self, on: bool) -> bool:
        """Open or close the reserve above the ceiling. False where there is no ceiling."""
        ceiling = self.max_map_size
        if ceiling is None:
            return False
        used = self._bytes_used()
        size = ceiling if used <= ceiling + _RESERVE else used  # or others have no such ceiling
        try:
            self.gate.shut(lambda: self._set_map_size(size + _RESERVE * on))
        except lmdb.Error:
            return False
        return True

    def make_room(self) -> None:
        """Grow the map while less than a quarter of it, or 64 MB, is free at its end."""
        while True:
            size = int(self.live().info()["map_size"])
            free = size - self._bytes_used()
            if free >= min(size // 4, 64 << 20) or not self.grow():
                return
