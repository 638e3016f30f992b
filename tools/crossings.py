"""How many files of raxlog a warm append calls into, and how often a call is into another file than the one before.

    RAXLOG_PURE=1 python -m raxlog.tools.crossings        plain kernels, so that each function can be seen
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from types import FrameType

import raxlog
from raxlog.storage import kernels

WARM = 500  # appends before it: by then the process has the kernel's events of its files


def crossed(durability: str = "commit") -> list[str]:
    """The file of each function that a warm append calls, in order."""
    files: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and __package__.partition(".")[0] in frame.f_globals["__name__"]:
            files.append(frame.f_globals["__name__"])

    with tempfile.TemporaryDirectory() as folder, raxlog.open(Path(folder) / "s.rax", durability=durability) as store:  # type: ignore[arg-type]
        stream = store.stream("s")
        for n in range(WARM):
            stream.append({"n": n})
        sys.setprofile(note)
        stream.append({"n": WARM})
        sys.setprofile(None)
    return [name for name in files if name != __name__]


def main() -> int:
    """Print the figures, and the files."""
    files = crossed()
    changes = sum(one != other for one, other in pairwise(files))
    print(f"a warm append ({kernels.speed()} kernels): {len(set(files))} files, {changes} changes of file")
    print(*sorted({name.partition(".")[2] for name in files}), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
