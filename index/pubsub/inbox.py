"""An inbox: a subscription's messages until they are taken, in one of three ways.

    for message in subscription                 the caller's thread sleeps until one comes
    async for message in subscription           the caller's task does
    subscribe(…, callback=f)                    f is called, by the one thread for callbacks

A producer signals the inbox; a taker looks first and then sleeps until the next signal. The last
signal is remembered before the look, so none is lost between the two:

    T1  seen = signal      T2  take: nothing there      T3  register      T4  sleep unless signal is another
    S1  signal = a new one     S2  wake all registered

Each of these steps is one step of the interpreter, and no lock is held over two of them: Ctrl-C,
which can come between any two, would leave it locked for ever.

Any number of threads and tasks may share an inbox; each message goes to one of them.
"""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ...storage import clocks, fork_hooks
from ...storage.errors import InvalidArgument
from ...storage.fork_hooks import look
from ...storage.threads import start
from ...storage.wake.stop import StopFlag, is_stopped, sleep, wake
from ...stream.node.arguments import duration_ms, whole

if TYPE_CHECKING:
    import asyncio

    from .ring import LiveMessage

M = TypeVar("M")

_LONGEST_SLEEP = 1.0  # seconds: a system signal that comes just before the wait for a lock does not interrupt it


class Inbox(Generic[M]):
    """The three ways to take messages, and the end of a subscription."""

    def __init__(self, callback: Callable[[M], object] | None, callbacks: Callbacks) -> None:
        if callback is not None and not callable(callback):
            raise InvalidArgument(f"callback={callback!r:.60} cannot be called; pass a function of one message")
        self._callback = callback
        self._callbacks = callbacks
        self._signal = object()  # the last one
        self._sleepers: list[Callable[[], object]] = []  # wakes each thread or task that sleeps
        self._closed = False
        self._error: BaseException | None = None  # why it was closed, if not by close()

    # -- for users ----------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it, or its store, has been closed, or this is a forked child: nothing more comes."""
        look()
        return self._closed

    def get(self, timeout: float | None = None, stop: StopFlag | None = None) -> M | None:
        """The next message; None if none comes within ``timeout`` seconds, or it is closed or stopped.

        0 does not wait, None waits for ever. ``stop`` is a raxlog.Stop (or a threading.Event): once it
        is set, no message is taken. ``iter(lambda: subscription.get(stop=stop), None)`` iterates until
        then. InvalidArgument for what is not a number of seconds. Raises the exception that ended the
        dispatcher of this process, such as CorruptionError.
        """
        if timeout is not None:
            duration_ms("timeout", timeout)
        self._refuse_callback()
        deadline = None if timeout is None else clocks.monotonic() + timeout
        while not is_stopped(stop):
            seen = self._signal
            message = self._take()
            if message is not None:
                return message
            if self.closed:
                self._raise_error()
                return None
            remaining = _LONGEST_SLEEP if deadline is None else min(deadline - clocks.monotonic(), _LONGEST_SLEEP)
            if remaining <= 0:
                break
            self._sleep(seen, remaining, stop)
        return None

    def _sleep(self, seen: object, seconds: float, stop: StopFlag | None) -> None:
        """Sleep until there is another signal than the one seen, or a stop, but no longer than that."""
        sleeper = threading.Lock()
        sleeper.acquire()
        wake_it = partial(wake, sleeper)
        self._sleepers.append(wake_it)
        try:
            if self._signal is seen:
                sleep(sleeper, seconds, stop)
        finally:
            with contextlib.suppress(ValueError):
                self._sleepers.remove(wake_it)

    def __iter__(self) -> Iterator[M]:
        return self

    def __next__(self) -> M:
        message = self.get()
        if message is None:
            raise StopIteration
        return message

    def __aiter__(self) -> AsyncIterator[M]:
        return self

    async def __anext__(self) -> M:
        import asyncio  # noqa: PLC0415 - only programs that await load it

        self._refuse_callback()
        loop = asyncio.get_running_loop()
        while True:
            seen = self._signal
            message = await self._take_soon()
            if message is not None:
                return message
            if self.closed:
                self._raise_error()
                raise StopAsyncIteration
            future: asyncio.Future[None] = loop.create_future()
            wake_it = partial(_wake_task, loop, future)
            self._sleepers.append(wake_it)
            try:
                if self._signal is seen:
                    await future
            finally:
                with contextlib.suppress(ValueError):
                    self._sleepers.remove(wake_it)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the subscription."""

    # -- for producers ------------------------------------------------------------------

    @abstractmethod
    def _take(self) -> M | None:
        """The next message if there is one now."""

    async def _take_soon(self) -> M | None:
        """_take() without holding up the event loop."""
        return self._take()

    def _call_back(self) -> bool:
        """Take one message and call the callback with it; whether there was one. What is raised is reported."""
        try:
            message = None if self._closed else self._take()
        except BaseException as error:
            _report(error)
            return False  # the next signal tries again; trying at once would loop
        if message is None:
            return False
        assert self._callback is not None
        try:
            self._callback(message)
        except BaseException as error:  # of any class, from the user's function: other callbacks go on
            _report(error)
        return True

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _refuse_callback(self) -> None:
        if self._callback is not None:
            raise InvalidArgument("this subscription has a callback, which gets its messages; to take them, pass none")


class LiveInbox(Inbox[M]):
    """An inbox for live messages that holds up to ``max_queued`` of them.

    ``dropped``         messages dropped because the queue was full
    ``missed_at_most``  messages that left the ring before this process looked, for any queues
    """

    def __init__(self, callback: Callable[[M], object] | None, callbacks: Callbacks, max_queued: int,
                 form: Callable[[LiveMessage, bytes | None], M]) -> None:
        whole("max_queued", max_queued, 1)
        super().__init__(callback, callbacks)
        self._max_queued = max_queued
        self._form = form
        self._waiting: deque[M] = deque()
        self.dropped: int = 0
        self.missed_at_most = 0

    def __len__(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True

    def _take(self) -> M | None:
        try:
            return None if self._closed else self._waiting.popleft()
        except IndexError:
            return None


def signal(inbox: Inbox[Any]) -> None:
    """Wake the takers: there may be something to take, or it is the end."""
    inbox._signal = object()
    for wake_it in tuple(inbox._sleepers):
        wake_it()
    if inbox._callback is not None and not inbox._closed:
        inbox._callbacks.call(inbox)


def end(inbox: Inbox[Any], error: BaseException | None = None) -> None:
    """End it: waiting takers return, and with an ``error`` raise it."""
    inbox._error = error
    shut(inbox)
    signal(inbox)


def shut(inbox: Inbox[Any]) -> bool:
    """Let nothing be taken any more; whether it was open."""
    was_closed, inbox._closed = inbox._closed, True
    return not was_closed


def forget(inbox: Inbox[Any]) -> None:
    """In a child after fork: end here; it is the parent's."""
    inbox._sleepers = []
    if fork_hooks.is_late:
        inbox._error = fork_hooks.unseen("a subscription")
    shut(inbox)


