"""Damaged snapshots: no flipped byte is missed, and nothing but our own errors comes of any."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import struct
import time
from pathlib import Path

import msgpack
import pytest
import raxlog
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog.recovery.snapshot import digest, incremental, manifest
from raxlog.recovery.snapshot.shard_format import ShardReader
from raxlog.recovery.snapshot.shards import ShardSet
from raxlog.storage.errors import RaxlogError
from snapshot_cases import STORE, files_of, fill, flipped, records
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
LONG = os.environ.get("RAXLOG_LONG") == "1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full snapshot, an increment on it, and shards, of one store."""
    place = tmp_path_factory.mktemp("whole")
    with raxlog.open(place / "store.rax") as store:
        fill(store, 900)
        store.snapshot(place / "full")
        store.stream("orders").append({"n": 1})
        store.snapshot(place / "increment", incremental_to=place / "full")
        store.snapshot(place / "shards", shards=3)
    shutil.rmtree(place / "store.rax")
    return place


@pytest.fixture
def series(whole: Path, tmp_path: Path) -> Path:
    """A copy of them that a test may damage."""
    return shutil.copytree(whole, tmp_path / "series")


@pytest.mark.parametrize("kind", ["full", "increment", "shards"])
def test_verify_finds_any_flipped_byte(series: Path, kind: str) -> None:
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)
    assert raxlog.verify(series / kind).ok
    parts = [series / kind] if kind != "increment" else [series / "full", series / "increment"]
    for file in [file for part in parts for file in files_of(part)]:
        data = file.read_bytes()
        for at in rng.sample(range(len(data)), min(len(data), 1000 if LONG else 25)):
            file.write_bytes(flipped(data, at, rng))
            found = raxlog.verify(series / kind)
            assert not found.ok, (file, at)
            assert any(file.name in problem for problem in found.problems)
        file.write_bytes(data)


@pytest.mark.parametrize("kind", ["full", "shards"])
def test_verify_finds_files_that_are_cut_off_longer_or_gone(series: Path, kind: str) -> None:
    for file in files_of(series / kind):
        data = file.read_bytes()
        for changed in (data[:-1], data + b"\0", b"", None):
            if changed == data:
                continue
            if changed is None:
                file.unlink()
            else:
                file.write_bytes(changed)
            if file.name == "manifest.json" and changed is None:
                with pytest.raises(raxlog.NotAStore):
                    raxlog.verify(series / kind)
            else:
                assert not raxlog.verify(series / kind).ok, (file, changed and len(changed))
            file.write_bytes(data)
    assert raxlog.verify(series / kind).ok


def test_verify_names_the_damaged_chunk(series: Path) -> None:
    data = series / "full" / "000001" / "data.mdb"
    data.write_bytes(flipped(data.read_bytes(), 5000, random.Random(1)))
    (problem,) = raxlog.verify(series / "full").problems
    assert problem.startswith("000001/data.mdb: bytes 0 to ")
    assert "(chunk 0)" in problem


