"""Sharing: one environment per store and process, whoever opens it and however often.

        open(path)   open(path)         LMDB forbids one process to map a file twice (its
             \\          /               locks are the process's), so all handles of a path
          Environment ── shares         share one environment, found by device and inode

The last share that is given back closes it. The environment stands in the list of all from before
it opens until after it has closed, and shares are known weakly. So an exception at any step of either
leaves an environment that is half open in the list, or one with no share: the next opening ends it.

The hooks for fork live here too, since they must reach every environment of the process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from ..engine.environment import ACQUIRE, Environment, release_all
from ..engine.store_map import BUFFER_WINDOW, MAX_READERS
from ..errors import SettingsConflict, TransactionError
from ..files import directory, ofd_lock
from . import compaction

T = TypeVar("T")

_environments: dict[tuple[int, int], Environment] = {}
_registry_lock = threading.RLock()


class Share:
    """A handle's share of an environment, until it is closed or dropped."""

    __slots__ = ("__weakref__", "env")

    def __init__(self, env: Environment) -> None:
        self.env = env

    def close(self) -> None:
        """Give it back, once; the last one closes the environment. TransactionError inside a transaction.

        After an exception it is called again, or the next opening does the rest.
        """
        env = self.env
        with _registry_lock:
            if list(env.shares) == [self] and env.commits.in_own_transaction():
                raise TransactionError(f"{env.path} cannot be closed inside a transaction; end that first")
            env.shares.discard(self)
            if not env.shares:
                _close(env)


def read_only(path: Path) -> Share:
    """attach() with what suits a reader; SettingsConflict where this process has it open to write."""
    return attach(path, readonly=True, create=False, durability="commit", map_size=None, max_map_size=None,
                  max_readers=MAX_READERS, uses_journal=True, settings=dict)


def attach(path: Path, *, readonly: bool, create: bool, durability: str, map_size: int | None,
           max_map_size: int | None, max_readers: int, uses_journal: bool,
           settings: Callable[[], dict[str, object]], buffer_window: float = BUFFER_WINDOW) -> Share:
    """A share of the environment of the store at ``path``: of the one that this process has, if it has it open.

    Makes the store (with ``settings()``) where the path is vacant, if ``create`` and not ``readonly``.
    SettingsConflict where it is open with another durability, mode or ceiling.
    """
    with _registry_lock:
        if create and not readonly and directory.is_vacant(path):
            directory.create(path, settings())
        directory.generation(path)  # says clearly what is wrong with the path, if anything is
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        env = _environments.get(key)
        if env is not None:
            asked = {"readonly": readonly, "durability": durability, "max_map_size": max_map_size,
                     "uses_journal": uses_journal, "buffer_window": buffer_window}
            if not env.opened or env.closed:
                _close(env)
                env = None
            elif conflict := next((name for name, value in asked.items() if getattr(env, name) != value), None):
                gc.collect()  # a handle that was dropped may be left in a circle
                if not env.shares:
                    _close(env)
                elif not env.inherited:  # a forked child is free to open the store in its own way
                    raise SettingsConflict(
                        f"{path} is open in this process with {conflict}={getattr(env, conflict)!r}; it cannot be "
                        f"opened again with {conflict}={asked[conflict]!r}. Share the open store, or close it first."
                    )
                env = None
        if env is None:
            env = _environments[key] = Environment(
                path, readonly=readonly, durability=durability, map_size=map_size, max_map_size=max_map_size,
                max_readers=max_readers, uses_journal=uses_journal, buffer_window=buffer_window,
            )
            try:
                env.open()
                if not readonly:
                    compaction.tidy(env)
            except BaseException:
                _close(env)
                raise
        share = Share(env)
        env.shares.add(share)
        return share


def _close(env: Environment) -> None:
    env.close()
    for key, value in list(_environments.items()):
        if value is env:
            del _environments[key]


def opened(path: Path) -> Environment | None:
    """The environment of the store at ``path``, if this process has it open."""
    with contextlib.suppress(OSError), _registry_lock:
        status = path.stat()
        return _environments.get((status.st_dev, status.st_ino))
    return None


_registry_held: list[Any] = []


def _before_fork() -> None:
    if not _registry_held:
        _registry_held.extend(filter(ACQUIRE, [_registry_lock]))
    for env in list(_environments.values()):
        env.before_fork()


def _after_fork_in_parent() -> None:
    for env in list(_environments.values()):
        env.after_fork_in_parent()
    release_all(_registry_held)


def _after_fork_in_child() -> None:
    global _registry_lock  # noqa: PLW0603 - the parent's lock may be held by a thread that is not here
    _registry_lock = threading.RLock()
    _registry_held.clear()
    for env in _environments.values():
        env.after_fork_in_child()


def at_fork(runs: int = 16, **hooks: Callable[[], None]) -> None:
    """Register hooks of os.fork() that may be run again: an exception that strikes one ends it, and goes no further.

    Each is registered many times, so that the next run does what the one before was kept from: on a busy
    machine signals of many milliseconds wait for the fork to end, and strike one run after the other.
    """
    for _ in range(runs):
        os.register_at_fork(**hooks)


def forget_in_child(known: WeakSet[T], forget: Callable[[T], None]) -> None:
    """Let each of those that are there at a fork be forgotten in the child."""

    def after_in_child() -> None:
        for one in list(known):
            forget(one)

    at_fork(after_in_child=after_in_child)


at_fork(after_in_child=ofd_lock.close_inherited)
at_fork(4, before=_before_fork)  # each run may wait for a transaction
at_fork(after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
