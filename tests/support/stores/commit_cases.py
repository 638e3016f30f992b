"""What the tests of group commit share: threads that start together, and a leader that is held."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import raxlog
from raxlog.storage import crash_point
from raxlog.storage.log.transaction import WriteTransaction


def in_threads(count: int, work: Callable[[int], None], seconds: float = 60) -> list[BaseException]:
    """Run work(0) … work(count - 1) at the same time; what they raised. Fails if one hangs."""
    raised: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return raised


@contextlib.contextmanager
def listening(function: Callable[[str], None]) -> Iterator[None]:
    """Have each crash point call the function."""
    crash_point.listen(function)
    try:
        yield
    finally:
        crash_point.listen(None)


def submit(store: raxlog.Store, operation: Callable[[WriteTransaction], Any], timeout: float = 30.0) -> Any:
    return store._env.commits.submit(operation, timeout)


class HeldBatch:
    """Keeps a leader inside its transaction until let_go(), so that others gather behind it."""

    def __init__(self, store: raxlog.Store) -> None:
        self._inside = threading.Event()
        self._go = threading.Event()
        self._store = store
        self.thread = threading.Thread(target=submit, args=(store, self._hold), daemon=True)
        self.thread.start()
        assert self._inside.wait(10)

    def _hold(self, txn: WriteTransaction) -> None:
        self._inside.set()
        assert self._go.wait(60)

    def wait_for_queue(self, length: int) -> None:
        queue = self._store._env.commits.queue
        deadline = time.monotonic() + 10
        while len(queue) < length:
            assert time.monotonic() < deadline, f"only {len(queue)} calls wait"
            time.sleep(0.001)

    def let_go(self) -> None:
        self._go.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


def put(key: bytes, value: bytes = b"v") -> Callable[[WriteTransaction], bool]:
    return lambda txn: txn.put(b"\0" * 7 + b"\7" + key, value)


def stored(store: raxlog.Store, key: bytes) -> bytes | None:
    with store._env.read() as txn:
        value: bytes | None = txn.get(b"\0" * 7 + b"\7" + key)
        return value
