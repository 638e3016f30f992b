"""A store whose ring is used again every few commits, with a checkpoint after each third or so, for power cuts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import raxlog
from raxlog.storage.log.ring import APPLIED, KEPT, LEAST


def append(folder: Path, ack: Any, *, durability: str = "commit", steps: int = 70, forgets: bool = False) -> None:
    """Entry n holds n; sizes so that the ring's end is met at all places, now and then more than a third of the ring.

    ``forgets``, the control: a checkpoint says that the ring can be used again, and has put nothing into LMDB.
    """
    draw, n = random.Random(11), 0
    with raxlog.open(folder / "s.rax", durability=durability, max_map_size=8 * LEAST, encoding=None) as store:
        log: Any = store._env.map.log
        log.every = 1 << 13
        if forgets:
            words = log.ring.words
            log.checkpoints.make = lambda *_: [words.__setitem__(at, words[0]) for at in (APPLIED, KEPT)]
        for step in range(steps):
            many = 40 if step % 20 == 19 and not forgets else 1
            store.stream("s").extend([{"n": n + k, "x": draw.randbytes(draw.randrange(1, 3900))} for k in range(many)])
            n += many
            ack(n)
            if step % 10 == 9:
                store.stream("s").trim(maxlen=20)


def check(folder: Path, acks: list[Any], *, durable: bool = True) -> None:
    """What was acknowledged is there (the newest of it, after trims), nothing is half there, and it takes more."""
    path = folder / "s.rax"
    if not path.exists():
        assert not acks, acks
        return
    with raxlog.open(path, encoding=None) as store:
        stream = store.stream("s")
        found = [int(entry.fields[b"n"]) for entry in stream.range()]
        after = found[-1] + 1 if found else 0
        assert found == list(range(after - len(found), after)), found
        assert len(found) >= min(after, 20)
        assert not durable or after >= max([0, *acks]), ("LOST", after, acks)
        stream.append({"n": after})
        assert len(stream) == len(found) + 1
