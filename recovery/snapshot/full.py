"""A full snapshot: one state of a live store, copied while writers go on; itself a store at rest.

    backup.rax/
    ├── CURRENT           names the generation, as in every store
    ├── 000001/data.mdb   LMDB's compacted copy: no free pages
    ├── writer  wake      as in every store; a snapshot is never written to
    ├── digest            every key with its value's checksum, for the next increment
    └── manifest.json     what it holds, of which state, and checksums of the files

Built under a temporary name beside its place, flushed, verified record for record, renamed: a
snapshot that was broken off is no snapshot. The work is done by a process aside (subprocess_task.py),
whose one read transaction is the state that is copied; writers never wait for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb

from ...storage.commit import journal
from ...storage.engine.environment import Environment
from ...storage.engine.open_options import OpenOptions
from ...storage.errors import CorruptionError, StoreError, StoreFull
from ...storage.files import directory, lmdb_errors
from ...storage.format import keys, records
from ...storage.trees.rax import family_rows
from .. import subprocess_task
from . import manifest
from .digest import DIGEST, DigestWriter, verified
from .manifest import Manifest, sums_of
from .summary import streams_of

DATA = f"{directory.FIRST_GENERATION}/{directory.DATA}"
FILES = (DATA, DIGEST, directory.CURRENT, directory.WRITER, directory.WAKE)  # of a full snapshot, but for the manifest
_POLL = 0.1
_SPOKEN = 4096  # records from one report to the next


def make(store: Path, destination: Path, progress: subprocess_task.Progress | None) -> Manifest:
    """Make a full snapshot of a store at ``destination``, where nothing may be yet.

    ReadOnlyStore, StoreFull, CorruptionError (a record of the store is damaged), StoreError; nothing
    is left behind then.
    """
    return build(copy, store, destination, progress, {})


def build(work: Callable[..., None], store: Path, destination: Path, progress: subprocess_task.Progress | None,
          arguments: dict[str, Any]) -> Manifest:
    """Let ``work`` build a snapshot in a process aside, put it in its place, give its manifest."""
    with placed(destination) as place:
        subprocess_task.run(work, {"store": str(store), "place": str(place), **arguments}, progress)
        return manifest.read(place)


@contextlib.contextmanager
def placed(destination: Path, what: str = "snapshot") -> Iterator[Path]:
    """A folder to build in, which bears the name ``destination`` once the block has ended well."""
    refuse_existing(destination)
    destination = Path(os.path.realpath(destination))
    try:
        with directory.building(destination) as place:
            yield place
            refuse_existing(destination)
            directory.put_in_place(place, destination)
    except (OSError, lmdb.Error) as error:
        raise directory.cannot_create(destination, error, what) from error


def refuse_existing(destination: Path) -> None:
    """StoreError where anything lies under that name, be it an empty folder."""
    if os.path.lexists(destination):
        raise StoreError(f"{destination} is there already; nothing is ever overwritten. Name a new path.")


# -- in the process aside ---------------------------------------------------------------------


def copy(say: subprocess_task.Progress, store: str, place: str) -> None:
    """Build a full snapshot of ``store`` in the folder ``place``."""
    building = Path(place)
    generation = building / directory.FIRST_GENERATION
    generation.mkdir()
    with reading(store) as env, env.read() as txn:
        transaction = int(txn.id())
        # Read from the data file's size: nothing may be asked of LMDB while it copies.
        total = os.stat(directory.generation(env.path) / directory.DATA).st_size
        with watched(generation / directory.DATA, total, say), full_disk_told(building):
            env.live().copy(str(generation), compact=True, txn=txn)
    with full_disk_told(building):
        leave_out_journal(generation)
    directory.furnish(building)
    describe(building, source_transaction(env.path, transaction), say)


def source_transaction(store: Path, transaction: int) -> int:
    """The number of the store's last commit: of a snapshot it is its source's, which the manifest tells."""
    return manifest.read(store).transaction if directory.is_snapshot(store) else transaction


def describe(building: Path, transaction: int, say: subprocess_task.Progress) -> None:
    """Verify the copy record for record, and write digest and manifest; all of it goes to disk."""
    with lmdb_at_rest(building / directory.FIRST_GENERATION) as copied:
        with copied.begin(buffers=True) as txn, DigestWriter(building / DIGEST) as digest:
            node_bytes = walk(
                txn, lambda key, value: digest.add(key, bytes(value[:8])), say, copied.stat()["entries"]
            )
        with copied.begin() as txn:
            streams = streams_of(txn, node_bytes)
            made = stamped(txn, "full", transaction, digest.records, streams=streams)
    finish(building, made, FILES, say)


def finish(building: Path, made: Manifest, names: Iterable[str], say: subprocess_task.Progress) -> None:
    """Write the manifest, with the checksums of its files; all of it goes to disk."""
    manifest.write(building, replace(made, files={name: sums_of(building / name, say) for name in names}))
    flush(building)


def walk(txn: Any, seen: Callable[[bytes, Any], None], say: subprocess_task.Progress, total: int) -> dict[int, int]:
    """Verify every record and show it to ``seen``; the bytes of node blocks by stream number."""
    node_bytes: dict[int, int] = {}
    with txn.cursor() as cursor:
        for done, (key, value) in enumerate(verified(cursor)):
            seen(key, value)
            if key[8] == keys.NODE:
                number = int.from_bytes(key[:8], "big")
                node_bytes[number] = node_bytes.get(number, 0) + len(value)
            if done % _SPOKEN == 0:
                say("check", done, total)
    say("check", total, total)
    return node_bytes


def stamped(txn: Any, kind: str, transaction: int, count: int, **more: Any) -> Manifest:
    """A manifest of the store in ``txn``: whose it is, when it was made, by which raxlog."""
    from ... import __version__  # noqa: PLC0415 - the face imports this package

    row = store_row(txn)
    return Manifest(
        kind=kind, id=os.urandom(16).hex(), store=row[1].hex(), store_created_ms=row[2],
        created_ms=time.time_ns() // 1_000_000, transaction=transaction, raxlog=__version__,
        store_format=row[0], records=count, **more,
    )


def store_row(txn: Any) -> list[Any]:
    """The store's own record."""
    value = txn.get(keys.STORE_KEY)
    if value is None:
        raise CorruptionError("the store's own record is missing")
    return records.unseal(keys.STORE_KEY, bytes(value))


