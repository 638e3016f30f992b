"""A folder of Parquet files, each with the entries of a range of IDs, one behind the other: export --append-to.

    orders/00000001526919030474-00000000000000000000_00000001526919031473-00000000000000000007.parquet
    orders/00000001526919031474-00000000000000000000_…
    orders.part     being written. Beside the folder: Polars refuses one with a file of another ending in it

The name of a file is its first and its last ID, so what comes next is known without any state beside the files, and
the order of the names is that of the IDs. A file comes into the folder whole, by a rename. So a killed export
leaves nothing there of the file that it was writing, and the next one begins with the entries of that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .....storage.folder import directory
from .....stream.columns.projection import load
from .....stream.node.stream_id import StreamID
from ...status import NO, USAGE, CommandError

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"(\d{20}-\d{20})_(\d{20}-\d{20})\.parquet")


class ParquetFolder:
    """The folder, while this process is the only one that adds to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(f"{path.name}.part")  # what is being written
        self.added: list[str] = []
        self._newest: Path | None = None
        self.last: StreamID | None = None  # of the entries in it
        for name in sorted(os.listdir(path)):
            found = _NAME.fullmatch(name)
            if found is None and name.endswith(".parquet"):
                raise CommandError(f"{path / name} has not been written by export --append-to: name another folder, or "
                                   "take it away", USAGE)
            if found is not None and (self.last is None or StreamID(found[2]) > self.last):
                self.last, self._newest = StreamID(found[2]), path / name

    @property
    def next(self) -> StreamID:
        """The first ID that may be added. CommandError behind the greatest of all."""
        if self.last == StreamID.MAX:
            raise CommandError(f"{self.path} holds the greatest ID, {self.last}: nothing can come behind it", NO)
        return StreamID.MIN if self.last is None else self.last.next()

    def require(self, about: dict[str, str], schema: pa.Schema, last: StreamID) -> None:
        """CommandError unless the entries in it are of this stream, up to ``last`` at most, and in these columns."""
        if self._newest is None or self.last is None:
            return
        from pyarrow import parquet  # noqa: PLC0415

        try:
            with parquet.ParquetFile(self._newest) as file:
                held, said = file.schema_arrow, file.metadata.metadata
        except (load().ArrowException, OSError) as error:
            raise CommandError(f"{self._newest} cannot be read: {error}", USAGE) from None
        metadata = {key.decode(): value.decode() for key, value in (said or {}).items()}
        for key, value in about.items():
            if metadata.get(key) != value:
                has = f"the entries of {key.removeprefix('raxlog.')} {metadata.get(key)}"
                raise CommandError(f"{self.path} holds {has}, and this is {value}: name another folder", USAGE)
        if self.last > last:
            raise CommandError(f"{self.path} holds entries up to {self.last}, and the last ID of the stream is {last}. "
                               "The stream has another history: name another folder", USAGE)
        if not held.equals(schema):
            has, would = (", ".join(f"{field.name} {field.type}" for field in each) for each in (held, schema))
            raise CommandError(f"{self.path} has the columns {has}; this would add {would}. Give --columns, --id and "
                               "--timestamp as before, or name another folder", USAGE)

    def add(self, first: StreamID, last: StreamID) -> None:
        """Take in what has been written, with its first and last ID."""
        directory.sync_file(self.part)
        name = "_".join(f"{sid.ms:020}-{sid.seq:020}" for sid in (first, last)) + ".parquet"
        self.part.rename(self.path / name)
        directory.sync_folder(self.path)
        self.added.append(name)


@contextlib.contextmanager
def appending(path: Path) -> Iterator[ParquetFolder]:
    """The folder, made if there is none. CommandError if another process adds to it, or it cannot be written."""
    try:
        is_new = not path.exists()
        path.mkdir(exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = ParquetFolder(path)
            try:
                yield folder
            finally:
                folder.part.unlink(missing_ok=True)
                if is_new and not folder.added:
                    with contextlib.suppress(OSError):
                        path.rmdir()
        finally:
            os.close(lock)
    except BlockingIOError:
        raise CommandError(f"another process is adding to {path}: wait for its end", USAGE) from None
    except OSError as error:
        why = "it is a mount point; name a folder in it" if error.errno == errno.EXDEV else error.strerror or str(error)
        raise CommandError(f"{path} cannot be written: {why}", USAGE) from None
