"""How many files of raxlog a warm call crosses, and how often one calls into another file than the one before.

    RAXLOG_PURE=1 python tests/support/figures/crossings.py        plain kernels, so that each function can be seen

    append, group read of 1, ack of 1, publish to a bound stream, opening a store that is there

    -v        the files of each kind of call as well
    --walk    what each call enters, in order: a line for each change of file, then the functions there

Now and then a call does more than the others (it takes room from the disk): shown is the median one of many. It fails
where a call crosses more than MOST says, so that no change makes the way longer unseen. The aim is below that.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType

import raxlog
from raxlog.storage import kernels

WARM = 500  # calls before it: by then the process has the kernel's events of its files
CALLS = 25  # that are looked at
MOST = {  # files, changes of file; and what they should come to
    "append": ((14, 30), (11, 30)),
    "group read of 1": ((20, 68), (17, 90)),
    "ack of 1": ((17, 50), (15, 50)),
    "publish to a bound stream": ((18, 49), (15, 50)),
    "open": ((29, 120), (28, 120)),
}


class Entered(str):
    """The file of a function that a call entered; and the function's name."""

    function: str


def crossed(call: Callable[[int], object], warm: int = WARM, after: Callable[[], None] = lambda: None) -> list[Entered]:
    """The file of each function that a call enters after so many others, in order. ``after``: run behind each call."""
    found: list[list[Entered]] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "raxlog" in frame.f_globals["__name__"]:
            found[-1].append(Entered(frame.f_globals["__name__"]))
            found[-1][-1].function = frame.f_code.co_qualname

    for n in range(warm):
        call(n)
        after()
    for n in range(CALLS):
        found.append([])
        sys.setprofile(note)
        call(warm + n)
        sys.setprofile(None)
        after()
    ours = [[name for name in files if name != __name__] for files in found]
    return sorted(ours, key=lambda files: (len(set(files)), changes(files)))[CALLS // 2]


def changes(files: Sequence[str]) -> int:
    """How often a call goes into another file than the one before."""
    return sum(one != other for one, other in pairwise(files))


def crossings() -> dict[str, list[Entered]]:
    """crossed() of each kind of call, on stores of their own."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        path = Path(folder) / "s.rax"
        store = opened.enter_context(raxlog.open(path))
        stream, bound = store.stream("s"), store.stream("bound")
        found["append"] = crossed(lambda n: stream.append({"n": n}))
        store.bind("orders.*", bound.name)
        found["publish to a bound stream"] = crossed(lambda n: store.publish("orders.new", {"n": n}))
        taken = store.stream("taken")  # with IDs that are the same each time: how they are stored decides on some calls
        many = range(2 * (WARM + CALLS))
        taken.extend([{"n": n} for n in many], [f"1764000000000-{n}" for n in many])
        group = taken.create_group("g", "0")
        found["group read of 1"] = crossed(lambda _: group.read("c", count=1))
        held = group.read("c", count=WARM + CALLS)
        found["ack of 1"] = crossed(lambda n: group.ack(held[n].id))
        store.close()
        found["open"] = crossed(lambda _: opened.enter_context(raxlog.open(path)), 3, opened.close)
    return found


def main() -> int:
    """Print the figures, and what the options ask for. 1 where one is above its limit."""
    print(f"{kernels.speed()} kernels, warm calls")
    is_longer = False
    for name, files in crossings().items():
        (most_files, most_changes), aim = MOST[name]
        above = len(set(files)) > most_files or changes(files) > most_changes
        is_longer = is_longer or above
        print(f"{name}: {len(set(files))} files, {len(files)} calls, {changes(files)} changes of file"
              f" (at most {most_files}, {most_changes}; aim {aim[0]}, {aim[1]}){' ABOVE' if above else ''}")
        if "-v" in sys.argv[1:]:
            print(*sorted({file.partition(".")[2] for file in files}), sep="\n")
        if "--walk" in sys.argv[1:]:
            for file, entered in groupby(files):
                print(f"  {file.partition('.')[2]:30} {', '.join(one.function for one in entered)}")
    return int(is_longer)


if __name__ == "__main__":
    sys.exit(main())
