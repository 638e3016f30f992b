"""Another process that writes to a store which this process watches: ``do("orders.append({'n': 1})")``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forkserver

Do = Callable[[str], None]

_CHILD = """
import sys, time, traceback, raxlog
names = {"raxlog": raxlog, "time": time, "store": raxlog.open(sys.argv[1], encoding="utf-8", durability="relaxed")}
print("ready", flush=True)
for line in sys.stdin:
    try:
        exec(eval(line), names)
        print("done", flush=True)
    except BaseException as error:
        print(repr("".join(traceback.format_exception(error))), flush=True)
"""


@contextmanager
def writing(path: Path | str) -> Iterator[Do]:
    """A function that runs statements in a process of its own, with ``store`` open at ``path``."""
    with forkserver.Popen([sys.executable, "-c", _CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as child:
        requests, answers = child.stdin, child.stdout
        assert requests is not None
        assert answers is not None
        assert answers.readline() == "ready\n"

        def do(statements: str) -> None:
            requests.write(repr(statements) + "\n")
            requests.flush()
            answer = answers.readline()
            assert answer == "done\n", answer

        yield do
        requests.close()
