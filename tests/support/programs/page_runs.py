"""A page of the documentation, run: its files are written, its programs and commands run, their output compared.

    <!-- file: shop.py -->  and a block      written to the folder that the page is run in
    ```python                                run in this process, all of a page in one namespace
    ```console                               each line after "$ " (or "> ", its continuation) run by one bash a page;
                                             what it prints is the lines below it
    <!-- output --> and a ```text block      what the python block before it has printed
    any other block                          a drawing, data, a part of another language: shown only

In output that is compared … stands for any text, a line of … alone for any lines, and an ID for any ID.
A command of which no output is shown prints nothing, and succeeds. "sleep N; COMMAND" is not slept: the command is
repeated until it prints what is shown. Port 8000 is a free one instead.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"(?:^<!-- (?P<about>[^\n]*?) -->\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
_ID = re.compile(r"\b1[5-9]\d{11}-\d+\b")
_DONE = "--- the command has ended:"
_SLEEP = re.compile(r"sleep [\d.]+; ")
_ENDED = re.compile(r"bash: line \d+: +\d+ (Killed|Terminated)\b.*\n")
_LONGEST = 90  # seconds a command may take

LANGUAGES = {"python", "console", "sh", "sql", "text", "json", "toml", "ini", "html", "yaml", "nginx", "dockerfile", "",
             "{eval-rst}"}


class Block(NamedTuple):
    """A fenced block: its language, its text, the comment above it, and its line in the page."""

    language: str
    text: str
    about: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        yield Block(found["language"], found["text"], found["about"] or "", text.count("\n", 0, found.start()) + 1)


def matches(expected: str, printed: str) -> bool:
    """Whether this was printed, but for what … and IDs stand for."""
    lines = []
    for line in expected.strip().splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
        else:
            parts = [re.escape(part) for part in line.rstrip().split("…")]
            lines.append(_ID.sub(lambda _: r"\d{13}-\d+", ".*?".join(parts).replace(r"\-", "-")) + "\n")
    kept = "".join(line.rstrip() + "\n" for line in printed.strip().splitlines())
    return re.fullmatch("".join(lines), kept) is not None


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    command, printed = "", ""
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], ""
        elif line.startswith("> ") and not printed:
            command += line[2:]
        else:
            printed += line
    if command:
        yield command, printed


class Shell:
    """A bash that runs command after command in one folder; its children end with it."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        readers = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # which few set
        self._bash = subprocess.Popen(
            ["bash"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, env=readers | {"PATH": path, "COLUMNS": "100",
                                                               "PYTEST_DEBUG_TEMPROOT": str(folder)},
        )

    def run(self, command: str) -> tuple[int, str]:
        """The command's status, and all that it printed."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n%s %s\\n' '{_DONE}' $?\n")
        self._bash.stdin.flush()
        alarm = threading.Timer(_LONGEST, self.close)
        alarm.start()
        try:
            printed = []
            for line in self._bash.stdout:
                if line.startswith(_DONE):
                    return int(line.split()[-1]), "".join(printed)
                if not _ENDED.match(line):
                    printed.append(line)
        finally:
            alarm.cancel()
        raise AssertionError(f"the shell ended, or {_LONGEST} s went by, in: {command}{''.join(printed)}")

    def close(self) -> None:
        """End it with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)


def execute(source: str, where: str, names: dict[str, object], loop: asyncio.AbstractEventLoop) -> None:
    """Run some Python, which may await at its top."""
    code = compile(source, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        loop.run_until_complete(eval(code, names))
    else:
        exec(code, names)


def run_page(page: Path, folder: Path, before: Mapping[int, str] | None = None,
             instead: Mapping[str, str] | None = None) -> int:
    """Run a page in an empty folder, which must be the current one; how many of its blocks ran.

    ``before``   what the page takes as given: code to run before the python block of that number
    ``instead``  texts of python blocks, and what stands in for them in a test: shorter waits, smaller numbers
    """
    names: dict[str, object] = {"__name__": "page"}
    loop = asyncio.new_event_loop()  # for blocks that await at their top
    number = 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    printed: str | None = None
    shell = Shell(folder)
    ran = 0
    sys.path.insert(0, str(folder))
    try:
        for block in blocks(page):
            block = block._replace(text=re.sub(r"\b8000\b", port, block.text))
            where = f"{page.name}:{block.line}"
            assert block.language in LANGUAGES, f"{where}: what is a block of {block.language!r}?"
            last, printed = printed, None
            if block.about.startswith("file: "):
                name = block.about.removeprefix("file: ")
                above = "\n".join(page.read_text(encoding="utf-8").splitlines()[: block.line])
                assert f"`{name}`" in above, f"{where}: the text above does not name {name}"  # the comment is unseen
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text, encoding="utf-8")
            elif block.about == "output":
                assert last is not None, f"{where}: output of what?"
                assert matches(block.text, last), f"{where}: this came:\n{last}"
            elif block.language == "console":
                for command, shown in commands(block.text):
                    status, printed = shell.run(_SLEEP.sub("", command))
                    deadline = time.monotonic() + _LONGEST
                    while _SLEEP.match(command) and not matches(shown, printed) and time.monotonic() < deadline:
                        time.sleep(0.1)
                        status, printed = shell.run(_SLEEP.sub("", command))
                    assert matches(shown, printed), f"{where}: $ {command}status {status}, and this came:\n{printed}"
                    assert shown.strip() or status == 0, f"{where}: $ {command}status {status}"
            elif block.language == "python":
                source = block.text
                for text, other in (instead or {}).items():
                    source = source.replace(text, other)
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    execute((before or {}).get(number, ""), f"before {where}", names, loop)
                    execute("\n" * block.line + source, str(page), names, loop)
                printed = output.getvalue()
                number += 1
            else:
                continue
            ran += 1
    finally:
        shell.close()
        loop.close()
        sys.path.remove(str(folder))
        for name in [name for name, module in sys.modules.items()
                     if str(getattr(module, "__file__", "")).startswith(f"{folder}/")]:
            del sys.modules[name]
    return ran
