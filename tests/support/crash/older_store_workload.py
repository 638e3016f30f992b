"""A store of an earlier raxlog that is opened for writing: what it is given a log in must lose nothing of it."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import raxlog

STORES = Path(__file__).parents[2] / "format" / "stores"


def read(path: Path) -> dict[str, Any]:
    """What the store holds, as plain values; nothing that depends on the time of day."""
    found: dict[str, Any] = {}
    with raxlog.open(path, readonly=True) as store:
        for name in store.streams():
            stream = store.stream(name)
            entries = [[str(entry.id), [[key.hex(), value.hex()] for key, value in entry.pairs]] for entry in stream]
            if name in (b"published", b"configured", b"once") or name.startswith(b"$"):
                entries = [[None, pairs] for _, pairs in entries]  # the clock gave the IDs
            groups = {}
            for row in stream.groups():
                group = stream.group(row.name)
                pending = [[str(one.consumer), one.deliveries] for one in group.pending("-", "+", 1000)]
                groups[row.name.decode()] = {"pending": pending, "lag": group.lag, "entries_read": row.entries_read}
            found[name.decode()] = {"entries": entries, "length": len(stream), "groups": groups,
                                    "added": stream.info().entries_added, "half": stream.count("1050", "+")}
        found["state"] = {key.decode(): value.decode() for key, value in store.state.items()}
        found["bindings"] = [[one.subject, one.stream.decode()] for one in store.bindings()]
    return json.loads(json.dumps(found, default=str))  # type: ignore[no-any-return]


def unpack(name: str, folder: Path) -> Path:
    """The store of that name, as the earlier raxlog has left it."""
    with tarfile.open(STORES / f"{name}.tar.xz") as packed:
        if hasattr(tarfile, "data_filter"):  # not before Python 3.11.4: Debian 12 has 3.11.2
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(folder)
    return folder / name


def opened(folder: Path, ack: Any, *, name: str) -> None:
    """The store lies there, flushed; it is opened for writing, and gets two entries."""
    place = unpack(name, folder)
    for path in [*(file for file in place.rglob("*") if file.is_file()), place / "000001", place, folder]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    ack(0)
    with raxlog.open(place, max_map_size=1 << 20) as store:  # the log is small, then, and soon written
        for n in (1, 2):
            store.stream("new").append({"n": n})
            ack(n)


def check(folder: Path, acks: list[int], *, name: str) -> None:
    """All that the earlier raxlog had committed is there, and what was acknowledged since; it takes more."""
    if not acks:
        return
    found = read(folder / name)
    new = found.pop("new", {"length": 0})
    assert found == json.loads((STORES / f"{name}.json").read_text("utf-8"))
    assert acks[-1] <= new["length"] <= acks[-1] + 1
    with raxlog.open(folder / name) as store:
        assert store._env.map.log is not None
        store.stream("new").append({"n": "more"})
        assert len(store.stream("new")) == new["length"] + 1
        assert len(store.stream("orders")) == found["orders"]["length"]
