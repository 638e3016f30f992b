"""Interpreters that have raxlog loaded: run() and Popen() as subprocess has them, for programs that need not load it.

    test ── program, arguments, environment, files ──> server: a Python that has loaded raxlog, and opened nothing
     └── the program <── its parent ends at once ── forks a process, which forks the program

The program is a child of the test, as any that subprocess starts, and a whole Python with a main module, an end and a
status of its own. What it does not do is to load raxlog, which takes ten times as long as starting Python itself. A
test that is about loading starts an interpreter with subprocess. So does this module for a program with options of
Python's (``-X``), or with limits or a group of its own. Variables that change what is loaded (RAXLOG_PURE, LD_PRELOAD)
want a server of their own, which the third program with the same ones begins.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import inspect
import io
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from collections import Counter
from pathlib import Path
from subprocess import PIPE
from typing import Any

_SUBREAPER = 36  # prctl(2): a process whose parent has ended gets the nearest ancestor that has asked for it
_MOST = 1 << 17


Settings = tuple[tuple[str, str], ...]


def _settings(environment: dict[str, str]) -> Settings:
    """What decides how Python and raxlog are loaded."""
    return tuple(sorted((name, value) for name, value in environment.items() if name.startswith((
        "PYTHON", "RAXLOG_", "LC_", "LD_", "MALLOC_")) or name in ("LANG", "LANGUAGE", "HOME", "TZ")))


_MANY = 3  # programs, for which a server is worth its start
_OURS, _PYTHON = os.getpid(), sys.executable
_starting = threading.Lock()
_asked = Counter({_settings(dict(os.environ)): _MANY})
_servers: dict[Settings, tuple[socket.socket, subprocess.Popen[bytes]]] = {}


def run(*arguments: Any, check: bool = False, timeout: float | None = None, capture_output: bool = False,
        **options: Any) -> subprocess.CompletedProcess[Any]:
    """As subprocess.run."""
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = PIPE
    with Popen(*arguments, **options) as process:
        try:
            out, err = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class Popen(subprocess.Popen[Any]):
    """As subprocess.Popen."""

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        settings = _settings(environment)
        _asked[settings] += 1
        if os.getpid() != _OURS or not _is_plain(asked) or _asked[settings] < _MANY:
            super()._execute_child(*given)
            return
        with _starting:
            server = _server(settings)
            request = pickle.dumps((
                [os.fsdecode(one) for one in asked["args"][1:]], environment, os.fsdecode(asked["cwd"] or os.getcwd()),
            ))
            files = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
            _subreaper(True)
            try:
                socket.send_fds(server, [request], [n if file == -1 else file for n, file in enumerate(files)])
                answer = server.recv(100)
            except BaseException:  # what comes next from it would be the answer to this
                _servers.pop(settings)[0].close()
                raise
            finally:
                _subreaper(False)
        self.pid = int(answer)
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread",
                                                        "errwrite")))


def _is_plain(asked: dict[str, Any]) -> bool:
    """Whether it is ``python -c …``, ``python -m …`` or ``python FILE …`` without anything special."""
    arguments = asked["args"]
    if not isinstance(arguments, list) or len(arguments) < 2 or arguments[0] != _PYTHON or asked["shell"]:
        return False
    usual = {"executable": None, "preexec_fn": None, "pass_fds": (), "close_fds": True, "gid": None, "gids": None,
             "uid": None, "umask": -1, "start_new_session": False, "process_group": -1, "restore_signals": True}
    what = os.fspath(arguments[1])
    known = what in ("-c", "-m") if what.startswith("-") else what.endswith(".py")
    return known and all(asked.get(name, value) == value for name, value in usual.items()) and (
        sum(len(os.fsencode(one)) for one in arguments) < _MOST // 2)


def _subreaper(on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, ctypes.c_ulong(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _server(settings: Settings) -> socket.socket:
    """It is started once, and ends with this process."""
    if settings not in _servers:
        others = {name: value for name, value in os.environ.items() if not _settings({name: value})}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen([_PYTHON, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                                       stdin=subprocess.DEVNULL, env=others | dict(settings))
        _servers[settings] = ours, process
    return _servers[settings][0]


@atexit.register
def _end() -> None:
    for ours, process in _servers.values() if os.getpid() == _OURS else ():
        ours.close()
        process.kill()  # it may not see that: a fork of this process may have the socket, too
        process.wait()


# -- in the server --------------------------------------------------------------------------


def _load() -> None:
    """What a program of a test may load of raxlog."""
    import raxlog  # noqa: PLC0415
    import raxlog.aio  # noqa: PLC0415
    from raxlog.recovery import subprocess_task  # noqa: F401, PLC0415
    from raxlog.tools import cli  # noqa: F401, PLC0415
    from raxlog.tools.resp import server  # noqa: F401, PLC0415

    for name in raxlog.__all__:
        with contextlib.suppress(Exception):
            getattr(raxlog, name)


def _serve(control: socket.socket) -> tuple[list[str], dict[str, str], str]:
    """Fork a process for each request, and return in it, with what was asked."""
    while True:
        request, files, *_ = socket.recv_fds(control, _MOST, 3)
        if not request:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            program = os.fork()
            if program:
                os.write(writing, b"%d" % program)
                os._exit(0)
            for n, file in enumerate(files):
                os.dup2(file, n)
            control.detach()
            os.closerange(3, 1024)
            return pickle.loads(request)
        os.waitpid(between, 0)
        number = os.read(reading, 100)
        for file in (*files, reading, writing):
            os.close(file)
        control.send(number)


def _become(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Be ``python ARGUMENTS``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # the server's know what kind of file theirs is
        before = getattr(sys, name)
        file = io.FileIO(number, "w" if number else "r", closefd=False)
        stream = io.TextIOWrapper(io.BufferedWriter(file) if number else io.BufferedReader(file), before.encoding,
                                  before.errors, "\n", line_buffering=number == 2 or file.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    what, *rest = arguments
    sys.orig_argv = [sys.executable, *arguments]
    if what == "-m":
        sys.path[0] = folder
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])
    elif what == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.path[0] = str(Path(what).resolve().parent)
        sys.argv = arguments
        main.__file__ = what
        exec(compile(Path(what).read_bytes(), what, "exec"), main.__dict__)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this one
    _load()
    gc.freeze()
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
