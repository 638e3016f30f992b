"""Locations: paths and URLs of files, and servers that are silent, busy, or not there."""

from __future__ import annotations

import http.server
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import raxlog
from raxlog.recovery.snapshot import location
from raxlog.recovery.snapshot.location import RemoteFolder, local_path
from raxlog.recovery.snapshot.shard_cache import ShardCache
from raxlog.recovery.snapshot.shards import ShardSet

Answer = tuple[int, dict[str, str]]
KINDS = ("http", "s3")


@pytest.fixture
def busy() -> Iterator[Callable[..., tuple[str, list[float]]]]:
    """A server that gives the answers asked for, then 200 and "here": its URL, and when requests came."""
    pytest.importorskip("aiohttp")
    servers = []

    def start(*answers: Answer) -> tuple[str, list[float]]:
        left, came = list(answers), []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                came.append(time.monotonic())
                status, headers = left.pop(0) if left else (200, {})
                self.send_response(status)
                for name, value in (headers | {"Content-Length": "4"}).items():
                    self.send_header(name, value() if callable(value) else value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(b"here")

            do_HEAD = do_GET  # by s3 first

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", came

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that takes connections and never says a word."""
    pytest.importorskip("aiohttp")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def folder(kind: str, url: str, patched: pytest.MonkeyPatch) -> RemoteFolder:
    """The folder of a server by http, or by s3 as its endpoint."""
    if kind == "http":
        return RemoteFolder(f"{url}/shards")
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()  # a file system keeps its endpoint
    for name, value in {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
                        "AWS_EC2_METADATA_DISABLED": "true"}.items():
        patched.setenv(name, value)
    return RemoteFolder("s3://bucket/shards")


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_server_is_given_up_after_a_bounded_time(
    kind: str, silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert location.CONNECT_SECONDS + location.SILENT_SECONDS + location.RETRY_SECONDS <= 60
    monkeypatch.setattr(location, "SILENT_SECONDS", 1)
    monkeypatch.setattr(location, "RETRY_SECONDS", 0.5)
    place = folder(kind, silent, monkeypatch)
    for call in (lambda: place.read("manifest.json"), lambda: place.fetch("1/0.shard", tmp_path / "part"),
                 lambda: place.open("1/pending")):
        began = time.monotonic()
        with pytest.raises(raxlog.StoreError, match=r"cannot read .*silent for 1 s"):
            call()
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_busy_server_is_asked_again(kind: str, status: int, busy: Callable[..., Any],
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    url, came = busy((status, {}))
    assert folder(kind, url, monkeypatch).read("manifest.json") == b"here"
    assert len(came) == (2 if kind == "http" else 3)


def in_seconds(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("asked", "least", "most"), [
    (lambda: "2", 2, 3), (lambda: in_seconds(3), 1.9, 3), (lambda: "86400", 3, 3),
    (lambda: in_seconds(86400), 3, 3),
    (lambda: "-5", 0.4, 2), (lambda: "soon", 0.4, 2), (lambda: in_seconds(-9), 0.4, 2),
], ids=["seconds", "time", "a day", "tomorrow", "negative", "no time", "a time ago"])
def test_a_server_is_asked_again_when_it_says_and_within_bounds(
    kind: str, asked: Callable[[], str], least: float, most: float, busy: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "MOST_WAIT", 3.0)
    url, came = busy((429, {"Retry-After": asked}))  # a time from now on, when it answers
    assert folder(kind, url, monkeypatch).read("manifest.json") == b"here"
    assert least <= came[1] - came[0] < most + 10  # on a busy machine


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_stays_busy_is_given_up(kind: str, busy: Callable[..., Any],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "RETRY_SECONDS", 4.0)
    url, came = busy(*[(429, {"Retry-After": "2"})] * 100)
    with pytest.raises(raxlog.StoreError, match="cannot read"):
        folder(kind, url, monkeypatch).read("manifest.json")
    assert 2 <= len(came) <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused_is_not_asked_for_again(kind: str, busy: Callable[..., Any],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    url, came = busy((400, {}), (400, {}))
    with pytest.raises(raxlog.StoreError, match="cannot read"):
        folder(kind, url, monkeypatch).read("manifest.json")
    assert len(came) == (1 if kind == "http" else 2)  # s3 looks for a folder, too


def test_a_kind_of_url_whose_libraries_are_missing_says_what_to_do() -> None:
    pytest.importorskip("fsspec")
    code = "import raxlog\ntry: raxlog.verify('hdfs://namenode:8020/shards')\nexcept raxlog.RaxlogError as e: print(e)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HADOOP", "ARROW_"))}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "hdfs://namenode:8020/shards cannot be opened" in told.stdout
    assert "HADOOP_HOME" in told.stdout
    assert "local folder" in told.stdout


@pytest.mark.parametrize(("text", "path"), [
    ("/a/b%20c", "/a/b%20c"), ("a/b", "a/b"), ("file:/a/b%20c", "/a/b c"),
    ("file:///a/b%20c", "/a/b c"),
    ("FILE://localhost/a", "/a"), ("file:///a/%C3%A9%ff", b"/a/\xc3\xa9\xff"), ("s3://bucket/a", None),
    ("a:b/c", "a:b/c"),
])
def test_a_path_and_the_urls_of_a_file_name_the_same(text: str, path: str | bytes | None) -> None:
    assert local_path(text) == (None if path is None else Path(os.fsdecode(path)))


@pytest.mark.parametrize("text", ["file://elsewhere/a", "file:a", "file://", "s3:/bucket/a", "dbfs:/a"])
def test_a_url_that_would_become_a_folder_here_is_refused(
    text: str, store: raxlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for call in (lambda: raxlog.verify(text), lambda: store.snapshot(text), lambda: store.snapshot(text, shards=2),
                 lambda: raxlog.restore(text, tmp_path / "restored")):
        with pytest.raises(raxlog.InvalidArgument, match=r"write (file:///|\w+://)"):
            call()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("url", ["s3://bucket/events.rax", "file:///tmp/events.rax"])
def test_no_store_is_opened_at_or_salvaged_to_a_url(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    raxlog.open("damaged.rax").close()
    for call in (lambda: raxlog.open(url), lambda: raxlog.salvage("damaged.rax", url)):
        with pytest.raises(raxlog.InvalidArgument, match="by its path on this machine"):
            call()
    assert [folder.name for folder in tmp_path.iterdir()] == ["damaged.rax"]


def test_snapshots_are_made_and_restored_at_urls_of_files_and_at_no_other(
    store: raxlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store.stream("s").append({"n": 1})
    where = f"file://{tmp_path}/my%20backups"
    (tmp_path / "my backups").mkdir()
    store.snapshot(f"{where}/a", keep=2)
    store.stream("s").append({"n": 2})
    store.snapshot(f"{where}/b", incremental_to=f"{where}/a")
    raxlog.restore(f"{where}/b", f"file:{tmp_path}/re%20stored")
    with raxlog.open(tmp_path / "re stored") as restored:
        assert restored.stream("s").info().length == 2
    far = "s3://bucket/x"
    for call in (lambda: store.snapshot(far), lambda: store.snapshot(tmp_path / "c", incremental_to=far),
                 lambda: store.snapshot(far, shards=2, keep=3), lambda: raxlog.restore(far, tmp_path / "d"),
                 lambda: raxlog.restore(tmp_path / "my backups" / "a", far)):
        with pytest.raises(raxlog.InvalidArgument, match="is a URL"):
            call()
    assert not list(tmp_path.glob("*:*"))


def test_the_cache_of_shards_is_of_its_user_alone(store: raxlog.Store, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store.stream("s").append({"n": 1})
    store.snapshot("memory://bucket/private", shards=1)
    shards = ShardSet("memory://bucket/private")
    (shard,) = shards.shards(b"s")
    for kept in (tmp_path / "new" / "cache", tmp_path / "open"):
        if kept.name == "open":
            kept.mkdir()
            kept.chmod(0o777)
        with shards.open(shard, ShardCache(kept, 1 << 30)) as reader:
            assert len(list(reader.nodes())) == 1
        assert stat.S_IMODE(kept.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in kept.iterdir()} == {0o600}
        assert len(list(kept.iterdir())) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_cache_that_belongs_to_another_user_is_refused(store: raxlog.Store, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store.stream("s").append({"n": 1})
    store.snapshot("memory://bucket/other", shards=1)
    shards = ShardSet("memory://bucket/other")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    for name in ("theirs", "link"):
        os.chown(tmp_path / name, 12345, -1, follow_symlinks=False)
        with pytest.raises(raxlog.StoreError, match=rf"{re.escape(name)} belongs to another user.*cacheDir"), \
                shards.open(shards.shards(b"s")[0], ShardCache(tmp_path / name, 1 << 30)):
            pass
    assert list((tmp_path / "ours").iterdir()) == list((tmp_path / "theirs").iterdir()) == []
