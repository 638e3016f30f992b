"""A workload whose state is a function of the number of its commits, and ways to break the journal."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import raxlog
from raxlog.storage import journal

# A control runs in the process that performs the workload, which is told by its environment.
_PLANTED = os.environ.get("RAXLOG_TEST_JOURNAL", "")
if _PLANTED == "no record":
    journal.Journal.write = lambda *_: True  # type: ignore[method-assign]
elif _PLANTED == "one slot":
    journal.SLOTS = 1
elif _PLANTED == "no checksum":
    journal.xxh3_64_intdigest = lambda *_: 0  # type: ignore[assignment]


def append(folder: Path, ack: Any) -> None:
    """Small commits, and now and then one that has no room in the journal."""
    draw = random.Random(5)
    with raxlog.open(folder / "s.rax", map_size=1 << 20) as store:
        events = store.stream("s")
        ack(0)
        n = 0
        for step in range(40):
            count = 40 if step % 9 == 8 else 1
            events.extend([{"n": n + i, "text": "x" * draw.randrange(1, 3000)} for i in range(count)])
            n += count
            ack(n)
            if step == 25:
                events.trim(maxlen=30)
                ack(-n)


def check(folder: Path, acks: list[Any]) -> None:
    """All that was promised is there, nothing is half there, and the store takes more."""
    if not (folder / "s.rax").exists():
        assert not acks, acks
        return
    with raxlog.open(folder / "s.rax") as store:
        events = store.stream("s")
        found = [int(entry.fields[b"n"]) for entry in events.range()]
        after = found[-1] + 1 if found else 0
        assert found == list(range(after - len(found), after)), found
        assert after >= max([0, *acks]), (after, acks)
        for trimmed in (-ack for ack in acks if ack < 0):
            assert found[0] == trimmed - 30, (found[0], trimmed)
        events.append({"n": after})
        assert len(events) == len(found) + 1
