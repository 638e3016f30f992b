"""SubprocessTask: a function of a module, called in a process of its own that sends messages.

    this process                                           the subprocess
      SubprocessTask(copy, {"path": …})      ── argv ──>   imports the module, calls copy(send, path=…)
      iterated: ("copy", done, total)        <── pickle ── send("copy", done, total)
      result(), or the error it raises       <── pickle ── what copy returned or raised

Long reads of a live store run here: in the writer's own process they would hold it up, since LMDB's
binding undoes a write only while no thread of the process is in one of its calls, the map grows
only while no read is open, and a fork waits as well. The reader of another process only pins
pages, and damage that kills the reader (SIGBUS) kills the subprocess alone.

If this process dies the subprocess sees the end of its input and exits.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from ..storage.errors import CorruptionError, RaxlogError, StoreError

Progress = Callable[[str, int, int], None]
"""Called with the current step ("copy", "check", …), how much of it is done and the total: bytes, or records."""

_NICE = 5  # writers have priority where processors are scarce


class SubprocessTask:
    """A function running in a subprocess that ends with the ``with`` block at the latest.

    The function gets ``send`` first, then ``arguments``, which JSON can hold. Iterating yields what it
    sends; after that ``error`` is what it raised, if one of raxlog's errors or an OSError. Messages and
    result are pickled. StoreError if the process cannot be started. Costs about 0.15 s.
    """

    def __init__(self, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        if not sys.executable:
            raise StoreError("the path of the Python interpreter is unknown (sys.executable): no process can start.")
        task = json.dumps([function.__module__, function.__qualname__, arguments])
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main(sys.argv[1])"
        self.error: Exception | None = None
        self._result: tuple[Any] | None = None  # once received
        try:
            with contextlib.ExitStack() as resources:
                # A file cannot fill up as a pipe does.
                self._stderr = resources.enter_context(tempfile.TemporaryFile())
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code, task],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                )
                resources.pop_all()
        except OSError as error:
            raise StoreError(
                f"a process to read the store cannot be started ({sys.executable!r}: {error})."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process, self._stderr:  # waits for it, and closes the pipes
            pass

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        assert self._process.stdout is not None
        with contextlib.suppress(EOFError, pickle.UnpicklingError):  # the end, or a message cut off by a kill
            while True:
                kind, value = pickle.load(self._process.stdout)
                if kind == "message":
                    yield value
                elif kind == "error":
                    self.error = value
                else:
                    self._result = (value,)

    @property
    def failure(self) -> str | None:
        """How the process failed, or None. Waits for its end."""
        status = self._process.wait()
        if status < 0:
            try:
                return f"was killed by {signal.Signals(-status).name}"
            except ValueError:
                return f"was killed by signal {-status}"
        if self._result is not None:
            return None
        if self.error is not None:
            return f"failed: {type(self.error).__name__}: {self.error}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"failed: {lines[-1] if lines else f'status {status}'}"

    def result(self) -> Any:
        """What the function returned, after the last message; raises what it raised.

        CorruptionError if damage killed the process, StoreError for any other failure.
        """
        failure = self.failure
        if failure is None and self._result is not None:
            return self._result[0]
        if self.error is not None:
            raise self.error
        status = self._process.returncode
        if status in (-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT):
            raise CorruptionError(f"the store is damaged: the process that read it {failure}")
        if status < 0:
            raise StoreError(f"the process that read the store was ended from outside (signal {-status}). Try again.")
        raise StoreError(f"the process that read the store {failure}")


def run(function: Callable[..., Any], arguments: dict[str, Any], progress: Progress | None = None) -> Any:
    """Call a function in a subprocess and return its result; each message it sends calls ``progress``."""
    with SubprocessTask(function, arguments) as task:
        for message in task:
            if progress is not None:
                progress(*message)
        return task.result()


def main(task: str) -> None:
    """Run in the subprocess: perform one task and report on standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints must not mix with the messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C, and ends this process
    os.nice(_NICE)
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    sending = threading.Lock()

    def send(kind: str, value: Any) -> None:
        with sending:
            out.write(pickle.dumps((kind, value)))
            out.flush()

    try:
        module, function, arguments = json.loads(task)
        work = getattr(importlib.import_module(module), function)
        send("result", work(lambda *message: send("message", message), **arguments))
    except (RaxlogError, OSError) as error:
        send("error", error)


def _exit_at_end_of_input() -> None:
    sys.stdin.read()
    os._exit(1)
