"""A machine whose clock tests set, which they suspend and start again, for processes of their own.

    machine = FakeMachine(folder, compiler)
    with machine.process(path) as process:          a Python with the store open, in which expressions are evaluated
        process.ask("store.stream('q').append({})")
        machine.set_clock(3600)
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forkserver

# Loaded before libc. FAKE_MACHINE is a file of three numbers: seconds by which the wall clock has been set, for which
# the machine has slept, and that the boot clock is behind; with .boot behind its name, the file that /proc shows as
# boot ID. FAKE_NAMESPACE is a number of seconds by which a time namespace moves the boot clock.
_LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long long *machine;
static long long moved;
static char boot[4096];

static void begin(void) {  /* as soon as its variables name a machine: a process may be a fork of one that was not */
    const char *path = getenv("FAKE_MACHINE"), *seconds = getenv("FAKE_NAMESPACE");
    if (machine || !path) return;
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    moved = seconds ? atoll(seconds) : 0;
    snprintf(boot, sizeof boot, "%s.boot", path);
    machine = mmap(0, 24, PROT_READ, MAP_SHARED, file, 0);
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int answer = syscall(SYS_clock_gettime, clock, now);
    begin();
    if (machine && clock == CLOCK_REALTIME) now->tv_sec += machine[0] + machine[1];
    if (machine && clock == CLOCK_BOOTTIME) now->tv_sec += machine[1] - machine[2] + moved;
    return answer;
}

static const char *shown(const char *path) {
    begin();
    return machine && !strcmp(path, "/proc/sys/kernel/random/boot_id") ? boot : path;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return syscall(SYS_openat, AT_FDCWD, shown(path), flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

ssize_t readlink(const char *path, char *into, size_t size) {
    if (machine && getenv("FAKE_NAMESPACE") && !strcmp(path, "/proc/self/ns/time"))
        return snprintf(into, size, "time:[%lld]", moved);
    return syscall(SYS_readlinkat, AT_FDCWD, path, into, size);
}
"""
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


@functools.cache
def _compiled(compiler: str) -> str:
    """The library, for all machines: so one forkserver serves their processes."""
    folder, ours = tempfile.mkdtemp(prefix="raxlog-fake-machine-"), os.getpid()
    atexit.register(lambda: os.getpid() == ours and shutil.rmtree(folder))
    library = os.path.join(folder, "fake_machine.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", library], input=_LIBRARY.encode(),
                   check=True)
    return library


class FakeMachine:
    """What its processes take for the machine they run on."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self._library, self.clock = _compiled(compiler), folder / "machine"
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
        return {**os.environ, "LD_PRELOAD": self._library, "FAKE_MACHINE": str(self.clock), **more}

    @contextmanager
    def process(self, path: Path | None, *, readonly: bool = False, namespace: int | None = None) -> Iterator[Asked]:
        """A process with the store open; without ``path``, one that does so with ``begin(path, readonly)``."""
        with forkserver.Popen([sys.executable, "-c", _PROGRAM], env=self.environment(namespace), text=True,
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