def test_nothing_is_restored_from_damage(series: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    used = [*files_of(series / "increment"), *(series / "full" / name for name in ("000001/data.mdb", "manifest.json"))]
    for file in used:
        data = file.read_bytes()
        for at in rng.sample(range(len(data)), 4):
            file.write_bytes(flipped(data, at, rng))
            with pytest.raises(raxlog.CorruptionError, match=file.name):
                raxlog.restore(series / "increment", tmp_path / "r")
            assert not (tmp_path / "r").exists()
        file.write_bytes(data)
    raxlog.restore(series / "increment", tmp_path / "r")
    assert records(tmp_path / "r").keys() - {STORE} >= records(series / "full").keys() - {STORE}


def test_shards_never_give_what_was_not_written(series: Path) -> None:
    rng = random.Random(SEED)
    shards = ShardSet(series / "shards")
    for shard in shards.manifest.shards:
        with shards.open(shard) as reader:
            wanted = list(reader.nodes())
        file = series / "shards" / shard.path
        data = file.read_bytes()
        places = range(len(data)) if LONG else rng.sample(range(len(data)), min(len(data), 150))
        for changed in [*(flipped(data, at, rng) for at in places), *(data[:at] for at in places), data + b"\0"]:
            file.write_bytes(changed)
            got = []
            with pytest.raises((raxlog.CorruptionError, raxlog.NotAStore)) as raised, shards.open(shard) as reader:
                got.extend(reader.nodes())
            assert shard.path in str(raised.value)
            assert got == wanted[: len(got)]
        file.write_bytes(data)


def test_every_byte_of_a_manifest_counts(whole: Path) -> None:
    rng = random.Random(SEED)
    data = (whole / "shards" / "manifest.json").read_bytes()
    for at in range(len(data)):
        with pytest.raises(raxlog.CorruptionError):
            manifest.decode(flipped(data, at, rng), "m")


def test_a_newer_manifest_is_no_damage(whole: Path, tmp_path: Path) -> None:
    row = json.loads((whole / "full" / "manifest.json").read_bytes())
    del row["checksum"]
    body = json.dumps(row | {"format": 2, "kind": "quite new"}, indent=1).encode().removesuffix(b"\n}")
    newer = body + f',\n "checksum": "{xxh3_64_hexdigest(body)}"\n}}\n'.encode()
    place = tmp_path / "new"
    place.mkdir()
    (place / "manifest.json").write_bytes(newer)
    for call in (raxlog.verify, lambda path: raxlog.restore(path, tmp_path / "r"), ShardSet):
        with pytest.raises(raxlog.UnsupportedFormat, match="format 2"):
            call(place)


def test_members_of_a_later_manifest_are_passed_over(whole: Path) -> None:
    made = manifest.read(whole / "full")
    row = json.loads(manifest.encode(made))
    del row["checksum"]
    row["colour"] = "blue"
    row["streams"][0]["colour"] = "red"
    row["files"]["digest"]["colour"] = "green"
    body = json.dumps(row, indent=1).encode().removesuffix(b"\n}")
    tail = f',\n "checksum": "{xxh3_64_hexdigest(body)}"\n}}\n'.encode()
    assert manifest.decode(body + tail, "m") == made


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=1000 if LONG else 150, deadline=None)
def test_any_bytes_read_as_a_manifest_give_our_errors_only(data: bytes, sealed: bool) -> None:
    if sealed:
        data += f',\n "checksum": "{xxh3_64_hexdigest(data)}"\n}}\n'.encode()
    with pytest.raises(raxlog.CorruptionError):
        manifest.decode(data, "m")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(anything, st.sampled_from(list(manifest.Manifest.__dataclass_fields__)))
@settings(max_examples=2000 if LONG else 150, deadline=None)
def test_a_sealed_manifest_of_wrong_types_gives_our_errors_only(whole: Path, value: object, member: str) -> None:
    row = json.loads((whole / "shards" / "manifest.json").read_bytes())
    del row["checksum"]
    body = json.dumps(row | {member: value}, indent=1).encode().removesuffix(b"\n}")
    try:
        made = manifest.decode(body + f',\n "checksum": "{xxh3_64_hexdigest(body)}"\n}}\n'.encode(), "m")
    except RaxlogError:
        return
    assert isinstance(made.bytes, int)


@given(anything | st.lists(st.integers() | st.binary(max_size=9), min_size=6, max_size=8), st.binary(max_size=80),
       st.integers(0, 3), st.booleans())
@settings(max_examples=2000 if LONG else 200, deadline=None)
def test_a_sealed_shard_without_sense_gives_our_errors_only(row: object, rows: bytes, count: int, packed: bool) -> None:
    try:
        body = msgpack.packb(row)
    except OverflowError:
        return
    head = struct.pack("<8sBI", b"raxshard", 1, len(body)) + body
    frame = struct.pack("<IIQQ", 0, count, 5, 7)
    if packed:
        content = zstandard.compress(rows)
        frame = struct.pack("<IIQQ", len(content), count, 5, 7) + content
    data = head + struct.pack("<Q", xxh3_64_intdigest(head)) + struct.pack("<Q", xxh3_64_intdigest(frame)) + frame
    with contextlib.suppress(RaxlogError):
        list(ShardReader(io.BytesIO(data)).nodes())


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_read_as_digest_or_changes_give_our_errors_only(tmp_path_factory: pytest.TempPathFactory,
                                                                  data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes"
    file.write_bytes(data)
    for read in (digest.read_digest, incremental.read_changes):
        try:
            list(read(file))
        except raxlog.CorruptionError:
            continue
