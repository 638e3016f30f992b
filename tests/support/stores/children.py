"""Child processes for tests: forked, reporting through a pipe, never left behind.

    child = Child(work)      runs work(say) in a forked process; say(x) sends x to the parent
    child.heard()            the next thing said, or EOFError when it has ended
    child.finish()           everything said till the end; fails the test if the child failed
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any


class Child:
    """A forked process that runs ``work``; killed at the end of the ``with`` block."""

    def __init__(self, work: Callable[[Callable[[Any], None]], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(reading)
                signal.signal(signal.SIGINT, signal.default_int_handler)

                def say(what: Any) -> None:
                    data = pickle.dumps(what)
                    os.write(writing, struct.pack("<I", len(data)) + data)

                work(say)
                status = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(status)
        os.close(writing)
        self._reading = os.fdopen(reading, "rb")
        self.status: int | None = None
        self._waiting = threading.Lock()  # a timer's thread may kill it as the block ends

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.kill()
        self._reading.close()

    def heard(self) -> Any:
        """The next thing the child said."""
        size = self._reading.read(4)
        if len(size) < 4:
            self.wait()
            raise EOFError(f"the child has ended with status {self.status}")
        data = self._reading.read(struct.unpack("<I", size)[0])
        return pickle.loads(data)

    def all_heard(self) -> list[Any]:
        """Everything it says until it ends."""
        said = []
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                said.append(self.heard())
        return said

    def finish(self) -> list[Any]:
        """Everything it says until it ends, which must be without an error."""
        said = self.all_heard()
        self.wait()
        assert self.status == 0, f"the child ended with status {self.status}; it had said {said}"
        return said

    def send(self, number: int) -> None:
        """Send the child a signal, if it is still there."""
        if self.status is None:
            os.kill(self.pid, number)

    def wait(self) -> None:
        """Wait for its end."""
        with self._waiting:
            if self.status is None:
                self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """SIGKILL, and wait for it to be gone."""
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        self.wait()


def wait_until_stopped(pid: int) -> None:
    """Wait until a process has stopped (SIGSTOP)."""
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.002)
