"""Children of the stage: one runs the workload and is killed, one runs the check and may die of it.

    stage ── fork ──► workload(folder, ack)     a process group of its own, with all that it forks
                        └─ ack(x) ──► acks      a file, which keeps each ack
    stage ── fork ──► check(folder, acks)       for many cases, until it fails or dies; then a new one

Killing is always SIGKILL to the whole group, and waits for its last process. These are forks and no
SubprocessTask: a case must not cost the start of an interpreter, and the workload must be killable.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import select
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any
from zlib import crc32

from ..record.recorder import Control, Event, read_log

Ack = Callable[[Any], None]
Workload = Callable[[Path, Ack], object]
Check = Callable[[Path, list[Any]], object]

_MARK = b"\xa5word"  # begins each ack: a kill can cut one off in the middle of the file
_FRAME = struct.Struct("<II")  # length, CRC-32
_COUNT = struct.Struct("<Q")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CHECKS_PER_CHILD = 1000
_ENDED, _FAILED = 0, 70


@dataclass
class RunResult:
    acks: list[Any]
    status: int | None  # an exit status, minus a signal, or None: killed, since it did not end in time
    error: str = ""  # its traceback, where it raised
    error_types: tuple[str, ...] = ()  # the class that was raised and its bases
    events: list[Event] = field(default_factory=list)
    calls: int = 0
    fired: int = 0
    fired_at: str = ""
    folder: str = ""  # its real path
    inode: int = 0  # of the folder

    def ending(self) -> str:
        if self.status is None:
            return "did not end in time"
        if self.status < 0:
            return f"died of {signal.Signals(-self.status).name}"
        return "ended" if self.status == _ENDED else f"raised {self.error.strip().splitlines()[-1]}"


def become_reaper() -> None:
    """Make orphans of the workload children of this process, so that it can wait for them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def read_acks(path: Path) -> list[Any]:
    """The acks, in order, without those that a kill has cut off."""
    data = path.read_bytes() if path.exists() else b""
    acks = []
    at = data.find(_MARK)
    while at >= 0:
        body = at + len(_MARK) + _FRAME.size
        size, check = _FRAME.unpack_from(data, at + len(_MARK)) if body <= len(data) else (0, -1)
        packed = data[body : body + size]
        whole = len(packed) == size and crc32(packed) == check
        if whole:
            acks.append(pickle.loads(packed))
        at = data.find(_MARK, body + size if whole else at + 1)
    return acks


def ack_of(event: Event) -> Any:
    """The value of an ACK record."""
    return pickle.loads(event.data[len(_MARK) + _FRAME.size :])


