"""Records, whatever else runs while one is packed: finalizers, and other threads with these."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgpack
import pytest
import raxlog
from finalizers import finalizing
from raxlog.storage.format import records

KEY = b"\0" * 8 + b"\x01key"


class Four(NamedTuple):
    """A row that is not quite a tuple: the packer makes an iterator of it."""

    a: int = 1
    b: int = 1 << 40
    c: bytes = b"c"
    d: None = None


def test_a_row_is_packed_whole_whatever_finalizers_pack_in_between() -> None:
    rows = [Four(), [1, 2, 3], {"a": Four()}, b"bytes", "text"]
    wanted = [msgpack.packb(row) for row in rows]
    wrong: list[object] = []
    ran = [0]

    def end() -> None:
        ran[0] += 1
        wrong.extend(row for row, want in zip(rows, wanted, strict=True) if records.pack(row) != want)

    with finalizing(end, 7):
        held = []
        for _ in range(2000):
            held.append([None])  # the collector counts what stays
            for row, want in zip(rows, wanted, strict=True):
                if records.pack(row) != want:
                    wrong.append(row)
    assert wrong == []
    assert ran[0] > 100


def test_a_record_that_is_no_msgpack_behind_a_right_checksum_is_damage() -> None:
    body = records.FORMAT_BYTE + b"\x94\x01"
    value = records.checksum(body, records.seed_of(KEY))[::-1] + body
    with pytest.raises(raxlog.CorruptionError, match="no msgpack"):
        records.unseal(KEY, value)


@pytest.mark.parametrize("how", ["the finalizer writes", "the finalizer waits for a thread that writes"])
def test_finalizers_that_run_in_the_middle_of_a_commit_damage_neither_store(tmp_path: Path, how: str) -> None:
    with raxlog.open(tmp_path / "a.rax", durability="relaxed") as one, \
            raxlog.open(tmp_path / "b.rax", durability="relaxed") as other:
        noted, asked, done = [0], threading.Event(), threading.Event()
        deadline = time.monotonic() + 60

        def note() -> None:
            other.stream(f"finalizer-{noted[0]}").append({"n": noted[0]})
            noted[0] += 1

        def work() -> None:
            while asked.wait(max(0.0, deadline - time.monotonic())):
                asked.clear()
                if done.is_set():
                    return
                note()

        def end() -> None:
            if how == "the finalizer writes":
                note()
            else:  # the collector lets other threads run
                asked.set()
                time.sleep(0.001)

        thread = threading.Thread(target=work)
        thread.start()
        with finalizing(end, 13):
            for n in range(300):
                one.stream(f"s-{n}").append({"n": n})
        done.set()
        asked.set()
        thread.join()
        assert noted[0] > 10
    for name, many in (("a", 300), ("b", noted[0])):
        assert raxlog.check(tmp_path / f"{name}.rax").ok
        with raxlog.open(tmp_path / f"{name}.rax") as store:
            found = [next(iter(store.stream(stream))).fields["n"] for stream in store.streams()]
        assert sorted(map(int, found)) == list(range(many))
