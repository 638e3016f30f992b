"""Work aside: a long read of a live store, done by a process of its own.

    this process                                   the process aside
      run(copy, {"path": …}, progress)  ── argv ──>  imports the function, calls it with say()
      progress("copy", done, total)     <── lines ──   say("copy", done, total)
      its result, or its error          <── a line ──  the end

A read that lasts in the writer's own process holds the writer up: LMDB's binding undoes a write
only while no thread of the process is in one of its calls, the map grows only while none
reads, and a fork waits as well. Another process's reader holds up nobody; it pins pages, that
is all. Besides, damage that kills whoever reads it (a SIGBUS) kills that process only.

If this process dies the other one notices (the end of its input) and ends too.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from ..storage import errors
from ..storage.errors import CorruptionError, RaxlogError, StoreError

Progress = Callable[[str, int, int], None]
"""Told what is being done ("copy", "check", …), how much of it, and of how much: bytes, or records."""

_NICE = 5  # writers go first where the processor is short


def run(function: Callable[..., Any], arguments: dict[str, Any], progress: Progress | None = None) -> Any:
    """Call a module's function in a process of its own, with ``say`` first; its result.

    ``arguments`` and the result are what JSON can hold. Errors of raxlog's come through as
    they are; StoreError if the process cannot be started, CorruptionError if damage killed it.
    About 0.15 s on top of what the function does.
    """
    if not sys.executable:
        raise StoreError("Python does not say where it lies (sys.executable), so no process can be started.")
    task = json.dumps([function.__module__, function.__qualname__, arguments])
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main(sys.argv[1])"
    last: Any = None
    with tempfile.TemporaryFile() as said:  # a file cannot fill up as a pipe does
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", code, task],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, encoding="ascii",
            )
        except OSError as error:
            raise StoreError(
                f"a process to read the store cannot be started ({sys.executable!r}: {error})."
            ) from error
        try:
            assert child.stdout is not None
            for line in child.stdout:
                message = _message(line)
                if message is not None:
                    last = message
                    if progress is not None and "say" in message:
                        progress(*message["say"])
            status = child.wait()
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        if last is not None and "result" in last:
            return last["result"]
        said.seek(0)
        raise _told(last, status, said.read().decode(errors="replace").strip())


def _message(line: str) -> dict[str, Any] | None:
    """What the process said; None for a line that its death cut off."""
    try:
        message: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return message


def _told(last: Any, status: int, said: str) -> Exception:
    if last is not None and "error" in last:
        name, message, places = last["error"]
        if name == "CorruptionError":
            return CorruptionError(message, **places)
        if name == "OSError":
            return OSError(*places)
        kind = getattr(errors, name, None)
        if kind is None:
            return StoreError(f"the process that read the store failed: {name}: {message}")
        wrong: Exception = kind(message)
        return wrong
    if status in (-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT):
        killed = signal.Signals(-status).name
        return CorruptionError(f"the store is damaged: reading it killed the process that did, with {killed}")
    if status < 0:
        return StoreError(f"the process that read the store was ended from outside (signal {-status}). Try again.")
    return StoreError(f"the process that read the store failed (status {status}): {said.rpartition(chr(10))[2]}")


def main(task: str) -> None:
    """What the process aside does: one task, whose lines go to standard output."""
    lines = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever else prints something must not come between them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to hear, who ends this
    os.nice(_NICE)
    threading.Thread(target=_die_with_the_caller, daemon=True).start()
    talking = threading.Lock()

    def tell(what: dict[str, Any]) -> None:
        with talking:
            lines.write(json.dumps(what) + "\n")
            lines.flush()

    try:
        module, function, arguments = json.loads(task)
        work = getattr(importlib.import_module(module), function)
        tell({"result": work(lambda *said: tell({"say": said}), **arguments)})
    except CorruptionError as error:
        places = {"stream": error.stream, "node": error.node, "offset": error.offset}
        tell({"error": ["CorruptionError", error.what, places]})
    except RaxlogError as error:
        tell({"error": [type(error).__name__, str(error), None]})
    except OSError as error:
        tell({"error": ["OSError", str(error), [error.errno, error.strerror, error.filename]]})
    except Exception as error:  # named by run(): the caller has no other way to hear of it
        tell({"error": [type(error).__name__, str(error), None]})


def _die_with_the_caller() -> None:
    sys.stdin.read()
    os._exit(1)
