"""A store that is compacted every few appends, under raxlog.crashtest: what it writes and what must be left of it."""

from __future__ import annotations

from pathlib import Path

import raxlog
from raxlog.storage.folder import directory

ROUNDS, APPENDS = 3, 3


def append_and_compact(where: Path, ack: object) -> None:
    """Entry n holds n; acks say how many there are for certain. The store is compacted every few."""
    n = 0
    with raxlog.open(where / "s.rax", encoding=None) as store:
        for _ in range(ROUNDS):
            for _ in range(APPENDS):
                store.stream("s").append({"n": n, "x": "y" * (n * 97 % 900)}, id=f"{n + 1}-0")
                n += 1
                ack(n)  # type: ignore[operator]
            store.compact()
            store.stream("t").append({"n": n}, id=f"{n}-1")


def forget_to_flush_names(where: Path, ack: object) -> None:
    """The control: the new generation's name may come to the disk after the mark that leads to it."""
    with raxlog.open(where / "s.rax", encoding=None) as store:
        store.stream("s").append({"n": 0, "x": ""}, id="1-0")
        ack(1)  # type: ignore[operator]
        directory.sync_folder = lambda path: None  # type: ignore[assignment]
        store.compact()


def nothing_is_lost(where: Path, acks: list[object]) -> None:
    """What was acknowledged is there, at most one entry more; the store can be written and compacted."""
    path = where / "s.rax"
    least = max(map(int, acks), default=0)  # type: ignore[call-overload]
    if not least and not path.exists():
        return
    with raxlog.open(path, encoding=None) as store:
        stream = store.stream("s")
        found = [(int(entry.id.ms), int(entry.fields[b"n"])) for entry in stream.range()]
        assert found == [(n + 1, n) for n in range(len(found))]
        assert least <= len(found) <= least + 1
        rounds = [int(entry.fields[b"n"]) for entry in store.stream("t").range()]
        assert rounds == [APPENDS * (k + 1) for k in range(len(rounds))]
        assert len(rounds) >= (len(found) - 1) // APPENDS
        stream.append({"n": "more"})
        store.compact()
        assert len(stream) == len(found) + 1
