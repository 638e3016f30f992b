"""The writer that the demo kills: appends entries durably, one by one, and tells each.

    store: stream "imported"          stream "copied"             pipe to the demo
    entry k ───────────────> append ──> on disk ──> returns ID ──> "k ID" in one write

An ID goes into the pipe only after append() has returned, so what has come out of the pipe
is what raxlog has acknowledged. The process never ends by itself.
"""

from __future__ import annotations

import os
import sys

from ...recovery.store import Store

SOURCE = "imported"
TARGET = "copied"


def write(path: str, first: int) -> None:
    """Append the entries of SOURCE, from the one numbered ``first``, to TARGET for ever."""
    with Store.open(path) as store:
        source, target = store.stream(SOURCE), store.stream(TARGET)
        length = len(source)
        number = first
        while True:
            for entry in source.range(source.select(number % length)):
                sid = target.append(entry.pairs)
                os.write(1, f"{number} {sid}\n".encode())  # below PIPE_BUF: whole or not at all
                number += 1


def command(path: str, first: int) -> list[str]:
    """The command line of such a process, importing from where this one imports."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import write; write({path!r}, {first})"
    return [sys.executable, "-c", code]
