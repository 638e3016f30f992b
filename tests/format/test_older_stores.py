"""Stores that earlier commits have written are opened, checked, and read as they were written.

    stores/NAME.tar.xz     a store, as the commit of that name has left it
    stores/NAME.json       what that commit read from it
    python tests/format/test_older_stores.py FOLDER NAME   writes both, with the raxlog that is installed
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import raxlog

STORES = Path(__file__).with_name("stores")
NAMES = sorted(path.name.removesuffix(".json") for path in STORES.glob("*.json"))


def write(path: Path) -> None:
    """A store with something of all that a store can hold."""
    with raxlog.open(path) as store:
        orders = store.stream("orders")
        for n in range(300):
            orders.append({"item": f"item {n % 7}", "qty": n, "price": n / 4}, id=f"{1000 + n // 3}-{n % 3}")
        orders.append([("a", "1"), ("a", "2"), ("\u00fc", b"\xff\x00"), ("big", "x" * 5000)], id="2000-7")
        orders.delete("1001-1", "1050-0")
        orders.trim(minid="1003-2")
        store.stream("configured", node_max_entries=3, compression="zstd").extend({"n": n} for n in range(50))
        store.stream("emptied").append({"n": 1}, id="5-5")
        store.stream("emptied").trim(maxlen=0)
        store.stream("once").append({"n": 1}, producer="p", idempotent_id="i")
        mail = orders.create_group("mail", start="0")
        taken = [entry.id for entry in mail.read("worker-1", count=40)]
        mail.read("worker-2", count=30)
        mail.ack(*taken[:25])
        mail.claim("worker-3", *taken[30:35], min_idle=0)
        mail.nack(*taken[36:38], mode="fail")
        orders.create_group("late", start="$")
        store.bind("orders.>", stream="published")
        with store.subscribe("orders.*.new", durable="audit") as audit:
            for n in range(5):
                store.publish(f"orders.{n}.new", {"n": n})
            for _, message in zip(range(2), audit, strict=False):
                audit.ack(message)
        with store.transaction() as tx:
            tx.state["sold"] = b"17"
            tx.stream("invoices").append({"order": "1000-0"}, id="1-1")


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


@pytest.mark.parametrize("name", NAMES)
def test_a_store_of_an_earlier_commit_reads_as_it_was_written(name: str, tmp_path: Path) -> None:
    with tarfile.open(STORES / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    store = tmp_path / name
    assert raxlog.check(store).ok
    assert read(store) == json.loads((STORES / f"{name}.json").read_text("utf-8"))
    with raxlog.open(store) as opened:  # it can be written as well
        opened.stream("orders").append({"item": "new"})
    assert raxlog.check(store).ok


def test_a_store_of_today_reads_as_an_earlier_commit_has_written_it(tmp_path: Path) -> None:
    write(tmp_path / "s")
    assert read(tmp_path / "s") == json.loads((STORES / f"{NAMES[-1]}.json").read_text("utf-8"))


if __name__ == "__main__":
    folder, name = Path(sys.argv[1]), sys.argv[2]
    write(folder / name)
    (folder / f"{name}.json").write_text(json.dumps(read(folder / name)) + "\n", "utf-8")
    with tarfile.open(folder / f"{name}.tar.xz", "w:xz") as packed:
        packed.add(folder / name, name)