class Runner:
    def __init__(self, workload: Workload, folder: Path, scratch: Path, *, control: Control | None = None,
                 log: bool = False, recorder: ctypes.CDLL | None = None, before: Callable[[], None] | None = None,
                 acks: Path | None = None) -> None:
        self._acks = acks or scratch / "acks"
        self._error = scratch / "error"
        self._log = scratch / "log"
        self._control = control
        self._folder = folder
        for path in (self._log, self._error, *(() if acks else (self._acks,))):
            path.unlink(missing_ok=True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid: int = os.fork()
        if self.pid == 0:
            self._run(workload, folder, recorder, log, before)
        with contextlib.suppress(OSError):  # both sides do it, since neither may be too late
            os.setpgid(self.pid, self.pid)
        self._descriptor = os.pidfd_open(self.pid)
        self._status: int | None = None
        self._ended = False

    def _run(self, workload: Workload, folder: Path, recorder: ctypes.CDLL | None, log: bool,
             before: Callable[[], None] | None) -> None:
        status = _FAILED
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the stage's handler
            os.setpgid(0, 0)
            die_with_parent()
            acks = os.open(self._acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

            def ack(what: Any = None) -> None:
                data = pickle.dumps(what, protocol=5)
                os.write(acks, _MARK + _FRAME.pack(len(data), crc32(data)) + data)

            if recorder is not None and self._control is not None:
                log_path = str(self._log) if log else ""
                os.environ["RAXLOG_CRASHTEST_FOLDER"] = str(folder)  # for programs that it executes
                os.environ["RAXLOG_CRASHTEST_CONTROL"] = str(self._control.path)
                os.environ["RAXLOG_CRASHTEST_LOG"] = log_path
                wrong = recorder.recorder_begin(
                    os.fsencode(folder), os.fsencode(self._control.path), os.fsencode(log_path), acks, 1
                )
                if wrong:
                    raise OSError(wrong, os.strerror(wrong), "the recorder cannot begin")
            if before is not None:
                before()
            workload(folder, ack)
            status = _ENDED
        except BaseException as error:
            bases = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)
            with contextlib.suppress(OSError):
                self._error.write_bytes(pickle.dumps((traceback.format_exc(), bases)))
        finally:
            os._exit(status)

    def wait(self, seconds: float) -> bool:
        """Wait for its end. False if the time has passed."""
        if self._status is not None:
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(max(0, seconds) * 1000):
            return False
        self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return True

    def processes(self) -> list[int]:
        """The processes of its group."""
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    stat = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                    if int(stat[2]) == self.pid and stat[0] != "Z":
                        found.append(int(entry.name))
        return sorted(found) or [self.pid]

    def kill(self) -> None:
        """Kill what is left of the group, and wait for it. May be called again."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(60)
        while True:
            try:
                os.waitpid(-self.pid, 0)
            except ChildProcessError:
                break
        os.close(self._descriptor)

    def end(self) -> RunResult:
        """Kill what is left of it. Returns the result of the run."""
        status = self._status
        self.kill()
        error, types = "", ()
        if self._error.exists():
            error, types = pickle.loads(self._error.read_bytes())
        run = RunResult(read_acks(self._acks), status, error, types)
        run.folder, run.inode = os.path.realpath(self._folder), self._folder.stat().st_ino
        run.events = list(read_log(self._log))
        if self._control is not None:
            run.calls, run.fired, run.fired_at = self._control.close()
        return run


class Checker:
    """A child that runs the check on many folders; replaced when the check fails, dies or hangs.

    It gets a batch of cases, and answers after the last or the first that fails, so the stage is woken
    once. Shared memory counts its checks. ``watchful``: files of an old case are used for the next
    one, unless a check leaves files open, which makes it ``untidy``: each case needs new files then.
    """

    def __init__(self, check: Check, timeout: float, acks: list[Any] | None = None, watchful: bool = False) -> None:
        self.untidy: bool = False
        self._watchful = watchful
        self._check = check
        self._acks = acks or []  # known to the child; a request may send their number
        self._timeout = timeout
        self._pid = 0
        self._pipe: Connection | None = None
        self._finished = mmap.mmap(-1, _COUNT.size)  # checks that the child has finished
        self._asked = 0  # checks that it has been sent

    def __call__(self, folder: Path, acks: int | list[Any]) -> str | None:
        """None if the check passed, else its failure. ``acks``: values, or how many of those known."""
        return self.check_all([(folder, acks)])[0]

    def check_all(self, cases: list[tuple[Path, int | list[Any]]]) -> list[str | None]:
        """The same for cases of a folder and its acks, in order."""
        verdicts: list[str | None] = []
        while len(verdicts) < len(cases):
            if self._pipe is None or self._asked >= _CHECKS_PER_CHILD:
                self.close()
                self._start()
            passed, found = self._ask(cases[len(verdicts) :])
            verdicts += [None] * passed
            if found is not None:
                verdicts.append(found)
        return verdicts

    def _ask(self, cases: list[tuple[Path, int | list[Any]]]) -> tuple[int, str | None]:
        """How many passed, and the failure of the next, if any; the child is gone then."""
        assert self._pipe is not None
        before = self._asked
        self._asked += len(cases)
        answer: str | None = None
        with contextlib.suppress(EOFError, OSError):
            self._pipe.send([(str(folder), acks) for folder, acks in cases])
            answer = self._answer()
        passed = self._count() - before
        if answer == "":
            if passed < len(cases):
                self.untidy = True
                self.close()
            return passed, None
        if answer is not None:
            self.close()  # a failed check may have left things behind
            return passed, answer
        self._pipe.close()
        self._pipe = None
        ending = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if ending < 0:
            return passed, f"the check died of {signal.Signals(-ending).name}"
        return passed, f"the check ended its process with status {ending}"

    def _answer(self) -> str:
        """The child's answer, within the timeout for each case; EOFError if it has died."""
        assert self._pipe is not None
        done = -1
        while done != self._count():
            done = self._count()
            if self._pipe.poll(self._timeout):
                return str(self._pipe.recv())
        return f"stuck: the check did not end within {self._timeout:g} s"

    def _count(self) -> int:
        return int(_COUNT.unpack_from(self._finished)[0])

    def _start(self) -> None:
        ours, theirs = Pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        _COUNT.pack_into(self._finished, 0, 0)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                ours.close()
                die_with_parent()
                self._serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._pipe = ours
        self._asked = 0

    def _serve(self, pipe: Connection) -> None:
        """In the child: run the checks of each batch, up to the first failure."""
        done = usual = 0
        while True:
            answer = ""
            for folder, acks in pipe.recv():
                known = list(self._acks[:acks]) if isinstance(acks, int) else acks
                answer = _checked(self._check, Path(folder), known)
                if answer:
                    break
                done += 1
                _COUNT.pack_into(self._finished, 0, done)
                if self._watchful and not self.untidy:
                    opened = len(os.listdir("/proc/self/fd"))
                    usual = usual or opened
                    if opened > usual:
                        break
            pipe.send(answer.encode(errors="replace").decode())  # no lone surrogates

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _checked(check: Check, folder: Path, acks: list[Any]) -> str:
    try:
        check(folder, acks)
        return ""
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = "".join(traceback.format_exception_only(error)).strip()
        return f"{text}  [{os.path.basename(where.filename)}:{where.lineno} {where.line}]"
