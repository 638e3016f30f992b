"""What docs/format-snapshots.md says, held against snapshots by a reader written from it alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
import raxlog
import zstandard
from raxlog.stream.node import decode
from snapshot_cases import STORE, fill, records
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

CHUNK = 8_388_608


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full snapshot, an increment on it, shards, and a store restored from the increment."""
    place = tmp_path_factory.mktemp("formats")
    with raxlog.open(place / "store.rax", encoding=None) as store:
        fill(store, 900)
        store.snapshot(place / "full")
        store.stream("orders").append({"n": 1})
        store.delete_stream("empty")
        store.snapshot(place / "increment", incremental_to=place / "full")
        store.snapshot(place / "shards", shards=3)
        store.snapshot(place / "second full")
    raxlog.restore(place / "increment", place / "restored.rax")
    return place


def manifest_of(folder: Path) -> dict[str, Any]:
    data = (folder / "manifest.json").read_bytes()
    body, tail = data[:-36], data[-36:]
    assert tail == f',\n "checksum": "{xxh3_64_hexdigest(body)}"\n}}\n'.encode("ascii")
    row: dict[str, Any] = json.loads(data)
    assert row["format"] == 1
    return row


def unpacked(file: Path) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes())


def digest_of(folder: Path) -> dict[bytes, bytes]:
    rows, data, at = {}, unpacked(folder / "digest"), 0
    while at < len(data):
        (size,) = struct.unpack_from("<H", data, at)
        rows[data[at + 2 : at + 2 + size]] = data[at + 2 + size : at + 10 + size]
        at += 10 + size
    return rows


@pytest.mark.parametrize("kind", ["full", "increment", "shards"])
def test_the_manifest_covers_every_file(place: Path, kind: str) -> None:
    made = manifest_of(place / kind)
    assert made["kind"] == kind
    names = {str(file.relative_to(place / kind)) for file in (place / kind).rglob("*") if file.is_file()}
    assert names == {"manifest.json", *made["files"], *(shard["path"] for shard in made["shards"])}
    for name, sums in made["files"].items():
        data = (place / kind / name).read_bytes()
        assert (sums["bytes"], sums["chunk"]) == (len(data), CHUNK)
        assert sums["sums"] == [xxh3_64_hexdigest(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
    for shard in made["shards"]:
        data = (place / kind / shard["path"]).read_bytes()
        assert (shard["bytes"], shard["sum"]) == (len(data), xxh3_64_hexdigest(data))


def test_the_digest_has_every_key_with_its_checksum(place: Path) -> None:
    rows = digest_of(place / "full")
    assert list(rows) == sorted(rows)
    assert rows == {key: value[:8] for key, value in records(place / "full").items()}
    assert len(rows) == manifest_of(place / "full")["records"]


def test_an_increment_laid_over_its_parent_gives_its_state(place: Path) -> None:
    made = manifest_of(place / "increment")
    assert made["parent"] == manifest_of(place / "full")["id"]
    state, data, at, counts = records(place / "full"), unpacked(place / "increment" / "changes"), 0, [0, 0]
    while at < len(data):
        kind, key_size, value_size = struct.unpack_from("<BHI", data, at)
        key = data[at + 7 : at + 7 + key_size]
        counts[kind] += 1
        if kind:
            state[key] = data[at + 7 + key_size : at + 7 + key_size + value_size]
        else:
            del state[key]
        at += 7 + key_size + value_size
    assert (counts, len(data)) == ([made["gone"], made["changed"]], made["changed_bytes"])
    assert {key: value[:8] for key, value in state.items()} == digest_of(place / "increment")
    assert state == records(place / "second full")
    restored = records(place / "restored.rax")
    assert restored.pop(STORE) != state.pop(STORE)
    assert restored == state


def test_shards_hold_the_nodes_of_their_range(place: Path) -> None:
    made = manifest_of(place / "shards")
    entries: dict[bytes, list[Any]] = {}
    for shard in made["shards"]:
        data = (place / "shards" / shard["path"]).read_bytes()
        magic, version, size = struct.unpack_from("<8sBI", data)
        assert (magic, version) == (b"raxshard", 1)
        assert struct.unpack_from("<Q", data, 13 + size)[0] == xxh3_64_intdigest(data[: 13 + size])
        name, number, *ids, live = msgpack.unpackb(data[13 : 13 + size])
        assert (number, live) == (shard["stream"], shard["entries"])
        assert [f"{ids[0]}-{ids[1]}", f"{ids[2]}-{ids[3]}"] == [shard["first"], shard["last"]]
        at, seen = 21 + size, 0
        while True:
            checksum, size, count, ms, seq = struct.unpack_from("<QIIQQ", data, at)
            assert checksum == xxh3_64_intdigest(data[at + 8 : at + 32 + size])
            if not size:
                assert (count, f"{ms}-{seq}", at + 32) == (seen, shard["last"], len(data))
                break
            rows = zstandard.ZstdDecompressor().decompress(data[at + 32 : at + 32 + size])
            at += 32 + size
            row = 0
            for index in range(count):
                here_ms, here_seq, alive, length = struct.unpack_from("<QQII", rows, row)
                assert index or (here_ms, here_seq) == (ms, seq)
                listpack = rows[row + 24 : row + 24 + length]
                found = decode.decode(listpack, here_ms, here_seq, 0, 0, 2**64 - 1, 2**64 - 1)
                assert len(found) == alive
                entries.setdefault(name, []).extend(found)
                row += 24 + length
                seen += 1
        assert seen == shard["nodes"]
    with raxlog.open(place / "second full", readonly=True, encoding=None) as store:
        assert {name: list(store.stream(name).range()) for name in store.streams()} == entries
        pending = store.stream("orders").group("billing").pending_entries(count=1000)
    number = next(stream["number"] for stream in made["streams"] if stream["name"] == "orders")
    rows = list(msgpack.Unpacker(unpacked_stream(place / "shards" / str(number) / "pending")))
    assert [(group, (ms, seq), who, count) for group, ms, seq, who, _, count in rows] == [
        (b"billing", entry.id, entry.consumer, entry.deliveries) for entry in pending
    ]


def unpacked_stream(file: Path) -> Any:
    return zstandard.ZstdDecompressor().stream_reader(file.open("rb"))


def test_points_are_the_ids_of_every_so_many_entries(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax", encoding=None) as store:
        orders = store.stream("orders")
        orders.extend([{"n": n} for n in range(5500)])
        orders.delete(*[entry.id for entry in orders.range(count=900)][::2])
        ids = [entry.id for entry in orders.range()]
        store.snapshot(tmp_path / "s")
    (told,) = manifest_of(tmp_path / "s")["streams"]
    assert told["every"] == 1000
    assert told["points"] == [str(ids[k]) for k in range(1000, len(ids), 1000)]
