"""Work in a process of its own: its messages as they come, and how it ended.

    with Child("check_child", job) as child:
        for message in child:  …          JSON objects, one a line on its stdout
        child.status                      0, or what _ending() says of it in words

The interpreter, and where raxlog lies, are those of this process. Whatever happens to the
child, nothing worse than its ``ending`` comes here. It does not outlive the block.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..storage import errors
from ..storage.errors import RaxlogError, StoreError

_START = "import sys; sys.path.append(sys.argv.pop(1)); from {module} import main; main()"


class Child:
    """One process that runs ``main()`` of a module beside this one, with a job as its argument."""

    def __init__(self, module: str, job: dict[str, Any]) -> None:
        name = f"{__package__}.{module}"
        depth = name.count(".") - 1
        home = Path(__file__).parents[depth]  # the folder that raxlog lies in
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - a file cannot fill up as a pipe does
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(module=name), str(home), json.dumps(job)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._said,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # its death cut it off
            if "error" in message:
                raise _error(message)
            yield message

    @property
    def ending(self) -> str | None:
        """How it ended, in words, if not as it should."""
        status = self._process.wait()
        if status == 0:
            return None
        if status < 0:
            try:
                return f"was killed by {signal.Signals(-status).name}"
            except ValueError:
                return f"was killed by signal {-status}"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"failed: {lines[-1] if lines else f'status {status}'}"


def _error(message: dict[str, Any]) -> RaxlogError:
    kind = getattr(errors, message["error"], StoreError)
    error: RaxlogError = kind(message["what"])
    return error
