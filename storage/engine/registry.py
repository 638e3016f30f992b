"""The registry: one environment per store and process, however often it is opened; and the making of a store.

        open(path)   open(path)         LMDB forbids one process to map a file twice (its
             \\          /               locks are the process's), so all handles of a path
          Environment ── shares         share one environment, found by device and inode

The last share that is given back closes it. The environment is in the registry from before it
opens until after it has closed, and shares are known weakly. So an exception at any step of either
leaves an environment that is half open in the registry, or one with no share: the next opening ends it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

from .. import clocks
from ..errors import SettingsConflict, StoreError
from ..folder import directory
from ..fork_hooks import acquire_in_time, at_fork, look, release_all
from ..format import records
from ..format.keys import STORE_FORMAT, STORE_KEY
from ..known import alive
from ..locks.shared_file import SHARED
from ..log.ring import APPLIED_KEY, UNUSED, create_log
from ..tree import lmdb_errors
from ..tree.tree import Tree
from . import compaction
from .environment import Environment
from .open_options import OpenOptions

_environments: dict[tuple[int, int], Environment] = {}
_registry_lock = threading.RLock()
_shares: set[ref[Share]] = set()


class Share:
    """A handle's share of an environment, until it is closed or dropped."""

    __slots__ = ("__weakref__", "env")

    def __init__(self, env: Environment) -> None:
        self.env: Environment = env

    def close(self) -> None:
        """Give it back, once; the last one closes the environment. TransactionError inside a transaction.

        After an exception it is called again, or the next opening does the rest.
        """
        env = self.env
        look()  # in a forked child the lock is another
        with _registry_lock, lmdb_errors.translated(env.path):
            if _shares_of(env) in ([], [self]):
                env.require_outside()
            _shares.discard(ref(self))
            if not _shares_of(env):
                _close(env)


def read_only(path: Path) -> Share:
    """attach() with what suits a reader; SettingsConflict where this process has it open to write."""
    return attach(path, OpenOptions(readonly=True, create=False), dict)


def attach(path: Path, options: OpenOptions, settings: Callable[[], dict[str, object]]) -> Share:
    """A share of the environment of the store at ``path``: of the one that this process has, if it has it open.

    Makes the store (with ``settings()``) where the path is vacant, if ``create`` and not ``readonly``.
    SettingsConflict where it is open with another durability, mode or ceiling.
    """
    look()
    with _registry_lock, lmdb_errors.translated(path):
        if options.create and not options.readonly and directory.is_vacant(path):
            _create(path, settings(), options.max_map_size or 1 << 62)
        directory.generation(path)  # raises what is wrong with the path, if anything is
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        env = _environments.get(key)
        if env is not None:
            env.require_usable()
            if not env.is_open:
                _close(env)
                env = None
            elif conflict := env.options.conflict(options):
                gc.collect()  # a handle that was dropped may be left in a circle
                if not _shares_of(env):
                    _close(env)
                elif not env.inherited:  # a forked child is free to open the store in its own way
                    raise SettingsConflict(
                        f"{path} is open in this process with {conflict}={getattr(env.options, conflict)!r}; it cannot "
                        f"be opened again with {conflict}={getattr(options, conflict)!r}. Share the open store, or "
                        "close it first."
                    )
                env = None
        if env is None:
            env = _environments[key] = Environment(path, options)
            try:
                env.open()
                if not options.readonly and directory.is_untidy(path, env.map.generation):
                    compaction.tidy(env)
            except BaseException:
                _close(env)
                raise
        share = Share(env)
        _shares.add(ref(share, _shares.discard))
        return share


def _create(path: Path, settings: dict[str, object], room: int) -> None:
    """Build a new store at ``path``, which may take ``room`` bytes. Two creators at a time leave one whole store.

    ReadOnlyStore where nothing may be written, StoreFull where nothing fits. Cost: about
    ten flushes to disk, once in a store's life.
    """
    path = Path(os.path.realpath(path))  # beside the real place: a rename stays in its file system
    if not path.parent.is_dir():
        raise StoreError(f"{path} cannot be made: there is no folder {path.parent}. Make it first, or see to the name.")
    try:
        with directory.building(path) as place:
            _build(place, settings, room)
            try:
                directory.put_in_place(place, path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                directory.sync_folder(path.parent)  # another creator was first, and its store is whole
    except (OSError, lmdb_errors.Error) as error:
        raise directory.cannot_create(path, error) from error


def _build(folder: Path, settings: dict[str, object], room: int) -> None:
    data = folder / directory.FIRST_GENERATION
    data.mkdir()
    directory.reserve_lock(data)
    uuid = os.urandom(16)
    row = [STORE_FORMAT, uuid, clocks.now_ms(), 1, settings, 0]
    with Tree(data, 1 << 20, create=True) as made, made.write() as txn:
        txn.put(STORE_KEY, records.seal(STORE_KEY, row))
        txn.put(APPLIED_KEY, UNUSED)
        create_log(data, uuid, room)
    directory.furnish(folder)
    for file in (data / directory.DATA, folder / SHARED, folder / directory.CURRENT):
        directory.sync_file(file)
    directory.sync_folder(data)
    directory.sync_folder(folder)


def _shares_of(env: Environment) -> list[Share]:
    return [share for share in alive(_shares) if share.env is env]


def _close(env: Environment) -> None:
    env.close()
    for key in list(_environments):
        if _environments.get(key) is env:
            _environments.pop(key, None)


def opened(path: Path) -> Environment | None:
    """The environment of the store at ``path``, if this process has it open."""
    with contextlib.suppress(OSError), _registry_lock:
        status = path.stat()
        return _environments.get((status.st_dev, status.st_ino))
    return None


_held: list[Any] = []


def _before_fork() -> None:
    if not _held:
        _held.extend(filter(acquire_in_time, [_registry_lock]))


def _after_fork_in_child() -> None:
    global _registry_lock  # noqa: PLW0603 - the parent's lock may be held by a thread that is not here
    _registry_lock = threading.RLock()
    _held.clear()


at_fork(4, before=_before_fork)  # before the hooks of the environments: the last to be registered is the first to run
at_fork(after_in_parent=partial(release_all, _held), after_in_child=_after_fork_in_child)