def reading(store: str) -> contextlib.closing[Environment]:
    """The store, opened for reading in this process, which writes to none. A context manager."""
    return contextlib.closing(Environment(Path(store), OpenOptions(readonly=True)).open())


def lmdb_at_rest(generation: Path) -> lmdb.Environment:
    """LMDB's environment of a store that nobody writes, read without its lock. A context manager."""
    return lmdb.open(
        str(generation), map_size=(generation / directory.DATA).stat().st_size, readonly=True, lock=False, create=False
    )


def leave_out_journal(generation: Path) -> None:
    """Delete the commit journal from a copy: what it says is of the store it was copied from."""
    with lmdb_at_rest(generation) as env, env.begin() as txn:
        if next(family_rows(txn, keys.family(0, keys.JOURNAL)), None) is None:
            return
    room = (generation / directory.DATA).stat().st_size + (1 << 20)
    with lmdb.open(str(generation), map_size=room, create=False) as env:
        journal.leave_out(env)
    (generation / directory.LOCK).unlink()


def flush(place: Path) -> None:
    """Flush a folder to disk with all that lies in it."""
    for path, _, files in os.walk(place, topdown=False):
        for name in files:
            directory.sync_file(Path(path, name))
        directory.sync_folder(Path(path))


@contextlib.contextmanager
def full_disk_told(building: Path) -> Iterator[None]:
    """What LMDB says of a full disk, as StoreFull that names the disk written to."""
    try:
        yield
    except lmdb.Error as error:
        why = lmdb_errors.why_full(building, error)
        if why is not None:
            raise StoreFull(f"no room in {building.parent}: {why} ({error}).") from error
        raise


@contextlib.contextmanager
def watched(file: Path, total: int, say: subprocess_task.Progress) -> Iterator[None]:
    """Report how a file grows while somebody else writes it."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_POLL):
            with contextlib.suppress(OSError):
                say("copy", min(file.stat().st_size, total), total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
    say("copy", total, total)
