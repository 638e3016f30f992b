"""Locations of shards: a local folder, or a folder of any file system that fsspec supports.

    /data/shards        file:///data/my%20shards       local: plain files
    s3://bucket/shards  http://host/shards  memory://…   fsspec, which is loaded only then
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from ...storage import clocks
from ...storage.errors import InvalidArgument, NotAStore, NotInstalled, StoreError
from ...storage.folder import directory

RETRY_SECONDS = 10.0  # after which no retry begins
MOST_WAIT = 30.0  # seconds of a server's Retry-After that are waited for
CONNECT_SECONDS, SILENT_SECONDS = 10, 20  # how long a server may take to connect, and be silent
_PASSING = "(?i)connect|timeout|payload|incomplete"  # exceptions' names: the libraries share no base class
_CREDENTIALS = (". Set the credentials that this kind of URL takes (s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) "
                "in the environment; on a cluster in that of the workers, too")
_FILE = re.compile("(?is)file:(?://(?:localhost)?(?=/)|(?!//))(/.*)")  # RFC 8089
_SCHEME = re.compile("[a-zA-Z][a-zA-Z0-9+.-]+:/")


class LocalFolder:
    """A folder of this machine. Files are named by their path within it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url: str = str(path)

    def read(self, name: str) -> bytes:
        """The bytes of a small file. NotAStore if it is absent, StoreError if it cannot be read."""
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading; the same errors."""
        try:
            file: BinaryIO = open(self.path / name, "rb")  # noqa: SIM115 - the caller closes it
            return file
        except (FileNotFoundError, NotADirectoryError):
            raise _absent(self.path / name) from None
        except OSError as error:
            raise StoreError(f"{self.path / name} cannot be read: {error}.") from error

    def snapshots(self) -> list[str]:
        """The names of the snapshots in it; [] for a store's own folder."""
        inside = () if (self.path / directory.CURRENT).exists() else self.path.glob(f"*/{directory.MANIFEST}")
        return sorted(file.parent.name for file in inside if directory.is_snapshot(file.parent))


class RemoteFolder:
    """A folder of a file system of fsspec's. Any exception of its libraries becomes a StoreError.

    An operation is repeated for RETRY_SECONDS while the server cannot be reached or reports a fault of its own.
    """

    def __init__(self, url: str) -> None:
        self.url: str = url.rstrip("/")
        try:
            import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - optional
        except ImportError:
            raise NotInstalled(
                f"{url} is a URL, and fsspec, which opens those, is missing: pip install 'raxlog[spark]'"
            ) from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url, **_time_outs(self.url))
        except ImportError as error:  # its cause names the package that is missing
            missing = getattr(error.__cause__ or error, "name", None)
            raise NotInstalled(f"{url} cannot be opened: {error}: pip install {missing}") from error
        except Exception as error:  # an unknown protocol; for hdfs an OSError if its library is not there
            raise StoreError(f"{url} cannot be opened: {error}. Set up what this kind of URL needs (hdfs: Java, "
                             "libhdfs, HADOOP_HOME, CLASSPATH), on a cluster on the workers, too; or copy the "
                             "files into a local folder, and name that") from error
        if self.url.startswith("s3"):
            self._files.retries = 1  # of s3fs' own: _do() repeats

    def read(self, name: str) -> bytes:
        found: bytes = self._do("read", name, self._files.cat_file)
        return found

    def open(self, name: str) -> BinaryIO:
        with tempfile.NamedTemporaryFile(prefix="raxlog-") as copy:  # a connection may break at any byte
            self.fetch(name, Path(copy.name))
            return open(copy.name, "rb")

    def snapshots(self) -> list[str]:
        self._files.invalidate_cache()
        found = self._do("list", "", lambda path: self._files.glob(f"{path}*/{directory.MANIFEST}"))
        return sorted(path.split("/")[-2] for path in found)

    def fetch(self, name: str, to: Path) -> None:
        self._do("read", name, lambda path: self._files.get_file(path, str(to)))

    def put(self, source: Path, name: str) -> None:
        """Upload a file, all of it or nothing."""
        parent = f"{self._root}/{name}".rpartition("/")[0]
        self._do("write", name, lambda path: (self._files.makedirs(parent, exist_ok=True),
                                              self._files.put_file(str(source), path)))

    def is_vacant(self) -> bool:
        """Whether there is nothing at the URL."""
        files = self._do("read", "", lambda _: self._files.exists(self._root) and self._files.find(self._root))
        return not files

    def remove(self, name: str) -> None:
        self._do("remove", name, self._files.rm_file)

    def _do(self, what: str, name: str, call: Any) -> Any:
        last = clocks.elapsed() + RETRY_SECONDS
        while True:
            try:
                return call(f"{self._root}/{name}")
            except FileNotFoundError:
                raise _absent(f"{self.url}/{name}") from None
            except Exception as error:
                kind = type(error).__name__
                if what == "read" and getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise  # this machine's disk is full
                status, wait = _answer(error)
                passing = status >= 500 or status in (408, 429) or re.search(_PASSING, kind)
                if not passing or clocks.elapsed() > last:
                    todo = _CREDENTIALS if re.search("Credential|Permission", kind) else ""
                    todo += f" (the server was silent for {SILENT_SECONDS} s)" if "imeout" in kind else ""
                    raise StoreError(f"cannot {what} {self.url}/{name}: {kind}: {error}{todo}") from error
            clocks.sleep(wait)


