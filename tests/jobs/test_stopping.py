"""A signal ends whatever waits, within a second or two while it is idle, and after its drain while it works."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import forkserver
import pytest
import raxlog
from cli_runs import CLI

SOON = 20.0
MODULE = """
import asyncio, time
def idle(entry): pass
async def waits(entry): pass
def works(entry):
    print("begun", flush=True)
    time.sleep(1)
async def works_async(entry):
    print("begun", flush=True)
    await asyncio.sleep(1)
"""
AIO = """
import asyncio, signal, sys
import raxlog.aio
async def main():
    loop, task, ended = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    async with raxlog.aio.open("s.rax") as store:
        group = store.stream("jobs").group("mail")
        try:
            await wait(store, group, task, ended, lambda act: [signal.signal(n, lambda *_: act()) for n in (2, 15)])
        except asyncio.CancelledError:
            pass
async def follow(store):
    async for entry in store.stream("other").follow():
        pass
async def wait(store, group, task, ended, on_signal):
"""
PROGRAMS = {
    "follower, cancelled": "on_signal(task.cancel)\nprint('ready', flush=True)\nawait follow(store)",
    "event beside a follower": """
        waiting = asyncio.create_task(follow(store))
        on_signal(ended.set)
        print('ready', flush=True)
        await ended.wait()
        waiting.cancel()""",
    "read of a group": "on_signal(task.cancel)\nprint('ready', flush=True)\nawait group.read('c', timeout=None)",
    "subscription": """
        on_signal(task.cancel)
        subscription = await store.subscribe("a.>")
        print('ready', flush=True)
        async for message in subscription:
            pass""",
    "worker, stopped": "w = group.worker(print)\non_signal(w.stop)\nprint('ready', flush=True)\nawait w.run()",
    "worker, cancelled": "on_signal(task.cancel)\nprint('ready', flush=True)\nawait group.worker(print).run()",
}
COMMANDS = {
    "worker": ["worker", "shop:idle", "s.rax", "jobs", "mail", "--threads", "3"],
    "async worker": ["worker", "shop:waits", "s.rax", "jobs", "mail"],
    "worker processes": ["worker", "shop:idle", "s.rax", "jobs", "mail", "--processes", "2"],
    "async worker processes": ["worker", "shop:waits", "s.rax", "jobs", "mail", "--processes", "2"],
    "serve": ["serve", "s.rax", "--port", "PORT"],
    "web": ["web", "s.rax", "--port", "PORT"],
}
both = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream("jobs").create_group("mail", start="0", create_stream=True)
    (tmp_path / "shop.py").write_text(MODULE)
    return tmp_path


def ended_in(command: list[str], folder: Path, number: signal.Signals, until: str = "", idle: float = 0,
             catches: bool = False) -> float:
    """Begin a program, send it the signal once it has printed that, and then been idle; seconds until it has ended.

    One that ``catches`` SIGTERM is waited for until it does, as the system shows: a busy machine takes long to begin.
    """
    with forkserver.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
        try:
            assert program.stdout is not None
            while until and until not in (line := program.stdout.readline()):
                assert line, program.wait()
            while catches and program.poll() is None and not _caught(program.pid) >> signal.SIGTERM - 1 & 1:
                time.sleep(0.05)
            time.sleep(idle)
            assert program.poll() is None
            began = time.monotonic()
            program.send_signal(number)
            assert program.wait(SOON) == 0, program.stdout.read()
            return time.monotonic() - began
        finally:
            program.kill()


def soon() -> float:
    """Two seconds, and the time that ten starts of a Python take beside what else this machine does now."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    return 2 + 10 * (time.monotonic() - began)


def _caught(pid: int) -> int:
    """The signals that a process catches, as bits."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:")]
    return int(line.split()[1], 16)


@both
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_whose_handler_of_signals_sets_or_cancels_something_ends(
    shop: Path, what: str, number: signal.Signals
) -> None:
    code = AIO + textwrap.indent(textwrap.dedent(PROGRAMS[what]), "    ") + "\nasyncio.run(main())\n"
    assert ended_in([sys.executable, "-c", code], shop, number, "ready", 2.5) < soon()


@both
@pytest.mark.parametrize("what", COMMANDS)
def test_an_idle_command_ends(shop: Path, what: str, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [port if word == "PORT" else word for word in COMMANDS[what]]
    printed = {"serve": "serving", "web": "http"}.get(what, "")
    assert ended_in([*CLI, *command], shop, number, printed, 2.0, catches=True) < soon()


@both
@pytest.mark.parametrize("handler", ["works", "works_async"])
@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_a_worker_ends_once_its_handler_has(
    shop: Path, handler: str, options: list[str], number: signal.Signals
) -> None:
    with raxlog.open(shop / "s.rax") as store:
        store.stream("jobs").append({"n": 1})
    command = [*CLI, "worker", f"shop:{handler}", "s.rax", "jobs", "mail", *options]
    assert ended_in(command, shop, number, "begun") < 2 + soon()
    with raxlog.open(shop / "s.rax") as store:
        assert store.stream("jobs").group("mail").pending().total == 0
