"""Growth: how large the map is, and how it becomes larger, beside no read and no write.

Growth with a read open would kill that read, and memory kept from it is a SIGBUS. So growth
waits until this process reads no more, and nothing that LMDB lends (its buffers) outlives a
transaction here: every value is copied out.

The map is large and sparse from the start (64 GiB cost nothing until used), so growth is
rare. Another process may grow it too; LMDB then says MapResized at the next begin, and the
new size is taken over behind the same gate.

    pages of the file     records, their tree    free      reserve
                         |__________________|____________|_________|
                         occupied            may be taken, as long as the disk gives what lies behind

Deleting takes new pages first, so a commit that makes the store larger must leave some: at the file's end, on the disk
already, or free in it; above a ceiling (``max_map_size``) where there is one. One that does not may have them. What
is asked is how many pages the records occupy, so the reserve comes back by itself when it has been used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import lmdb

from ..files import directory, disk, lmdb_errors
from ..files.lmdb_file import pages_in
from .reader_gate import Gate

RESERVE = 64  # pages; a trim of 1,000 nodes takes some 20
_MOST_AHEAD = 256  # pages that are taken from the disk at a time


class Growth(ABC):
    """The size of one store's map. StoreMap opens and closes it."""

    path: Path
    gate: Gate
    max_map_size: int | None
    generation: Path
    enough_for: int  # pages: room for so many has been seen to; -1 before the first commit
    at_most: int  # pages that the records occupy, at most: a commit within ``enough_for`` need not look
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
            raise lmdb_errors.meaning(self.path, error) from error

    def _adopt(self) -> None:
        needed = self._bytes_used()
        size = max(needed, min(needed * 2, self._largest()))
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
            wanted = min(wanted, self._largest())
            if wanted <= size:
                return False
            try:
                self.gate.shut(lambda wanted=wanted: self._set_map_size(wanted))  # type: ignore[misc]
                return True
            except lmdb.MemoryError:
                continue  # no address space for so much
        return False

    def _largest(self) -> int:
        """The size beyond which the map does not grow: the ceiling, or what others use beyond it, and the reserve."""
        ceiling = self.max_map_size or 1 << 62
        reserve, used = RESERVE * int(self.live().stat()["psize"]), self._bytes_used()
        return reserve + (ceiling if used <= ceiling + reserve else used)

    def forget_room(self) -> None:
        """Another process may have taken it."""
        self.at_most = 1 << 62

    def require_room(self, occupied: int) -> None:
        """StoreFull where a commit would make the store larger and leave less than the reserve.

        ``occupied``: the pages of its records then. Under the writer's lock. Room is taken from the disk (20 µs) by
        the first commit, and by those that want more than there was.
        """
        self.at_most = occupied
        if occupied <= self.enough_for:
            return
        stat = self.live().stat()
        size, grows, is_first = int(stat["psize"]), occupied > pages_in(stat), self.enough_for < 0
        self.enough_for = max(0, self.enough_for)
        most = occupied + _MOST_AHEAD if self.max_map_size is None else self.max_map_size // size
        if grows and occupied > most:
            raise lmdb_errors.no_room(self.path)
        used, ahead = self.pages_used(), max(0, min(occupied // 4, _MOST_AHEAD, most - occupied))
        while grows or is_first:
            end = occupied + RESERVE + ahead
            try:
                if end > used:
                    disk.allocate(self.generation / directory.DATA, used * size, end * size)
                self.enough_for = occupied + ahead
                return
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise  # a signal's handler did
                if not ahead and grows:
                    raise lmdb_errors.meaning(self.path, error) from error
                is_first, ahead = False, 0

    def make_room(self) -> None:
        """Grow the map while less than a quarter of it, or 64 MB, is free at its end."""
        while True:
            size = int(self.live().info()["map_size"])
            free = size - self._bytes_used()
            if free >= min(size // 4, 64 << 20) or not self.grow():
                return
