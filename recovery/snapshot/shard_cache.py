"""The shard cache: shards of a remote folder, kept in a local one of a limited size.

    cache/
    ├── 5f0c…-1_00000.shard         whole and verified; its mtime is its last use
    ├── 5f0c…-1_00000.shard.lock    held by the process that fetches or opens it
    └── 5f0c…-1_00001.shard.part-…  being fetched

Any number of processes of one user share one folder, which is closed to other users. One of them fetches a
shard while the others wait for it; it appears by a rename, and is verified each time it is opened: one
damaged on this disk is fetched again. The least recently used are removed first, also where the disk is
full before the limit is reached. An open shard can be read to its end even if its name is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from xxhash import xxh3_64

from ...storage.errors import CorruptionError, InvalidArgument, StoreError
from .location import RemoteFolder
from .manifest import ShardFile

_LOCK = ".lock"
_PART = ".part-"


class ShardCache:
    """A folder of fetched shards, of ``limit`` bytes at most. InvalidArgument for a limit below 1.

    The folder is made on first use. A single shard above the limit is kept only while it is open.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        if type(limit) is not int or limit < 1:
            raise InvalidArgument(f"limit={limit!r} must be a whole number of bytes >= 1")
        self.folder: Path = Path(folder)
        self.limit = limit

    def open(self, place: RemoteFolder, shard: ShardFile) -> BinaryIO:
        """The shard as an open local file, fetched by one process if need be.

        CorruptionError if what was fetched differs from the manifest; NotAStore or StoreError if it
        cannot be fetched or kept.
        """
        name = f"{shard.sum}-{shard.bytes}-{shard.path.replace('/', '_')}"
        kept = self.folder / name
        try:
            private_folder(self.folder, "cacheDir")
            with self._locked(name):
                file = _opened(kept, shard)
                if file is None:
                    self._make_room(shard.bytes, name)
                    file = self._fetched(place, shard, kept)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.utime(kept)
                if shard.bytes > self.limit:
                    kept.unlink(missing_ok=True)
                return file
        except OSError as error:
            raise StoreError(f"cannot keep shards in {self.folder}: {error}. Name another cache (cacheDir).") from error

    @contextlib.contextmanager
    def _locked(self, name: str, how: int = fcntl.LOCK_EX) -> Iterator[None]:
        """Hold the lock on a shard. OSError if that fails, or without waiting if ``how`` has LOCK_NB."""
        path = self.folder / f"{name}{_LOCK}"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, how)
                is_open = False
                with contextlib.suppress(FileNotFoundError):
                    is_open = os.path.samestat(os.stat(path), os.fstat(descriptor))
                if is_open:
                    yield
                    return
            finally:
                os.close(descriptor)

    def _fetched(self, place: RemoteFolder, shard: ShardFile, kept: Path) -> BinaryIO:
        part = kept.with_name(f"{kept.name}{_PART}{os.urandom(4).hex()}")
        try:
            part.touch(0o600)
            place.fetch(shard.path, part)
            file = _opened(part, shard)
            if file is None:
                raise CorruptionError(f"{place.url}/{shard.path} is not what its manifest lists", snapshot=True)
            part.rename(kept)
            return file
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self, size: int, name: str) -> None:
        """Remove the least recently used until ``size`` more bytes fit, files being fetched included."""
        rows = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    rows.append((status.st_mtime_ns, status.st_size, entry.name))
        total = sum(row[1] for row in rows)
        limit = min(self.limit, total + shutil.disk_usage(self.folder).free)
        for _, bytes_, old in sorted(rows):
            if total + size <= limit:
                return
            if old.endswith(_LOCK) or old == name:
                continue
            owner = old.partition(_PART)[0]
            ours = owner == name
            lock = contextlib.nullcontext() if ours else self._locked(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError), lock:  # not what another process fetches or opens
                (self.folder / old).unlink(missing_ok=True)
                if not ours:
                    (self.folder / f"{owner}{_LOCK}").unlink(missing_ok=True)
                total -= bytes_


def private_folder(folder: Path, option: str) -> None:
    """Make a folder of this user's that no other can read or write. StoreError if it is another user's; OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if {folder.lstat().st_uid, folder.stat().st_uid} != {os.geteuid()}:  # not behind another's link, either
        raise StoreError(f"{folder} belongs to another user, who could change what is in it. Name a folder of this "
                         f"user with {option}")
    folder.chmod(0o700)


def _opened(path: Path, shard: ShardFile) -> BinaryIO | None:
    """A local file, opened, if it is the whole shard; None if it must be fetched."""
    try:
        file: BinaryIO = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        return None
    found = hashlib.file_digest(file, xxh3_64).hexdigest()  # type: ignore[arg-type]  # it has what is needed
    if (file.tell(), found) == (shard.bytes, shard.sum):
        file.seek(0)
        return file
    file.close()
    return None
