"""Shards: the ranges of a stream in files of their own, near or far, and read without LMDB."""

from __future__ import annotations

import functools
import http.server
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import raxlog
from children import Child
from raxlog.recovery.snapshot.manifest import ShardFile
from raxlog.recovery.snapshot.shard_cache import ShardCache
from raxlog.recovery.snapshot.shard_format import ShardReader
from raxlog.recovery.snapshot.shards import ShardSet
from raxlog.stream.node import decode
from snapshot_cases import change, fill, told

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
FIRST, LAST = (0, 0), (2**64 - 1, 2**64 - 1)
RAW = b"\xff\x00raw"
Entries = dict[bytes, list[raxlog.Entry]]


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Entries]:
    """Shards of a store of every kind of record, five of each stream, and the entries of its streams."""
    place = tmp_path_factory.mktemp("cut")
    with raxlog.open(place / "store.rax", encoding=None) as store:
        fill(store, 4000)
        made = store.snapshot(place / "shards", shards=5)
        entries = {name: list(store.stream(name).range()) for name in store.streams()}
    assert made.kind == "shards"
    assert told(made)[b"orders"][0] == len(entries[b"orders"])
    return place / "shards", entries


def read(shards: ShardSet, stream: bytes, start: tuple[int, int] = FIRST, end: tuple[int, int] = LAST,
         cache: ShardCache | None = None) -> list[raxlog.Entry]:
    """The live entries of a range, from those shards that it needs."""
    found = []
    for shard in shards.shards(stream, start, end):
        with shards.open(shard, cache) as reader:
            for master, listpack in reader.nodes(start, end):
                found += decode.decode(listpack, *master, *start, *end)
    return found


def test_the_shards_of_a_stream_together_hold_its_entries(cut: tuple[Path, Entries]) -> None:
    shards, entries = ShardSet(cut[0]), cut[1]
    assert [stream.name for stream in shards.manifest.streams] == sorted(entries)  # bytes, as in the file
    for name, wanted in entries.items():
        assert read(shards, name) == wanted


def test_shards_are_even_to_within_a_node_and_neither_overlap_nor_miss(cut: tuple[Path, Entries]) -> None:
    shards, entries = ShardSet(cut[0]), cut[1]
    for name in (b"orders", RAW):
        parts = shards.shards(name)
        assert len(parts) == 5
        masters = []
        for part in parts:
            with shards.open(part) as reader:
                nodes = list(reader.nodes())
                header = reader.header
            ids = [e.id for master, listpack in nodes for e in decode.decode(listpack, *master, *FIRST, *LAST)]
            assert (header.stream, header.first, header.last) == (name, ids[0], ids[-1])
            assert (part.first, part.last, part.entries, part.nodes) == (ids[0], ids[-1], len(ids), len(nodes))
            assert part.bytes == (cut[0] / part.path).stat().st_size
            masters += [master for master, _ in nodes]
        assert masters == sorted(set(masters))
        most = max(decode.counts(listpack)[0] for _, listpack in nodes)
        even = len(entries[name]) / 5
        assert all(abs(part.entries - even) <= most + 1 for part in parts)
    assert shards.shards(b"empty") == shards.shards(b"nothing of that name") == []


def test_any_range_is_read_from_the_shards_it_needs(cut: tuple[Path, Entries]) -> None:
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)
    shards, entries = ShardSet(cut[0]), cut[1]
    for name in (b"orders", RAW):
        ids = [entry.id for entry in entries[name]]
        parts = shards.shards(name)
        for _ in range(40):
            start, end = sorted((rng.choice(ids), rng.choice(ids)))
            assert read(shards, name, start, end) == [entry for entry in entries[name] if start <= entry.id <= end]
            needed = shards.shards(name, start, end)
            assert needed == [part for part in parts if part.last >= start and part.first <= end]
        assert read(shards, name, ids[7], ids[7]) == [entries[name][7]]
        assert read(shards, name, LAST, LAST) == []


