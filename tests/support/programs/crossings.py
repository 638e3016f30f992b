"""How many files of raxlog a warm call crosses, and how often one calls into another file than the one before.

    RAXLOG_PURE=1 python tests/support/programs/crossings.py        plain kernels, so that each function can be seen

    append, group read of 10, publish to a bound stream

Now and then a call does more than the others (it takes room from the disk): shown is the median one of five.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType

import raxlog
from raxlog.storage import kernels

WARM = 500  # calls before it: by then the process has the kernel's events of its files
CALLS = 5  # that are looked at
READ = 10  # entries of a group read


def crossed(call: Callable[[int], object], warm: int = WARM) -> list[str]:
    """The file of each function that a call enters after so many others, in order."""
    found: list[list[str]] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "raxlog" in frame.f_globals["__name__"]:
            found[-1].append(frame.f_globals["__name__"])

    for n in range(warm):
        call(n)
    for n in range(CALLS):
        found.append([])
        sys.setprofile(note)
        call(warm + n)
        sys.setprofile(None)
    ours = [[name for name in files if name != __name__] for files in found]
    return sorted(ours, key=lambda files: len(set(files)))[CALLS // 2]


def crossings() -> dict[str, list[str]]:
    """crossed() of each kind of call, on stores of their own."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, raxlog.open(Path(folder) / "s.rax") as store:
        stream, bound = store.stream("s"), store.stream("bound")
        found["append"] = crossed(lambda n: stream.append({"n": n}))
        store.bind("orders.*", bound.name)
        found["publish to a bound stream"] = crossed(lambda n: store.publish("orders.new", {"n": n}))
        stream.extend({"n": n} for n in range(READ * (WARM + CALLS)))
        group = stream.create_group("g", "0")
        found[f"group read of {READ}"] = crossed(lambda _: group.read("c", count=READ))
    return found


def main() -> int:
    """Print the figures; with -v the files as well."""
    print(f"{kernels.speed()} kernels, warm calls")
    for name, files in crossings().items():
        changes = sum(one != other for one, other in pairwise(files))
        print(f"{name}: {len(set(files))} files, {len(files)} calls, {changes} changes of file")
        if "-v" in sys.argv[1:]:
            print(*sorted({file.partition(".")[2] for file in files}), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
