"""Bytes on disk: a node is closed when its block, as it is stored, fills the pages it takes.

    entries of 2,100 bytes     | a | b    c | d    e |     five on three pages, not one on each
                               |--- 1 ---|--- 2 ---|--- 3 ---|
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog.storage.format import keys, records
from stored_nodes import check_stream, nodes_of

PAGE = 4096
WORDS = (  # noqa: SIM905 - to be read
    "the of and to in a is that for it as was with be by on not this are from have which you one all were would there "
    "their been has when who will more no if out so said what up its about into than them can only other new some time"
).split()

sizes = st.sampled_from([1, 30, 300, 900, 1400, 2100, 3900, 4100, 8200, 12300, 30_000, 70_000])


def pages_in_use(path: Path) -> int:
    """The pages that hold the records of a store that is closed."""
    with lmdb.open(str(path / "000001"), readonly=True, lock=False) as env:
        stat = env.stat()
    return int(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])


def nodes(path: Path) -> list[tuple[bytes, int, int]]:
    """Key, codec and bytes as stored of each node of stream number 1, of a store that is closed."""
    with lmdb.open(str(path / "000001"), readonly=True, lock=False) as env, env.begin() as txn:
        return [
            (key, records.block_header(key, value).codec, len(value))
            for key, value in txn.cursor() if key.startswith(keys.family(1, keys.NODE))
        ]


def documents(count: int) -> Iterator[dict[str, bytes]]:
    """JSON documents of 300 bytes: fields that vary, and a text of common words."""
    chance = random.Random(8)
    for n in range(count):
        text = json.dumps({
            "id": n, "at": 1732185612345 + 40 * n, "user": f"user-{chance.randrange(10_000)}",
            "session": f"{chance.getrandbits(32):08x}", "kind": chance.choice(["view", "click", "purchase"]),
            "page": f"/products/{chance.randrange(5000)}", "price": round(chance.random() * 100, 2),
            "text": " ".join(chance.choices(WORDS, k=60)),
        })
        yield {"doc": text[:298].encode() + b'"}'}


def bytes_per_raw_byte(path: Path, entries: list[dict[str, bytes]], by: str, **limits: Any) -> float:
    """What a store of these entries takes on disk, for each byte of names and values."""
    with raxlog.open(path, durability="relaxed", **limits, encoding=None) as store:
        stream = store.stream("events")
        if by == "append":
            for entry in entries:
                stream.append(entry)
        for at in range(0, len(entries) if by == "extend" else 0, 100):
            stream.extend(entries[at : at + 100])
        assert [entry.fields for entry in stream.range()] == [
            {name.encode(): value for name, value in entry.items()} for entry in entries
        ]
    assert raxlog.check(path).ok
    raw = sum(len(name) + len(value) for entry in entries for name, value in entry.items())
    return pages_in_use(path) * PAGE / raw


@pytest.mark.parametrize("by", ["append", "extend"])
@pytest.mark.parametrize("size", [1400, 2100, 4100, 8200, 12_300])
def test_entries_of_any_size_take_at_most_a_third_more_than_their_bytes(tmp_path: Path, size: int, by: str) -> None:
    count = 300 if by == "append" else 2000
    entries = [{"v": bytes([65 + n % 26]) * size} for n in range(count)]
    assert bytes_per_raw_byte(tmp_path / "store.rax", entries, by) <= 1.3


@pytest.mark.parametrize("by", ["append", "extend"])
def test_json_documents_under_zstd_take_less_than_half_of_their_bytes(tmp_path: Path, by: str) -> None:
    entries = list(documents(500 if by == "append" else 5000))
    assert bytes_per_raw_byte(tmp_path / "store.rax", entries, by, compression="zstd") <= 0.45


@pytest.mark.parametrize("compression", ["zstd", "compact"])
def test_what_cannot_be_packed_is_gathered_as_if_it_had_not_been_tried(tmp_path: Path, compression: str) -> None:
    chance = random.Random(2)
    for size in (300, 2100, 8200):
        entries = [{"v": chance.randbytes(size)} for _ in range(400)]
        assert bytes_per_raw_byte(tmp_path / f"{size}.rax", entries, "extend", compression=compression) <= 1.3


def test_small_entries_still_fill_one_page_a_node(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax", encoding=None) as store:
        store.stream("events").extend({"sensor": "device-000123", "temp": 21.5, "seq": n} for n in range(5000))
    assert all(3900 < size <= 4080 for _, _, size in nodes(tmp_path / "store.rax")[:-1])


def test_limits_that_are_given_split_where_redis_does(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax", node_max_bytes=4096, node_max_entries=100, encoding=None) as store:
        store.stream("events").extend({"v": b"x" * 2100} for _ in range(10))
    assert len(nodes(tmp_path / "store.rax")) == 10


@settings(max_examples=examples(20))
@given(st.lists(sizes, min_size=1, max_size=40), st.sampled_from(["none", "zstd", "compact"]), st.integers(0, 99))
def test_sizes_that_mix_are_split_alike_by_append_and_extend_and_fill_their_pages(
    wanted: list[int], compression: str, seed: int
) -> None:
    rng = random.Random(seed)
    text = bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=100_000))
    entries = [{"v": text[at : at + size]} for at, size in enumerate(wanted)]
    # a node's size depends on the milliseconds between its entries
    times = accumulate(rng.choices([0, 1, 40, 5000], k=len(wanted)))
    ids = [f"{ms + 1}-{at}" for at, ms in enumerate(times)]
    with (tempfile.TemporaryDirectory() as name,
          raxlog.open(Path(name) / "s.rax", durability="relaxed", compression=compression, encoding=None) as store):
        for entry, entry_id in zip(entries, ids, strict=True):
            store.stream("append").append(entry, entry_id)
        for at in range(0, len(entries), 7):
            store.stream("extend").extend(entries[at : at + 7], ids[at : at + 7])
        for stream in ("append", "extend"):
            check_stream(store, stream.encode())
            assert [entry.fields[b"v"] for entry in store.stream(stream).range()] == [e["v"] for e in entries]
        stored = nodes_of(store, b"append")
        assert [node.head.live for node in stored] == [node.head.live for node in nodes_of(store, b"extend")]
    for node in stored[:-1] if compression == "none" else []:
        size = len(node.listpack) + records.HEADER_SIZE
        full = size >= records.run_bytes(size) * 4 / 5
        assert full or size + max(wanted) > 7 * 4080, "neither full, nor was the next entry too large for it"


def test_a_store_that_is_opened_for_each_append_fills_its_nodes_as_well(tmp_path: Path) -> None:
    entries = list(documents(80))
    for compression in ("none", "zstd"):
        path = tmp_path / compression
        for entry in entries:
            with raxlog.open(path, durability="relaxed", compression=compression, encoding=None) as store:
                store.stream("events").append(entry)
        assert raxlog.check(path).ok
        assert all(records.run_bytes(size) * 4 / 5 <= size for _, _, size in nodes(path)[:-1])
