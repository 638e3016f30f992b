"""Count the calls that a program makes of raxlog's functions: what a call does, however fast the machine is.

The program runs in a process of its own with the plain sources (RAXLOG_PURE=1), where a profiler sees
every function. What stands in its ``with counted():`` is counted.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_PRELUDE = """
import json, sys
import raxlog
from call_shapes import calls, counted
store = raxlog.open(sys.argv[1], durability="relaxed")
"""

calls: Counter[str] = Counter()


@contextmanager
def counted() -> Iterator[None]:
    """Count what this thread calls, as ``module.function`` or ``module.Class.method``, in ``calls``."""

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "").rpartition(".")[2]
            calls[f"{module}.{frame.f_code.co_qualname}"] += 1

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def calls_of(program: str, folder: Path) -> Counter[str]:
    """The calls that the program made within ``counted()``; it finds an open ``store``, in a new folder."""
    import forkserver  # noqa: PLC0415 - the program imports this file, and does not find that one

    ran = forkserver.run(
        [sys.executable, "-c", _PRELUDE + program + "\nstore.close()\nprint(repr(dict(calls)))", str(folder / "s.rax")],
        env={**os.environ, "RAXLOG_PURE": "1"}, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found: Counter[str] = Counter(eval(ran.stdout.splitlines()[-1]))
    return found
