"""Interest: a notification when a subject gets its first subscription, and when it loses its last.

    watch = store.watch("orders.eu.new")        any process on the store may change it
    for listening in watch: ...                  True or False now, then at each change

Only subscriptions to the very subject count, as in NATS, not ``>`` or ``orders.*``. Plain
subscriptions and each queue group are watched separately.

The state reported is that after a commit. A subscription that comes and goes between two
looks (some tenths of a millisecond) may not be seen, but the last state always is: nothing is
sent through a channel that could be full. Within one process or many the cost of a commit to a
watcher is one get, whatever else is subscribed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...storage import clocks
from ...storage.errors import StoreClosed
from ...storage.handles import made_by_a_call
from ...storage.trees.rax import RaxTransaction
from ...storage.wake.stop import StopFlag, is_stopped
from ...stream.entries.session import StoreSource, ask
from ...stream.group.waiter import Condition, WaitQueues
from ...stream.node.arguments import duration_ms
from . import subject as subjects
from .sublist import all_rows, head_of
from .subscription import name_bytes


def is_interested(txn: RaxTransaction, subject: str | bytes, queue: str | bytes | None = None) -> bool:
    """Whether this literal subject itself has a plain subscription, or one in this queue.

    SubjectError for a subject that is invalid or has a wildcard.
    """
    head = head_of(subjects.literal(subject))
    wanted = None if queue is None else name_bytes(queue, "queue")
    return any(row.queue == wanted for row in all_rows(txn, head, txn.get(head)))


class Watch:
    """Notifications of first and last interest in a literal subject. To be used by one thread.

    NATS' RegisterNotification and RegisterQueueNotification. SubjectError for a subject with a
    wildcard, or an invalid one; any number of watches may look at the same subject.
    """

    __slots__ = ("_closed", "_probe", "_reported", "_source")

    @made_by_a_call
    def __init__(self, source: StoreSource, subject: str | bytes, queue: str | bytes | None = None) -> None:
        self._source = source
        wanted = None if queue is None else name_bytes(queue, "queue")
        self._probe = Condition(is_interested, subjects.literal(subject), wanted)
        self._reported: bool | None = None
        self._closed = False

    def now(self) -> bool:
        """Whether there is interest now. Does not count as reported."""
        return bool(ask(self._source, self._probe.value))

    def wait(self, timeout: float | None = None, stop: StopFlag | None = None) -> bool | None:
        """The state, once it is not the one last returned; the first call returns at once.

        None after ``timeout`` seconds (None waits for ever), once ``stop`` is set, or once the watch
        has been closed. InvalidArgument for what is not a number of seconds.
        """
        if timeout is not None:
            duration_ms("timeout", timeout)
        deadline = None if timeout is None else clocks.monotonic() + timeout
        while not self._closed and not is_stopped(stop):
            state = self.now()
            if state is not self._reported:
                self._reported = state
                return state
            if not self._source.env.attached(WaitQueues).wait({self._probe: state}, deadline, stop=stop):
                return None
        return None

    def __iter__(self) -> Iterator[bool]:
        """The state now and at each change, until close() or until the store is closed."""
        with contextlib.suppress(StoreClosed):
            while (state := self.wait()) is not None:
                yield state

    def close(self) -> None:
        """Report nothing more. A wait under way ends with the next change, or with the store."""
        self._closed = True

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
