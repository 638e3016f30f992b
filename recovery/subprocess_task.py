"""Work aside: a long read of a live store, done by a process of its own.

    this process                                   the process aside
      Aside(copy, {"path": …})          ── argv ──>  imports the function, calls it with say()
      iterated: ("copy", done, total)   <── pickles ── say("copy", done, total)
      result(), or its error            <── a pickle ─ the end

A read that lasts in the writer's own process holds the writer up: LMDB's binding undoes a write
only while no thread of the process is in one of its calls, the map grows only while none
reads, and a fork waits as well. Another process's reader holds up nobody; it pins pages, that
is all. Besides, damage that kills whoever reads it (a SIGBUS) kills that process only.

If this process dies the other one notices (the end of its input) and ends too.
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
"""Told what is being done ("copy", "check", …), how much of it, and of how much: bytes, or records."""

_NICE = 5  # writers go first where the processor is short


def run(function: Callable[..., Any], arguments: dict[str, Any], progress: Progress | None = None) -> Any:
    """Call a module's function in a process of its own; its result. ``progress`` is called with what it says.

    Raises what the function raises, and as Aside does; CorruptionError if damage killed the process.
    """
    with Aside(function, arguments) as aside:
        for said in aside:
            if progress is not None:
                progress(*said)
        return aside.result()


class Aside:
    """A process of its own that calls a module's function, with ``say`` first. It does not outlive the block.

    Iterated, it gives what the function says, as it comes, and then has its ``error``, if one of
    raxlog's or an OSError. ``arguments`` are what JSON can hold, what is said and the result what can be pickled.
    StoreError if the process cannot be started. About 0.15 s on top of what the function does.
    """

    def __init__(self, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        if not sys.executable:
            raise StoreError("Python does not say where it lies (sys.executable), so no process can be started.")
        task = json.dumps([function.__module__, function.__qualname__, arguments])
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main(sys.argv[1])"
        self.error: Exception | None = None
        self._result: tuple[Any] | None = None  # once it has come
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - a file cannot fill up as a pipe does
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, task],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            )
        except OSError as error:
            self._stderr.close()
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
        with contextlib.suppress(EOFError, pickle.UnpicklingError):  # the end, or what its death cut off
            while True:
                kind, what = pickle.load(self._process.stdout)
                if kind == "say":
                    yield what
                elif kind == "error":
                    self.error = what
                else:
                    self._result = (what,)

    @property
    def ending(self) -> str | None:
        """How it ended, in words, if not as it should."""
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
        """What the function returned, once all it said has been read. CorruptionError if damage killed the process."""
        ending = self.ending
        if ending is None and self._result is not None:
            return self._result[0]
        if self.error is not None:
            raise self.error
        status = self._process.returncode
        if status in (-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT):
            raise CorruptionError(f"the store is damaged: the process that read it {ending}")
        if status < 0:
            raise StoreError(f"the process that read the store was ended from outside (signal {-status}). Try again.")
        raise StoreError(f"the process that read the store {ending}")


def main(task: str) -> None:
    """What the process aside does: one task, which reports on standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints something must not come between them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to hear, who ends this
    os.nice(_NICE)
    threading.Thread(target=_die_with_the_caller, daemon=True).start()
    talking = threading.Lock()

    def tell(kind: str, what: Any) -> None:
        with talking:
            out.write(pickle.dumps((kind, what)))
            out.flush()

    try:
        module, function, arguments = json.loads(task)
        work = getattr(importlib.import_module(module), function)
        tell("result", work(lambda *said: tell("say", said), **arguments))
    except (RaxlogError, OSError) as error:
        tell("error", error)


def _die_with_the_caller() -> None:
    sys.stdin.read()
    os._exit(1)