def _time_outs(url: str) -> dict[str, Any]:
    """Arguments for the file system of a URL, by which it waits no longer for a silent server."""
    if url.startswith("s3"):
        return {"config_kwargs": {"connect_timeout": CONNECT_SECONDS, "read_timeout": SILENT_SECONDS,
                                  "retries": {"total_max_attempts": 1}}}
    if not url.startswith("http"):
        return {}
    from aiohttp import ClientTimeout  # noqa: PLC0415 - optional

    return {"client_kwargs": {"timeout": ClientTimeout(None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)}}


def _answer(error: Exception) -> tuple[int, float]:
    """The status of a server's answer, 0 if there was none, and how many seconds to wait before the next request."""
    of_s3 = (getattr(error.__cause__ or error, "response", None) or {}).get("ResponseMetadata", {})
    status = getattr(error, "status", None) or of_s3.get("HTTPStatusCode", 0)
    headers = getattr(error, "headers", None) or of_s3.get("HTTPHeaders", {})
    asked = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    try:
        wait = float(asked) if asked[:1].isdecimal() else (
            parsedate_to_datetime(asked).timestamp() - clocks.machine_ns() / 1e9)
    except (TypeError, ValueError):  # none, or not one
        wait = 0.0
    return status, min(max(wait, 0.5), MOST_WAIT)


def local_path(where: str | os.PathLike[str]) -> Path | None:
    """The path, if it is a local one; None for a URL."""
    if not isinstance(where, str) or "://" not in where:
        directory.place_of(where)
    text = os.fspath(where)
    if text[:5].lower() == "file:":
        found = _FILE.fullmatch(text)
        if found is None:
            raise InvalidArgument(f"{text} names no local file: write file:///folder, with the whole path, or the path")
        return Path(unquote(found[1], errors="surrogateescape"))
    if "://" not in text and _SCHEME.match(text):
        raise InvalidArgument(f"{text} is neither a path nor a URL: write {text.replace(':/', '://', 1)}, or a path "
                              f"(./{text}; Databricks: /dbfs/…)")
    return None if "://" in text else Path(text)


def required_local(where: str | os.PathLike[str], what: str) -> Path:
    """The local path. InvalidArgument for a URL: what is written there, or read, has to be on this machine."""
    path = local_path(where)
    if path is None:
        raise InvalidArgument(f"{os.fspath(where)} is a URL, and {what} a folder of this machine: name its path. Only "
                              "shards ('raxlog snapshot --shards') can be at a URL")
    return path


Location = LocalFolder | RemoteFolder


def location_of(where: str | os.PathLike[str]) -> Location:
    """The folder that a path or URL names. NotInstalled if fsspec is needed and missing."""
    path = local_path(where)
    return RemoteFolder(os.fspath(where)) if path is None else LocalFolder(path)


def _absent(what: object) -> NotAStore:
    return NotAStore(f"{what} is not there")
