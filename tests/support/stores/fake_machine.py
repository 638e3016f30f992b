"""A machine whose clock tests set, which they suspend and start again, for processes of their own.

    machine = FakeMachine(folder, compiler)
    with machine.process(path) as process:          a Python with the store open, in which expressions are evaluated
        process.ask("store.stream('q').append({})")
        machine.set_clock(3600)
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).with_suffix(".c")
_PROGRAM = """
import sys, threading, time
from datetime import UTC, datetime, timedelta
import raxlog
def later(call):
    def run():
        found = call()
        print(repr((found, time.monotonic())), flush=True)
    threading.Thread(target=run, daemon=True).start()
def begin(path, readonly):
    global store, queue, group
    store = raxlog.open(path, readonly=readonly, encoding=None)
    queue = store.stream("queue")
    group = queue.group("workers")
print("'ready'", flush=True)
for line in sys.stdin:
    print(repr(eval(line)), flush=True)
if "store" in globals():
    store.close()
"""


class Asked:
    """A process that evaluates what it is asked: with ``store``, ``queue`` (a stream) and ``group``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self.heard() == "ready"

    def heard(self) -> Any:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return eval(line, {})  # of our own

    def begin(self, expression: str) -> None:
        """Have it evaluate an expression, whose value is heard later."""
        assert self._process.stdin is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()

    def ask(self, expression: str) -> Any:
        """The value of an expression."""
        self.begin(expression)
        return self.heard()

    def kill(self) -> None:
        """SIGKILL, and wait for it to be gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


class FakeMachine:
    """What its processes take for the machine they run on."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self._library, self.clock = folder / "fake_machine.so", folder / "machine"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(_SOURCE)], check=True)
        self._numbers = [0, 0, 0]
        self.start_again(0)

    def _tell(self) -> None:
        with self.clock.open("r+b" if self.clock.exists() else "w+b") as file:
            file.write(struct.pack("<3q", *self._numbers))

    def set_clock(self, ahead: int) -> None:
        """Set the wall clock so many seconds ahead of the real one."""
        self._numbers[0] = ahead
        self._tell()

    def suspend(self, seconds: int) -> None:
        """Sleep, and be resumed so much later: no other clock goes on in that time."""
        self._numbers[1] += seconds
        self._tell()

    def start_again(self, ago: int) -> None:
        """Have been started so many seconds before the real machine, with a boot ID of its own. No process is left."""
        self._numbers[2] = -ago
        self.clock.with_name(self.clock.name + ".boot").write_text(f"{uuid.uuid4()}\n")
        self._tell()

    def environment(self, namespace: int | None = None) -> dict[str, str]:
        """The variables of a process on it; ``namespace``: of a time namespace that has the boot clock ahead."""
        more = {} if namespace is None else {"FAKE_NAMESPACE": str(namespace)}
        return {**os.environ, "LD_PRELOAD": str(self._library), "FAKE_MACHINE": str(self.clock), **more}

    @contextmanager
    def process(self, path: Path | None, *, readonly: bool = False, namespace: int | None = None) -> Iterator[Asked]:
        """A process with the store open; without ``path``, one that does so with ``begin(path, readonly)``."""
        with subprocess.Popen([sys.executable, "-c", _PROGRAM], env=self.environment(namespace), text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                asked = Asked(process)
                if path is not None:
                    asked.ask(f"begin({str(path)!r}, {readonly})")
                yield asked
                assert process.stdin is not None
                if process.poll() is None:
                    process.stdin.close()
                    process.wait(30)
            finally:
                process.kill()
