"""Locations of shards: a local folder, or a folder of any file system that fsspec supports.

    /data/shards        file:///data/shards            local: plain files
    s3://bucket/shards  http://host/shards  memory://…   fsspec, which is loaded only then
"""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from ...storage.errors import NotAStore, NotInstalled, StoreError
from ...storage.files import directory

RETRY_SECONDS = 10.0  # after which no retry begins
_PASSING = "(?i)connect|timeout|payload|incomplete"  # exceptions' names: the libraries share no base class
_CREDENTIALS = (". Set the credentials that this kind of URL takes (s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) "
                "in the environment; on a cluster in that of the workers, too")


class LocalFolder:
    """A folder of this machine. Files are named by their path within it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)

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
        self.url = url.rstrip("/")
        try:
            import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - optional
        except ImportError:
            raise NotInstalled(
                f"{url} is a URL, and fsspec, which opens those, is missing: pip install 'raxlog[spark]'"
            ) from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url)
        except ImportError as error:  # its cause names the package that is missing
            missing = getattr(error.__cause__, "name", None)
            raise NotInstalled(f"{url} cannot be opened: {error}: pip install {missing}") from error
        except ValueError as error:  # an unknown protocol
            raise StoreError(f"{url} cannot be opened: {error}") from error

    def read(self, name: str) -> bytes:
        found: bytes = self._do("read", name, self._files.cat_file)
        return found

    def open(self, name: str) -> BinaryIO:
        found: BinaryIO = self._do("read", name, lambda path: self._files.open(path, "rb"))
        return found

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
        there = self._do("read", "", lambda _: self._files.exists(self._root) and self._files.find(self._root))
        return not there

    def remove(self, name: str) -> None:
        self._do("remove", name, self._files.rm_file)

    def _do(self, what: str, name: str, call: Any) -> Any:
        last = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return call(f"{self._root}/{name}")
            except FileNotFoundError:
                raise _absent(f"{self.url}/{name}") from None
            except Exception as error:
                kind = type(error).__name__
                if what == "read" and getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise  # this machine's disk is full
                passing = getattr(error, "status", 0) >= 500 or re.search(_PASSING, kind)
                if not passing or time.monotonic() > last:
                    todo = _CREDENTIALS if re.search("Credential|Permission", kind) else ""
                    raise StoreError(f"cannot {what} {self.url}/{name}: {kind}: {error}{todo}") from error
            time.sleep(0.5)


def local_path(where: str | os.PathLike[str]) -> Path | None:
    """The path, if it is a local one; None for a URL."""
    text = os.fspath(where)
    if text.startswith("file://"):
        return Path(unquote(text.removeprefix("file://")))
    return None if "://" in text else Path(text)


Location = LocalFolder | RemoteFolder


def location_of(where: str | os.PathLike[str]) -> Location:
    """The folder that a path or URL names. NotInstalled if fsspec is needed and missing."""
    path = local_path(where)
    return RemoteFolder(os.fspath(where)) if path is None else LocalFolder(path)


def _absent(what: object) -> NotAStore:
    return NotAStore(f"{what} is not there")
