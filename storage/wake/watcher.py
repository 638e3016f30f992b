"""The watcher: the one thread of a process that waits for a store's wake file.

    no reader waits   park: sleep whatever is committed, until unpark()
    some wait         V1  wait for an event, or the safety period
                      V2  drain the events
                      V3  look, in a NEW read transaction; release those that have something to see
                      V5  after an event let 0.5 ms pass: one look for a burst of commits

V2 comes before V3: the event of a commit is queued once the commit is visible, so a look that begins
after that event was drained sees the commit.

The look without an event, once in a safety period, is for a writer that was killed between its commit
and the touch. Two such looks in a row that find a commit mean that the file has no events; then, and
where the kernel has none, the watcher polls: after 1 ms, twice as long each time, at most 100 ms.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import StoreClosed, StoreError
from ..fork_hooks import at_exit
from ..notices import noted
from ..threads import start
from .wake_file import WakeFile

SAFETY_PERIOD = 1.0  # seconds; ten idle processes cost 0.2 % of a core with it, 0.4 % with half of it
COALESCING = 0.0005
_FIRST_NAP, _LONGEST_NAP = 0.001, 0.1
_NAPS_PER_TRY = 64  # while it polls: looks between two attempts to get events from the kernel


class Watcher:
    """Runs until close(), or until a look raises StoreClosed.

    ``path``    the wake file
    ``wanted``  whether any reader waits
    ``look``    V3; returns the number of its transaction, 0 if it got none. Its argument: whether
                it may be quick, since no event has come
    ``ended``   called once, when no look will follow
    """

    def __init__(self, path: Path, wanted: Callable[[], bool], look: Callable[[bool], int],
                 ended: Callable[[], None], safety_period: float = SAFETY_PERIOD) -> None:
        self._wanted = wanted
        self._look = look
        self._ended = ended
        self._safety_period = safety_period
        self._parked = False
        self._closed = False
        self._missed = 0  # looks in a row that found a commit without an event
        self._file = WakeFile(path)
        name = f"raxlog watcher of {path}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        at_exit(self.close)  # a thread that reads LMDB must not see the interpreter end
        try:
            start(self._thread)
        except StoreError:
            atexit.unregister(self.close)
            self._file.close()
            raise
        except BaseException:
            # Ctrl-C while start() waits for the thread: it runs, or will in a moment, and uses the
            # file. It ends by itself and closes it, without ``ended``: the next wait gets a new watcher.
            self._ended = lambda: None
            self._closed = True
            self._file.interrupt()
            raise

    @property
    def polling(self) -> bool:
        """Whether it has to look by itself, for want of events."""
        return self._missed >= 2 or not self._file.watching

    def unpark(self) -> None:
        """A reader waits now. Not to be called once ``ended`` has been."""
        if self._parked:
            self._parked = False
            self._file.interrupt()

    def close(self) -> None:
        """End the thread and wait for its end."""
        self._closed = True
        atexit.unregister(self.close)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._file.interrupt()
            self._thread.join(5.0)

    def forget(self) -> None:
        """In a child after fork: close what was inherited, and touch nothing else of it.

        The inherited inotify queue is the parent's: reading it would steal events.
        """
        atexit.unregister(self.close)
        self._file.close()

    @noted
    def _run(self) -> None:
        try:
            self._watch()
        except StoreClosed:
            pass  # that is how it ends
        finally:
            self._ended()
            self._file.close()

    def _watch(self) -> None:
        file = self._file
        number = naps = 0
        nap = _FIRST_NAP
        while not self._closed:
            # Set first, then asked: a reader that comes in between is seen, or sees the flag.
            self._parked = True
            parked = self._parked = not self._wanted()
            if parked:
                came = False
                file.pause()
            else:
                came = file.wait(nap if self.polling else self._safety_period)  # V1
            before = number
            # Without an event there is nothing to drain, and mostly nothing to see.
            number = self._drain_and_look() if came or parked else self._look(True)
            if came or parked:
                self._missed = naps = 0
                nap = _FIRST_NAP
            elif before in (0, number):
                nap = min(nap * 2, _LONGEST_NAP)
            else:
                # Found without an event. One may just be on its way; two in a row are not.
                self._missed += 1
                nap = _FIRST_NAP
                if self._missed <= 2:
                    file.watch_again()
            naps += 1
            if naps % _NAPS_PER_TRY == 0:
                file.watch_again()
            if came:
                time.sleep(COALESCING)  # V5

    def _drain_and_look(self) -> int:
        self._file.drain()  # V2
        return self._look(False)  # V3