def test_shards_by_size_have_about_that_size(store: raxlog.Store, tmp_path: Path) -> None:
    store.stream("s").extend([{"pad": os.urandom(50).hex()} for _ in range(6000)])
    size = store.snapshot(tmp_path / "s", shard_bytes=100_000).streams[0].bytes
    parts = ShardSet(tmp_path / "s").shards(b"s")
    assert len(parts) == -(-size // 100_000)
    assert len(read(ShardSet(tmp_path / "s"), b"s")) == 6000


def test_a_stream_of_fewer_nodes_than_shards_has_one_for_each(store: raxlog.Store, tmp_path: Path) -> None:
    store.stream("one").append({"n": 1})
    store.stream("few").extend([{"pad": "*" * 4000} for _ in range(3)])
    store.snapshot(tmp_path / "s", shards=100)
    shards = ShardSet(tmp_path / "s")
    assert len(shards.shards(b"one")) == 1
    assert len(shards.shards(b"few")) == len(read(shards, b"few")) == 3


def test_pending_entries_and_groups_come_along(cut: tuple[Path, Entries]) -> None:
    path = cut[0].parent / "store.rax"
    shards = ShardSet(cut[0])
    summary = shards.manifest.stream(b"orders")
    assert summary is not None
    assert [(group.name, group.pending) for group in summary.groups] == [(b"billing", 60), (b"audit", 0)]
    with raxlog.open(path, readonly=True, encoding=None) as store:
        wanted = store.stream("orders").group("billing").pending_entries(count=1000)
    got = list(shards.pending(b"orders"))
    assert [(entry.id, entry.consumer, entry.deliveries) for entry in got] == [
        (entry.id, entry.consumer, entry.deliveries) for entry in wanted
    ]
    assert {entry.group for entry in got} == {b"billing"}
    assert None in {entry.consumer for entry in got}
    assert list(shards.pending(RAW)) == list(shards.pending(b"no such")) == []


def test_shards_of_a_snapshot_are_those_of_its_source(store: raxlog.Store, tmp_path: Path) -> None:
    fill(store, 500)
    first = store.snapshot(tmp_path / "full")
    with raxlog.open(tmp_path / "full", readonly=True, encoding=None) as copy:
        change(store, random.Random(3))
        made = copy.snapshot(tmp_path / "shards", shards=2)
    assert (made.transaction, told(made)) == (first.transaction, told(first))


# -- far away -------------------------------------------------------------------------------


class _Handler(http.server.SimpleHTTPRequestHandler):
    fetched: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.fetched.append(self.path)
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def served(cut: tuple[Path, Entries]) -> Iterator[tuple[str, list[str]]]:
    """The URL of the shards on a server of this machine, and what has been fetched from it."""
    pytest.importorskip("aiohttp")
    pytest.importorskip("fsspec")
    _Handler.fetched = []
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Handler, directory=str(cut[0].parent))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/shards", _Handler.fetched
    server.shutdown()
    server.server_close()


def test_shards_are_read_over_http_each_fetched_once(
    served: tuple[str, list[str]], cut: tuple[Path, Entries], tmp_path: Path
) -> None:
    url, fetched = served
    shards, cache = ShardSet(url), ShardCache(tmp_path / "cache", 1 << 30)
    for _ in range(2):
        assert read(shards, b"orders", cache=cache) == cut[1][b"orders"]
    names = [shard.path for shard in shards.shards(b"orders")]
    assert sorted(path for path in fetched if path.endswith(".shard")) == [f"/shards/{name}" for name in names]
    start = shards.shards(b"orders")[4].first
    fetched.clear()
    read(shards, b"orders", start, cache=ShardCache(tmp_path / "other", 1 << 30))
    assert len(fetched) == 1  # of five


