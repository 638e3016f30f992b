"""The harness: puts the log under raxlog from outside, in this process. Never imported by the product."""

from __future__ import annotations

import os
from typing import Any

from ..engine import environment
from ..engine.store_map import StoreMap
from ..files import map_lock
from . import log as logs
from .log import Log
from .log_commits import LogCommits
from .room import Room


class LogMap:
    """LMDB's environment with the log in front of it."""

    def __init__(self, real: Any, log: Log) -> None:
        self.real = real
        self.log = log
        self.begin = log.read  # the spike writes through the log alone

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def info(self) -> Any:
        return {**self.real.info(), "last_txnid": self.log.end()}

    def sync(self, force: bool = False) -> None:
        self.log.flush()
        self.real.sync(force)

    def close(self) -> None:
        self.log.close()
        self.real.close()


def install(ring: int = logs.RING) -> None:
    """From here on each opened store has the log. RAXLOG_LOG_RING: a smaller one."""
    ring = int(os.environ.get("RAXLOG_LOG_RING", ring))
    environment.Commits = LogCommits  # type: ignore
    original = StoreMap._map

    def _map(self: StoreMap, folder: Any, size: int) -> None:
        original(self, folder, size)
        ceiling, free = self._options.max_map_size, os.statvfs(folder)
        if ceiling is not None:
            self.mapped.set_mapsize(self._largest())  # type: ignore
        small = min(ceiling or 1 << 62, free.f_bavail * free.f_frsize) < 1 << 26
        log = self.log = Log(folder, self.mapped, self._options.durability != "relaxed",  # type: ignore
                             min(ring, logs.LEAST) if small else ring)
        log.room = Room(log, self, folder, self._options)
        self.mapped = LogMap(self.mapped, log)  # type: ignore

    StoreMap._map = _map  # type: ignore
    before = StoreMap.__init__

    def init(self: StoreMap, path: Any, options: Any, *others: Any) -> None:
        before(self, path, options._replace(uses_journal=False), *others)
        # LMDB's own two flushes: metasync stays on whatever the durability
        self.flushes_meta_itself = False

    StoreMap.__init__ = init  # type: ignore
    opened = map_lock.open_held

    def open_held(*args: Any, **options: Any) -> Any:
        options["metasync"] = True
        return opened(*args, **options)

    map_lock.open_held = open_held

