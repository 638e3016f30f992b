"""A headless Chromium, driven by its protocol over two pipes: open an address, run JavaScript, take a picture."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
]


class Browser:
    """One page of a browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._read, self._number = commands, answers, b"", 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = json.dumps({"id": self._number, "method": method, "params": params} | session)
        os.write(self._commands, message.encode() + b"\0")
        while True:
            while b"\0" not in self._read:
                part = os.read(self._answers, 1 << 20)
                assert part, "the browser has ended"
                self._read += part
            line, _, self._read = self._read.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open an address, in a window of that size."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme",
                                                            "value": "dark" if dark else "light"}])
        self._call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, timeout: float = 10) -> Any:
        """The value of an expression, once it is true."""
        deadline = time.monotonic() + timeout
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, (script, self.run("document.body.innerText"))
            time.sleep(0.05)
        return value

    def picture(self, file: Path) -> None:
        """The page as a PNG."""
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))


def _pipe() -> list[int]:
    """A pipe, with numbers above 3 and 4, which the browser takes."""
    ends = os.pipe()
    try:
        return [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    finally:
        for end in ends:
            os.close(end)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a new profile."""
    assert CHROMIUM is not None
    (its_commands, commands), (answers, its_answers) = _pipe(), _pipe()
    with tempfile.TemporaryDirectory(prefix="raxlog-chromium-", ignore_cleanup_errors=True) as profile:
        wrapper = ("import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
                   "os.execv(sys.argv[3], sys.argv[3:])")
        command = [sys.executable, "-c", wrapper, str(its_commands), str(its_answers), CHROMIUM, *_FLAGS,
                   f"--user-data-dir={profile}"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, pass_fds=(its_commands, its_answers)) as child:
            os.close(its_commands)
            os.close(its_answers)
            try:
                yield Browser(commands, answers)
            finally:
                child.kill()
                os.close(commands)
                os.close(answers)