def test_shards_go_to_a_url_with_the_manifest_last(store: raxlog.Store, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    fill(store, 500)
    steps = set()
    store.snapshot("memory://bucket/events", shards=2, progress=lambda step, *_: steps.add(step))
    assert {"copy", "check", "cut", "upload"} <= steps
    shards = ShardSet("memory://bucket/events")
    assert read(shards, b"orders") == list(store.stream("orders").range())
    assert raxlog.verify("memory://bucket/events").ok
    files = fsspec.filesystem("memory")
    names = files.find("/bucket/events")
    assert max(names, key=lambda name: files.info(name)["created"]).endswith("manifest.json")
    with pytest.raises(raxlog.StoreError, match="already"):
        store.snapshot("memory://bucket/events", shards=2)
    assert files.find("/bucket/events") == names
    path = names[1]
    files.pipe_file(path, files.cat_file(path)[:-1])
    assert not raxlog.verify("memory://bucket/events").ok


def test_an_upload_that_fails_leaves_no_snapshot(store: raxlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    fill(store, 500)
    files = fsspec.filesystem("memory")
    real, put = type(files).put_file, []

    def put_file(self: Any, source: str, to: str, **options: Any) -> None:
        put.append(to)
        if len(put) == 4:
            raise OSError("the network is gone")
        real(self, source, to, **options)

    monkeypatch.setattr(type(files), "put_file", put_file)
    with pytest.raises(raxlog.StoreError, match="the network is gone"):
        store.snapshot("memory://bucket/failed", shards=2)
    assert len(put) == 4
    assert not files.exists("/bucket/failed") or files.find("/bucket/failed") == []


def test_without_fsspec_local_paths_work_and_urls_say_what_to_install(
    store: raxlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    store.stream("s").append({"n": 1})
    store.snapshot(f"file://{tmp_path}/a b", shards=1)
    assert len(read(ShardSet(tmp_path / "a b"), b"s")) == 1
    for call in (lambda: store.snapshot("s3://bucket/x", shards=1), lambda: ShardSet("s3://bucket/x"),
                 lambda: raxlog.verify("s3://bucket/x")):
        with pytest.raises(raxlog.NotInstalled, match=r"pip install 'raxlog\[spark\]'"):
            call()


_WITHOUT_S3FS = """
import sys
sys.modules["s3fs"] = None
import raxlog
try:
    raxlog.verify("s3://bucket/shards")
except raxlog.NotInstalled as error:
    print(error)
"""


def test_a_url_whose_package_is_missing_names_it() -> None:
    pytest.importorskip("fsspec")
    told = subprocess.run([sys.executable, "-c", _WITHOUT_S3FS], capture_output=True, text=True, check=True).stdout
    assert "s3://bucket/shards" in told
    assert "pip install s3fs" in told


def test_what_is_no_set_of_shards_is_named(store: raxlog.Store, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store.snapshot(tmp_path / "full")
    for where, says in ((tmp_path / "full", "kind 'full'"), (tmp_path / "nothing", "no snapshot at"),
                        ("memory://nothing/here", "no snapshot at")):
        with pytest.raises(raxlog.NotAStore, match=says):
            ShardSet(where)
    with pytest.raises(raxlog.StoreError, match="cannot be opened"):
        ShardSet("nonsense://a/b")
    with (tmp_path / "full" / "digest").open("rb") as file, pytest.raises(raxlog.NotAStore, match="is not a shard"):
        ShardReader(file)


# -- the cache ------------------------------------------------------------------------------


class _Far:
    """A place that is not this machine's disk, and counts what is fetched from it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"far:{folder}"
        self.folder = folder
        self.fetched: list[str] = []

    def fetch(self, name: str, to: Path) -> None:
        self.fetched.append(name)
        to.write_bytes((self.folder / name).read_bytes())


def kept(cache: ShardCache) -> list[str]:
    return sorted(file.name for file in cache.folder.iterdir() if not file.name.endswith(".lock"))


def use(cache: ShardCache, far: Any, shard: ShardFile) -> None:
    with cache.open(far, shard) as file:
        assert file.read() == (far.folder / shard.path).read_bytes()


def test_the_cache_stays_below_its_limit_and_drops_what_was_used_least_recently(
    cut: tuple[Path, Entries], tmp_path: Path
) -> None:
    far, shards = _Far(cut[0]), ShardSet(cut[0]).shards(b"orders")
    limit = sum(shard.bytes for shard in shards[:3])
    cache = ShardCache(tmp_path / "cache", limit)
    for number in (0, 1, 2, 0, 3):
        use(cache, far, shards[number])
        time.sleep(0.01)
        assert sum(file.stat().st_size for file in cache.folder.iterdir()) <= limit
    assert far.fetched == [shards[n].path for n in (0, 1, 2, 3)]
    use(cache, far, shards[0])
    assert len(far.fetched) == 4
    use(cache, far, shards[1])
    assert len(far.fetched) == 5
    small = ShardCache(tmp_path / "small", 10)
    use(small, far, shards[0])
    assert kept(small) == []


def test_a_shard_damaged_in_the_cache_is_fetched_again(cut: tuple[Path, Entries], tmp_path: Path) -> None:
    far, shard = _Far(cut[0]), ShardSet(cut[0]).shards(b"orders")[0]
    cache = ShardCache(tmp_path, 1 << 30)
    use(cache, far, shard)
    (name,) = kept(cache)
    (tmp_path / name).write_bytes(b"\0" + (tmp_path / name).read_bytes()[1:])
    use(cache, far, shard)
    assert len(far.fetched) == 2


def test_what_was_fetched_wrong_is_not_kept(cut: tuple[Path, Entries], tmp_path: Path) -> None:
    shard = ShardSet(cut[0]).shards(b"orders")[0]
    wrong = tmp_path / "wrong"
    (wrong / shard.path).parent.mkdir(parents=True)
    (wrong / shard.path).write_bytes(b"something else")
    cache = ShardCache(tmp_path / "cache", 1 << 30)
    with pytest.raises(raxlog.CorruptionError, match=shard.path):
        cache.open(_Far(wrong), shard)  # type: ignore[arg-type]
    assert kept(cache) == []
    with pytest.raises(raxlog.InvalidArgument):
        ShardCache(tmp_path, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(raxlog.StoreError, match="Name another cache"):
        ShardCache(tmp_path / "file", 9).open(_Far(cut[0]), shard)  # type: ignore[arg-type]


def test_processes_share_a_cache_that_is_too_small_for_them(cut: tuple[Path, Entries], tmp_path: Path) -> None:
    shards = ShardSet(cut[0]).shards(b"orders")
    limit = sum(shard.bytes for shard in shards[:2])

    def work(say: Any, seed: int) -> None:
        rng, far = random.Random(seed), _Far(cut[0])
        for _ in range(40):
            use(ShardCache(tmp_path, limit), far, rng.choice(shards))
        say(len(far.fetched))

    children = [Child(functools.partial(work, seed=seed)) for seed in range(3)]
    for child in children:
        with child:
            assert child.finish()
    held = [file for file in tmp_path.iterdir() if not file.name.endswith(".lock")]
    assert sum(file.stat().st_size for file in held) <= limit + 2 * max(shard.bytes for shard in shards)
    assert not [file for file in held if ".part-" in file.name]


def test_one_of_many_threads_fetches_for_all(cut: tuple[Path, Entries], tmp_path: Path) -> None:
    far, shard = _Far(cut[0]), ShardSet(cut[0]).shards(b"orders")[0]
    cache = ShardCache(tmp_path, 1 << 30)
    threads = [threading.Thread(target=use, args=(cache, far, shard)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert far.fetched == [shard.path]