def put(inbox: LiveInbox[M], message: M) -> None:
    """Queue a message, unless there is no room."""
    if len(inbox._waiting) >= inbox._max_queued:
        inbox.dropped += 1
        return
    inbox._waiting.append(message)
    signal(inbox)


def formed(inbox: LiveInbox[M], message: LiveMessage, glob: bytes | None) -> M:
    """The message as users get it, the same object for all; ``glob`` is the pattern that matched, on a channel."""
    return inbox._form(message, glob)


def _report(error: BaseException) -> None:
    """Report an exception as one in a thread; whatever the program's hook raises, other callbacks go on."""
    thread = threading.current_thread()
    with contextlib.suppress(BaseException):
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))


def _wake_task(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def wake_it() -> None:
        if not future.done():
            future.set_result(None)

    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(wake_it)


class Callbacks:
    """The one thread that calls callbacks, one message of each subscription in turn.

    It begins with the first message for a callback and ends with close(). What a callback
    raises is reported by threading.excepthook, and the next message follows.
    """

    def __init__(self) -> None:
        self._wanted: SimpleQueue[Inbox[Any] | None] = SimpleQueue()
        self._queued: set[Inbox[Any]] = set()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call(self, inbox: Inbox[Any]) -> None:
        """Queue an inbox that may have messages, unless it is queued."""
        if self._closed or inbox in self._queued:
            return
        self._queued.add(inbox)
        self._wanted.put(inbox)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="raxlog callbacks", daemon=True)
                    start(thread)
                    self._thread = thread

    def close(self) -> None:
        """End the calls. A running callback is waited for, five seconds at most."""
        self._closed = True
        self._wanted.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def forget(self) -> None:
        """In a child after fork, which has no such thread."""
        self._wanted = SimpleQueue()
        self._thread = None
        self._closed = True

    def _run(self) -> None:
        while not self._closed:
            try:
                self._call_in_turn()
            except BaseException as error:  # raised in this thread from outside it, which may have lost an inbox
                self._queued = set()
                _report(error)

    def _call_in_turn(self) -> None:
        while (inbox := self._wanted.get()) is not None and not self._closed:
            self._queued.discard(inbox)  # before the look: a later message queues it again
            if inbox._call_back():
                self.call(inbox)
