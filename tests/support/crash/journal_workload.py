"""A workload whose state is a function of the number of its commits, and ways to break the journal."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import raxlog
from raxlog.storage.commit import journal

# A control runs in the process that performs the workload, which is told by its environment.
_PLANTED = os.environ.get("RAXLOG_TEST_JOURNAL", "")
if _PLANTED == "no record":
    journal.Journal.write = journal.Journal.write_through = lambda *_: True  # type: ignore[method-assign]
elif _PLANTED == "one slot":
    journal.SLOTS = 1
elif _PLANTED == "no checksum":
    journal.xxh3_64_intdigest = lambda *_: 0  # type: ignore[assignment]


def append(folder: Path, ack: Any, *, steps: int = 40) -> None:
    """Small commits, and now and then one that has no room in the journal; a trim after two thirds."""
    draw = random.Random(5)
    with raxlog.open(folder / "s.rax", map_size=1 << 20) as store:
        events = store.stream("s")
        ack(0)
        n = 0
        for step in range(steps):
            count = 40 if step % 9 == 8 else 1
            events.extend([{"n": n + i, "text": "x" * draw.randrange(1, 3000)} for i in range(count)])
            n += count
            ack(n)
            if step == steps * 2 // 3 - 1:
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


def consume(folder: Path, ack: Any, *, steps: int = 32) -> None:
    """A group reads and acknowledges without a check between: most of it is in the journal only."""
    with raxlog.open(folder / "q.rax", map_size=1 << 20) as store:
        stream = store.stream("q")
        group = stream.create_group("g", "0", create_stream=True)
        stream.extend([{"n": n} for n in range(GIVEN * steps)])
        held: list[Any] = []
        for step in range(steps):
            if step % 3:
                given = group.read("w", GIVEN, ack=held)
            else:
                group.ack(*held)
                ack(2 * step)  # nothing is pending
                given = group.read("w", GIVEN)
            held = [entry.id for entry in given]
            ack(2 * step + 1)


GIVEN = 4


def check_consumed(folder: Path, acks: list[Any]) -> None:
    """The group is where one of its steps has left it, none before the last that was promised."""
    if not (folder / "q.rax").exists():
        assert not acks, acks
        return
    with raxlog.open(folder / "q.rax") as store:
        stream = store.stream("q")
        if "q" not in [name.decode() for name in store.streams()]:
            assert not acks, acks
            return
        group = stream.group("g")
        ids = [entry.id for entry in stream.range()]
        last = group.last_delivered_id
        given = ids.index(last) + 1 if last in ids else 0
        pending = [row.id for row in group.pending("-", "+", 1000)]
        assert given % GIVEN == 0
        assert pending in ([], ids[given - GIVEN:given]), (given, pending)
        state = 2 * (given // GIVEN) - (1 if pending else 0)
        assert state >= max([0, *acks]), (state, acks)
        assert [entry.id for entry in group.read("w", GIVEN)] == ids[given:given + GIVEN]
