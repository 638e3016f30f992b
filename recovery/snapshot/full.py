"""A full snapshot: one state of a live store, copied while writers go on; itself a store at rest.

    backup.rax/
    ├── CURRENT           names the generation, as in every store
    ├── 000001/data.mdb   LMDB's compacted copy: no free pages
    ├── writer  wake      as in every store; a snapshot is never written to
    ├── digest            every key with its value's checksum, for the next increment
    └── manifest.json     its contents, the state it is of, and checksums of the files

Built under a temporary name beside its destination, flushed, verified record for record, renamed:
an interrupted snapshot is no snapshot. A subprocess does the work (subprocess_task.py), in one read
transaction that writers never wait for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...storage import clocks
from ...storage.engine.compaction import copy_pages, size_of
from ...storage.engine.environment import Environment
from ...storage.engine.open_options import OpenOptions
from ...storage.errors import CorruptionError, StoreError, StoreFull
from ...storage.folder import directory
from ...storage.format import keys, records
from ...storage.locks.shared_file import SHARED
from ...storage.log.ring import APPLIED_KEY
from ...storage.tree import lmdb_errors
from ...storage.tree.tree import Tree
from ...storage.trees.rax import Rax, RaxTransaction, ReadTransaction
from ...storage.versions import __version__
from ...stream.entries import header as headers
from ...stream.entries.count import Counter
from ...stream.entries.header import StreamHeader
from ...stream.group.info import describe_group
from ...stream.group.state import GroupState, groups
from ...stream.node.stream_id import make_id, time_at
from .. import subprocess_task
from ..subprocess_task import Progress
from . import manifest
from .digest import DIGEST, DigestWriter, verified
from .manifest import MOST_POINTS, GroupSummary, Manifest, StreamSummary, sums_of

DATA = f"{directory.FIRST_GENERATION}/{directory.DATA}"
FILES = (DATA, DIGEST, directory.CURRENT, SHARED)  # all but the manifest
_LEAST_EVERY = 1000  # live entries from one point to the next
_EVERY = 4096  # records from one progress message to the next


def make(store: Path, destination: Path, progress: Progress | None) -> Manifest:
    """Make a full snapshot of a store at ``destination``, which must not exist.

    ReadOnlyStore, StoreFull, CorruptionError (a record of the store is damaged), StoreError: nothing
    is left behind then.
    """
    return build(copy, store, destination, progress, {})


def build(work: Callable[..., None], store: Path, destination: Path, progress: Progress | None,
          arguments: dict[str, Any]) -> Manifest:
    """Build a snapshot by ``work`` in a subprocess and rename it to ``destination``. Returns its manifest."""
    if Path(os.path.realpath(store)) in Path(os.path.realpath(destination)).parents:
        raise StoreError(f"{destination} is in the folder of the store {store}, which is its own. Name another.")
    with created_folder(destination) as building:
        subprocess_task.run(work, {"store": str(store), "place": str(building), **arguments}, progress)
        return manifest.read(building)


@contextlib.contextmanager
def created_folder(destination: Path, what: str = "snapshot") -> Iterator[Path]:
    """A temporary folder that is renamed to ``destination`` if the block succeeds, else removed."""
    require_absent(destination)
    destination = Path(os.path.realpath(destination))
    try:
        with directory.building(destination) as building:
            yield building
            require_absent(destination)
            directory.put_in_place(building, destination)
    except (OSError, lmdb_errors.Error) as error:
        raise directory.cannot_create(destination, error, what) from error


def require_absent(destination: Path) -> None:
    """StoreError if the path exists, even as an empty folder."""
    if os.path.lexists(destination):
        raise StoreError(f"{destination} is there already; nothing is ever overwritten. Name a new path.")


# -- in the subprocess ------------------------------------------------------------------------


def copy(progress: Progress, store: str, place: str) -> None:
    """Build a full snapshot of ``store`` in the folder ``place``."""
    building = Path(place)
    generation = building / directory.FIRST_GENERATION
    generation.mkdir()
    with open_for_reading(store) as env, env.read() as txn:
        transaction = int(txn.id())
        # The size comes from the file system: LMDB must not be called while it copies.
        total = directory.data_status(env.path).st_size
        data = generation / directory.DATA
        with full_disk_errors(building):
            copy_pages(env.live().copy, generation, lambda: progress("copy", min(size_of(data), total), total), txn)
    progress("copy", total, total)
    with full_disk_errors(building):
        leave_log_out(generation)
    directory.furnish(building)
    with open_copy(generation) as copied:
        with copied.begin(buffers=True) as txn, DigestWriter(building / DIGEST) as digest:
            node_bytes = verify_records(
                txn, lambda key, value: digest.add(key, bytes(value[:8])), progress, copied.pages().records
            )
        with copied.begin() as txn:
            made = new_manifest(txn, "full", env.path, transaction, digest.records, streams=streams_of(txn, node_bytes))
    finish(building, made, FILES, progress)


def finish(building: Path, made: Manifest, names: Iterable[str], progress: Progress) -> None:
    """Write the manifest, with the checksums of its files, and flush all of it to disk."""
    manifest.write(building, replace(made, files={name: sums_of(building / name, progress) for name in names}))
    flush_folder(building)


def verify_records(txn: ReadTransaction, visit: Callable[[bytes, bytes], None], progress: Progress,
                   total: int) -> dict[int, int]:
    """Verify every record and call ``visit`` with it. Returns the bytes of node blocks by stream number."""
    node_bytes: dict[int, int] = {}
    with txn.cursor() as cursor:
        for done, (key, value) in enumerate(verified(cursor)):
            visit(key, value)
            if key[8] == keys.NODE:
                number = int.from_bytes(key[:8], "big")
                node_bytes[number] = node_bytes.get(number, 0) + len(value)
            if done % _EVERY == 0:
                progress("check", done, total)
    progress("check", total, total)
    return node_bytes


def new_manifest(txn: ReadTransaction, kind: str, source: Path, transaction: int, count: int, **more: Any) -> Manifest:
    """A manifest of the copy of ``source`` in ``txn``; of a snapshot's, last commit and time are the snapshot's."""
    row, now = store_row(txn), time_at(clocks.now_ms())
    if directory.is_snapshot(source):
        copied = manifest.read(source)
        transaction, now = copied.transaction, copied.created
    return Manifest(
        kind=kind, id=os.urandom(16).hex(), store=row[1].hex(), store_created=time_at(row[2]),
        created=now, transaction=transaction, raxlog=__version__,
        store_format=row[0], records=count, **more,
    )


def store_row(txn: ReadTransaction) -> list[Any]:
    value = txn.get(keys.STORE_KEY)
    if value is None:
        raise CorruptionError("the store's own record is missing")
    return records.unseal(keys.STORE_KEY, bytes(value))


def streams_of(txn: RaxTransaction, node_bytes: dict[int, int]) -> tuple[StreamSummary, ...]:
    """All streams by name, as a manifest lists them. ``node_bytes``: the size of their blocks, by stream number.

    Costs a few look-ups a stream and a group, and one select() a point (20 to 85 µs).
    """
    found = []
    for name, _ in Rax(txn, keys.NAMES).items():
        number = headers.number_of(txn, name)
        header = None if number is None else headers.load(txn, number)
        if number is None or header is None:
            raise CorruptionError("the stream's header is missing", stream=headers.shown(name))
        found.append(_summary(txn, number, header, node_bytes.get(number, 0)))
    return tuple(found)


def _summary(txn: RaxTransaction, number: int, header: StreamHeader, size: int) -> StreamSummary:
    counter = Counter(txn, number, header)
    length = header.length
    every = max(_LEAST_EVERY, -(-length // MOST_POINTS))
    return StreamSummary(
        name=header.name,
        number=number,
        length=length,
        first=make_id(*header.first) if length else None,
        last=counter.select(length - 1) if length else None,
        last_generated_id=make_id(*header.last),
        entries_added=header.entries_added,
        base=_base(txn, number, header),
        next_ordinal=header.next_ordinal,
        nodes=header.leaves,
        bytes=size,
        every=every,
        points=tuple(counter.select(k) for k in range(every, length, every)),
        groups=tuple(_group(txn, number, header, state) for state in groups(txn, number)),
        schema={} if header.schema is None else header.schema.fields,
    )


def _base(txn: RaxTransaction, number: int, header: StreamHeader) -> int:
    prefix = keys.family(number, keys.NODE)
    first = Rax(txn, prefix).first()
    return header.next_ordinal if first is None else records.block_header(prefix + first[0], first[1]).ordinal


def _group(txn: RaxTransaction, number: int, header: StreamHeader, state: GroupState) -> GroupSummary:
    info = describe_group(txn, state, number, header, None)
    return GroupSummary(
        name=state.name, last_delivered_id=make_id(*state.last), entries_read=info.entries_read,
        pending=info.pending, consumers=info.consumers, lag=info.lag,
    )


def open_for_reading(store: str) -> contextlib.closing[Environment]:
    """The store, opened for reading in this process. A context manager."""
    return contextlib.closing(Environment(Path(store), OpenOptions(readonly=True)).open())


def open_copy(generation: Path) -> Tree:
    """The tree of a store without writers, opened for reading without its lock."""
    return Tree(generation, readonly=True)


def leave_log_out(generation: Path) -> None:
    """Delete from a copy what says where its log is: that belongs to the store that was copied."""
    room = (generation / directory.DATA).stat().st_size + (1 << 20)
    with Tree(generation, room) as copied, copied.write() as txn:
        txn.delete(APPLIED_KEY)


def flush_folder(folder: Path) -> None:
    """Flush a folder to disk with all its contents."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in files:
            directory.sync_file(Path(path, name))
        directory.sync_folder(Path(path))


@contextlib.contextmanager
def full_disk_errors(building: Path) -> Iterator[None]:
    """Raise LMDB's errors for a full disk as StoreFull, naming the disk."""
    try:
        yield
    except lmdb_errors.Error as error:
        why = lmdb_errors.why_full(building, error)
        if why is not None:
            raise StoreFull(f"no room in {building.parent}: {why} ({error}).") from error
        raise
